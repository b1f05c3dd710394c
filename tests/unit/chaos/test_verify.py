"""`verify` says "good" only of what was enough, and refuses what it cannot do in one sentence."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.cli.main import main as paceline
from paceline_chaos import ledger, verify
from paceline_chaos.goals import SEEDS_TO_JUDGE, said_of_rate
from paceline_chaos.ledger import Line
from paceline_chaos.processes import rounds, rounds_command
from paceline_chaos.processes.rounds import Came, Round
from paceline_chaos.protocol_sim.coverage import COUNTERS
from paceline_chaos.verify_jobs import Done, Job


def nobody_works(_: verify.Verification, jobs: Iterator[Job]) -> Iterator[Done]:
    yield from ()


class Asked:
    """`verify` with arguments; jobs are done by nobody."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
        self._monkeypatch = monkeypatch
        self.path = path
        monkeypatch.setattr(ledger, "source_hash", lambda *_: "now")
        monkeypatch.setattr(verify.Verification, "_work", nobody_works)

    def __call__(self, *arguments: str) -> int:
        given = ["verify", "--ledger", str(self.path), *arguments]
        self._monkeypatch.setattr(sys, "argv", given)
        return verify.main()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Asked:
    return Asked(monkeypatch, tmp_path / "ledger.jsonl")


@pytest.mark.parametrize(
    "wrong",
    [
        ("--minutes", "0"),
        ("--minutes", "-3"),
        ("--minutes", "nan"),
        ("--minutes", "inf"),
        ("--processes", "0"),
    ],
)
def test_numbers_that_mean_no_work_are_refused(
    wrong: tuple[str, str], asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        asked("--bed", "core", "=".join(wrong))

    assert ended.value.code == 2
    assert f"argument {wrong[0]}" in capsys.readouterr().err


def test_ledger_that_cannot_be_written_is_refused_before_the_run(
    asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    asked.path = Path("/nowhere/l.jsonl")

    assert asked("--bed", "core", "--minutes", "1") == 2
    assert capsys.readouterr().out.startswith("no ledger can be written at /nowhere/l.jsonl")
    assert paceline(["chaos", "rounds", "--rounds", "1", "--ledger", "/nowhere/l.jsonl"]) == 2
    assert "no ledger can be written" in capsys.readouterr().err


def test_damaged_ledger_is_refused_before_the_run(
    asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    asked.path.write_text("{}\n")

    assert asked("--bed", "core", "--minutes", "1") == 2
    assert f"{asked.path}, line 1 is no line" in capsys.readouterr().out


@pytest.mark.parametrize("bed", sorted(SEEDS_TO_JUDGE))
def test_too_few_seeds_are_not_good(
    bed: str, asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = SEEDS_TO_JUDGE[bed]
    ledger.append(Line(source="now", bed=bed, end=wanted - 1), asked.path)

    assert asked("--bed", bed, "--minutes", "0.001") == 1

    said = capsys.readouterr().out.splitlines()
    assert said[-2] == f"too few to judge: {bed}: {wanted - 1} of {wanted} seeds"
    assert said[-1].startswith("NOT good")


def test_short_runs_add_up_to_a_good_one(asked: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    half = SEEDS_TO_JUDGE["core"] // 2
    names = list(COUNTERS)
    parts = (dict.fromkeys(names[::2], 1), dict.fromkeys(names[1::2], 1))
    for start, counters in zip((0, half), parts, strict=True):
        line = Line(source="now", bed="core", start=start, end=start + half, counters=counters)
        ledger.append(line, asked.path)

    assert asked("--bed", "core", "--minutes", "0.001") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "good"


def test_goal_is_told_beside_the_measured_rate() -> None:
    said = said_of_rate(
        "core", seeds=400, virtual_us=400 * 61_000_000, elapsed_ms=60_000, processes=2
    )

    assert said == (
        "core: 2,000 seeds of 61 virtual seconds in 5 minutes with 2 workers; "
        "the goal is 2,000 of 60 on 2 cores"
    )


def good_round(self: rounds.Rounds, one: Round) -> Came:
    counters = {"acknowledged": 5, "judged.S1": 5}
    verdict = {"is_good": True, "violations": [], "counters": counters, "figures": {}}
    return Came(round=one, verdict=verdict, took_ms=1, folder=self._output / one.name)


@pytest.fixture
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds that are good at once."""

    def run(self: rounds.Rounds, plan: Iterator[Round], **_: object) -> Iterator[Came]:
        for one in plan:
            came = good_round(self, one)
            self.note(came)
            yield came

    monkeypatch.setattr(rounds.Rounds, "run", run)


@pytest.mark.usefixtures("no_processes")
def test_rounds_are_not_good_when_the_same_source_has_failed_before(
    asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["chaos", "rounds", "--rounds", "1", "--scenario", "kill-master"]
    arguments += ["--ledger", str(asked.path)]
    failed = Line(
        source="now",
        bed="processes",
        family="kill",
        scenario="kill-master",
        end=1,
        violations={"S1": [1]},
    )
    assert paceline(arguments) == 0
    ledger.append(failed, asked.path)

    assert paceline(arguments) == 1
    assert "kill-master: S1 was violated before, by the same source" in capsys.readouterr().out


@pytest.mark.usefixtures("no_processes")
def test_rounds_of_sources_that_have_changed_meanwhile_are_not_good(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hashes = iter(["then", "now", "now"])
    monkeypatch.setattr(ledger, "source_hash", lambda *_: next(hashes))
    arguments = ["chaos", "rounds", "--rounds", "1", "--scenario", "kill-master"]

    assert paceline([*arguments, "--ledger", str(asked.path)]) == 1

    assert not ledger.read(asked.path)
    assert "the sources have changed meanwhile" in capsys.readouterr().out


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "inf"])
def test_rounds_need_a_time(minutes: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert paceline(["chaos", "rounds", f"--minutes={minutes}"]) == 2
    assert "--minutes" in capsys.readouterr().err


@pytest.mark.usefixtures("no_processes")
def test_what_no_family_has_judged_is_told(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_rounds = rounds_command.run_rounds

    def one_round(*scenarios: object, **given: object) -> object:
        return run_rounds(*scenarios, **{**given, "rounds": 1, "minutes": None})  # type: ignore[arg-type]

    monkeypatch.setattr(rounds_command, "run_rounds", one_round)

    assert asked("--bed", "processes", "--minutes", "1") == 0

    said = capsys.readouterr().out
    (line,) = (row for row in said.splitlines() if "never judged" in row)
    assert "S2" in line
    assert "S1," not in line
    assert "S1=" in said
