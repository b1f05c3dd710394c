"""The measurement on a busy machine, for a short while: it measures, and all stays calm."""

import subprocess

import orjson
import pytest
from tests.support.process.harness import end_with_parent, paceline_command

pytestmark = [pytest.mark.process, pytest.mark.alone, pytest.mark.timeout(180)]

SECONDS = 20
LOOPS = 8


def test_a_busy_machine_with_slow_disks_keeps_its_leader_and_its_master() -> None:
    arguments = ["--seconds", str(SECONDS), "--loops", str(LOOPS), "--json"]

    finished = subprocess.run(
        paceline_command("chaos", "busy", *arguments),
        stdout=subprocess.PIPE,
        check=False,
        preexec_fn=end_with_parent,
    )

    figures = orjson.loads(finished.stdout)
    assert (figures["seconds"], figures["loops"]) == (SECONDS, LOOPS)
    assert figures["masters_replaced"] == 0, figures
    assert figures["failures"] == []
    assert figures["topic_ms_max"] >= 200, "each waits for a sync at least"
    assert figures["sends"] > 5 * SECONDS
    assert figures["next_leader_ms"] is not None
    assert figures["is_met"], figures
    assert finished.returncode == 0
