"""A plan that was shrunk is a file, and the file is the run: the same trace hash."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from paceline.errors import BadRequestError
from paceline_chaos.cli import replay
from paceline_chaos.cluster_sim import __main__ as command
from paceline_chaos.cluster_sim import console, run
from paceline_chaos.cluster_sim.faults.plan import draw_plan
from paceline_chaos.cluster_sim.faults.plan_file import WrittenPlan, read_plan, write_plan
from paceline_chaos.cluster_sim.run import run_world
from paceline_chaos.cluster_sim.topology import draw_topology
from paceline_chaos.commands import EXIT_REFUSED
from paceline_chaos.history.model import FaultEvent, History
from paceline_chaos.verdict import Verdict, Violation

LOAD_MS = 2_000
SEED, KIND = 18, "kill"
"""A world with such a fault among others."""
GOOD: dict[str, Any] = {
    "seed": 3,
    "load_ms": LOAD_MS,
    "faults": [{"at_ms": 10, "kind": "kill", "target": "master:g1"}],
}


def test_every_drawn_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    for seed in range(300):
        written = WrittenPlan(seed=seed, load_ms=9_000, plan=draw_plan(draw_topology(seed)))

        write_plan(written, path)

        assert read_plan(path) == written


def test_a_file_has_the_trace_of_the_plan_that_it_was_written_from(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan = draw_plan(draw_topology(5, load_ms=LOAD_MS))
    write_plan(WrittenPlan(seed=5, load_ms=LOAD_MS, plan=plan), path)
    read = read_plan(path)

    again = run_world(read.seed, plan=read.plan, load_ms=read.load_ms)

    assert again.digest == run_world(5, load_ms=LOAD_MS).digest


def changed(change: Callable[[dict[str, Any]], Any]) -> str:
    document = json.loads(json.dumps(GOOD))
    change(document)
    return json.dumps(document)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is not JSON"),
        (json.dumps(GOOD)[:-9], "is not JSON"),
        ("[]", "it must be an object"),
        ("{}", "it has no seed"),
        (changed(lambda d: d.update(seed="3")), "seed of it must be a whole number"),
        (changed(lambda d: d.update(seed=True)), "seed of it must be a whole number"),
        (changed(lambda d: d.update(load_ms=-1)), "load_ms of it must be a whole number"),
        (changed(lambda d: d.update(beds=1)), "it has no member 'beds'"),
        (changed(lambda d: d.pop("faults")), "faults must be a list"),
        (changed(lambda d: d.update(broken={})), "broken must be a list"),
        (changed(lambda d: d["faults"].append(4)), "fault 2 of faults must be an object"),
        (changed(lambda d: d["faults"][0].update(kind="kil")), "no fault is called 'kil'"),
        (changed(lambda d: d["faults"][0].update(kind="exit")), "no fault is called 'exit'"),
        (changed(lambda d: d["faults"][0].update(kind=[])), "kind of fault 1 of faults must be"),
        (changed(lambda d: d["faults"][0].update(at_ms=1.5)), "at_ms of fault 1 of faults must"),
        (changed(lambda d: d["faults"][0].update(target="g1-b77")), "nobody in this world is"),
        (changed(lambda d: d["faults"][0].update(other="master:g9")), "nobody in this world is"),
        (changed(lambda d: d["faults"][0].update(details=[])), "details of fault 1"),
        (changed(lambda d: d["faults"][0].update(details={"rat": 2})), "has no detail 'rat'"),
        (changed(lambda d: d["faults"][0].update(details={"rate": 0})), "rate of fault 1"),
        (changed(lambda d: d["faults"][0].update(details={"rate": "1"})), "rate of fault 1"),
    ],
)
def test_bad_file_ends_with_one_sentence_and_exit_code_2(
    text: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)

    assert command.main(["--plan", str(path)]) == EXIT_REFUSED

    out, error = capsys.readouterr()
    assert told in error
    assert (out, error.count("\n")) == ("", 1)


def test_missing_file_and_one_that_is_no_file_are_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(BadRequestError, match="cannot be read"):
            read_plan(path)


def judge_that_minds_kills(history: History, **_: object) -> Verdict:
    """A bad verdict for one kind of fault: a shrink has to find it."""
    for entry in history.entries:
        if isinstance(entry, FaultEvent) and entry.kind == KIND:
            broken = Violation(property="S1", sentence="somebody was killed", proof=(entry.number,))
            return Verdict(violations=(broken,), counters={})
    return Verdict(violations=(), counters={})


def test_shrunk_plan_is_written_and_the_printed_command_runs_it_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second command finds the violation and the trace hash that the first one told."""
    path = tmp_path / "with space.json"
    monkeypatch.setattr(console, "LOAD_MS", LOAD_MS)
    monkeypatch.setattr(run, "judge", judge_that_minds_kills)

    assert command.main(["--seed", str(SEED), "--shrink", "--output", str(path)]) == 1
    shrunk = capsys.readouterr().out.splitlines()
    assert command.main(["--plan", str(path)]) == 1
    again = capsys.readouterr().out.splitlines()

    assert [fault.kind for fault in read_plan(path).plan.faults] == [KIND]
    assert shrunk[-1] == again[-1] == f"python -m paceline_chaos.cluster_sim --plan '{path}'"
    assert again[-2].endswith(f"BAD {shrunk[-2].rpartition(' ')[2]}")


def test_paceline_chaos_replay_runs_a_plan_too(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text('{"seed": 1, "load_ms": 200, "faults": []}')

    result = CliRunner().invoke(replay, ["--bed", "world", "--plan", str(path), "--json"])
    refused = CliRunner().invoke(replay, ["--bed", "core", "--plan", str(path)])

    assert json.loads(result.stdout)["seed"] == 1
    assert isinstance(refused.exception, BadRequestError)
