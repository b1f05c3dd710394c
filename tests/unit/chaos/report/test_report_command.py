"""`paceline chaos report` on what runs leave: judged as they were, or refused in one sentence."""

from pathlib import Path

import orjson
import pytest
from tests.support.chaos.hand import SECOND, Hand

from paceline.cli.main import main
from paceline_chaos.checkers import judge
from paceline_chaos.checkers.evidence.bounds import Bounds
from paceline_chaos.checkers.expectations import EXPECT, Expectation, as_table
from paceline_chaos.history.codec import save
from paceline_chaos.history.model import Phase, ReplicaDump
from paceline_chaos.report.keep import keep
from paceline_chaos.verdict import Verdict, Violation


def run_folder(folder: Path, *, gap_ms_max: int | None = None, is_whole: bool = True) -> Path:
    """A run in which nothing was acknowledged for two seconds."""
    hand = Hand(**{EXPECT: as_table(Expectation(gap_ms_max=gap_ms_max, acknowledged_min=0))})
    hand.add(Phase, at_us=0, name="load")
    hand.send("a", 0, (SECOND - 10, SECOND))
    hand.send("b", 1, (3 * SECOND - 10, 3 * SECOND))
    hand.dump(1, ["a", "b"])
    if is_whole:
        hand.add(Phase, at_us=3 * SECOND + 10, name="end")
    save(hand.history, folder / "history.jsonl")
    return folder


def report(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main(["chaos", "report", str(path)])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_run_is_judged_again_with_the_bounds_of_its_scenario(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(run_folder(tmp_path, gap_ms_max=2_100), capsys)[0] == 0

    code, out, _ = report(run_folder(tmp_path, gap_ms_max=1_900), capsys)

    assert (code, out) == (1, f"{tmp_path / 'history.html'}\n")
    assert "nothing was acknowledged for 2000 ms" in (tmp_path / "history.html").read_text()


def test_what_the_harness_saw_counts_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run_folder(tmp_path)
    seen = {"property": "CODE", "sentence": "g1-b1 told of a bug", "proof": []}
    (folder / "verdict.json").write_bytes(orjson.dumps({"observed": [seen]}))

    code, _, _ = report(folder, capsys)

    assert code == 1
    assert "g1-b1 told of a bug" in (folder / "history.html").read_text()


def test_torn_history_is_judged_as_far_as_it_goes_and_that_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run_folder(tmp_path, is_whole=False) / "history.jsonl"
    path.write_bytes(path.read_bytes()[:-5])

    code, _, err = report(path, capsys)

    assert code == 1
    assert err == (
        f"{path} stops in the middle of the run: NO VERDICT: the run stopped in the middle\n"
    )
    assert "NO VERDICT: the run stopped in the middle" in (tmp_path / "history.html").read_text()
    assert "No violation" not in (tmp_path / "history.html").read_text()


def test_history_without_the_dump_of_a_replica_proves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hand = Hand(bed="processes", groups={"g1": ["g1-b1", "g1-b2"]})
    hand.add(Phase, at_us=0, name="end")
    dump = {"group": "g1", "replica": None, "start": 0, "confirm": 0, "end": 0, "batches": ()}
    hand.add(ReplicaDump, node="g1-b1", damage=None, **dump)
    save(hand.history, tmp_path / "history.jsonl")
    assert report(tmp_path, capsys)[0] == 1

    hand.add(ReplicaDump, node="g1-b2", damage=None, **dump)
    save(hand.history, tmp_path / "history.jsonl")

    assert report(tmp_path, capsys)[0] == 0


@pytest.mark.parametrize("seed", [1, 2])
def test_seed_of_the_core_bed_is_judged_again_as_its_bed_did(
    seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Judged for all properties it would be bad: nothing bounds the delays of that bed."""
    replay = ["chaos", "replay", "--bed", "core", "--seed", str(seed), "--output", str(tmp_path)]

    assert main(replay) == 0
    assert report(tmp_path, capsys)[0] == 0


def test_what_the_judge_of_a_bed_saw_is_not_lost_when_its_history_is_judged_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = Violation(property="R11", sentence="a confirm above what is durable")
    bounds = Bounds(patience_us=SECOND)
    hand = Hand()
    hand.send("a", 0, (0, 2 * SECOND))
    hand.add(Phase, at_us=3 * SECOND, name="end")
    own = judge(hand.history, bounds=bounds).violations
    assert "L4" in {one.property for one in own}

    verdict = Verdict(violations=(seen, *own), counters={})
    keep(hand.history, verdict, tmp_path / "world-7.jsonl", bounds=bounds)
    code, _, _ = report(tmp_path / "world-7.jsonl", capsys)

    page = (tmp_path / "world-7.html").read_text()
    assert code == 1
    assert "a confirm above what is durable" in page
    assert f"<b>{len(own) + 1} violations</b>" in page


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "cannot be read (No such file or directory): name the history.jsonl of a run"),
        (b"", "is empty: the run ended before it began; run it again"),
        (b'{"entry": "wor', "is not a history as `paceline chaos` writes it: line 1: "),
        (b"\xff\xfe garbage\n", "is not a history as `paceline chaos` writes it: line 1: "),
        (b'{"entry": "world", "version": 1, "world": {}}\n{}\n', "line 2: unknown entry None"),
        (b'{"entry": "world", "version": 9, "world": {}}\n', "line 1: not a history of version 1"),
        (
            b'{"entry": "world", "version": 1, "world": {}}\n{"entry": "decision", "number": 0, '
            b'"at_us": 1, "node": "c1", "index": 1, "kind": "master_elected", "members": {}}\n',
            "has an entry that cannot be judged (KeyError('",
        ),
        (
            b'{"entry": "world", "version": 1, "world": {"expect": {"gap": 1}}}\n',
            "expect: gap is unknown",
        ),
    ],
)
def test_what_is_no_history_is_refused_in_one_sentence(
    content: bytes | None,
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "history.jsonl"
    if content is not None:
        path.write_bytes(content)

    code, out, err = report(path, capsys)

    assert (code, out) == (2, "")
    assert err.startswith("paceline: ")
    assert sentence in err
    assert err.count("\n") == 1


def test_damaged_verdict_beside_a_history_is_refused_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_folder(tmp_path) / "verdict.json").write_text('{"observed": [1]}')

    code, _, err = report(tmp_path, capsys)

    assert code == 2
    assert "move it away to judge the history alone" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "kill-master", "--seed", "-1"],
        ["replay", "--bed", "core", "--seed", "-1"],
        ["replay", "--bed", "core", "--seed", "x"],
        ["rounds", "--minutes", "-1"],
        ["failover", "--rate", "0"],
    ],
)
def test_impossible_numbers_are_usage_errors(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chaos", *arguments]) == 2

    assert "Invalid value for" in capsys.readouterr().err
