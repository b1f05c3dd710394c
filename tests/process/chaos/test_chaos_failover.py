"""The failover measurement on real processes, with few kills: that it measures, not what."""

import subprocess
from pathlib import Path

import orjson
import pytest
from tests.support.process.harness import end_with_parent, paceline_command

from paceline_chaos.history import codec
from paceline_chaos.history.model import FaultEvent

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]


@pytest.mark.alone
def test_failover_is_measured_over_all_clients_and_kills(tmp_path: Path) -> None:
    arguments = ["--kills", "2", "--clients", "3", "--rate", "150", "--json"]

    finished = subprocess.run(
        paceline_command("chaos", "failover", *arguments, "--report", str(tmp_path)),
        stdout=subprocess.PIPE,
        check=True,
        preexec_fn=end_with_parent,
    )

    figures = orjson.loads(finished.stdout)
    assert (figures["kills"], figures["samples"]) == (2, 6)
    assert figures["gap"]["max_ms"] < 5_000, "generous for a machine with two busy cores"
    assert figures["operations"]["fail"] == figures["operations"]["unknown"] == 0
    assert all(moment is not None for moment in figures["stages_median"].values())
    history = codec.load(tmp_path / "history.jsonl")
    faults = [entry for entry in history.entries if isinstance(entry, FaultEvent)]
    assert [fault.is_begin for fault in faults] == [True, False, True, False]
    assert figures["violations"] == 0
    assert (tmp_path / "failover.html").exists()
    assert (tmp_path / "timeline.html").exists()
