"""Long runs are interrupted: they end at once, and what they did is not done again."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from paceline_chaos import ledger


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "terminated"])
def test_an_interrupted_run_ends_and_what_it_did_is_in_the_ledger(
    tmp_path: Path, how: signal.Signals
) -> None:
    path = tmp_path / "ledger.jsonl"
    command = (sys.executable, "-m", "paceline_chaos.verify", "--bed", "core", "--minutes", "10")
    run = subprocess.Popen(
        (*command, "--ledger", str(path)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert run.stdout is not None
    assert "from seed 0" in run.stdout.readline()
    assert " seeds in " in run.stdout.readline()  # the first progress

    run.send_signal(how)
    output, errors = run.communicate(timeout=30)

    assert run.returncode == 130, errors
    assert "stopped" in output
    assert not errors
    [line] = ledger.read(path)
    assert (line.bed, line.start) == ("core", 0)
    assert line.operations > 0  # `end` waits for the slowest of the first jobs
