"""The ledger of long runs: what adds up, and where the next run begins."""

from pathlib import Path

import pytest

from paceline.errors import BadRequestError
from paceline_chaos import ledger
from paceline_chaos.cluster_sim import counted
from paceline_chaos.cluster_sim.all_ack import SCENARIOS
from paceline_chaos.ledger import Line
from paceline_chaos.seeds import replay_command
from paceline_chaos.verify_jobs import Job, run_job


def test_next_run_of_a_source_begins_after_the_seeds_it_has_done(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger.append(Line(source="a", bed="core", start=0, end=40), path)
    ledger.append(Line(source="a", bed="core", start=40, end=70), path)
    ledger.append(Line(source="b", bed="core", start=0, end=200), path)

    lines = ledger.read(path)

    assert ledger.seeds_done(lines, source="a", bed="core") == 70
    assert ledger.seeds_done(lines, source="a", bed="world") == 0
    assert ledger.seeds_done(lines, source="c", bed="core") == 0


def test_lines_come_back_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    line = Line(
        source="a",
        bed="mutants",
        violations={"S1": [3]},
        counters={"kills": 2},
        caught={"R8": ["S1", 4, 1.5]},
        missed=["R9"],
    )

    ledger.append(line, path)

    assert ledger.read(path) == [line]
    assert ledger.mutants_caught([line], source="a") == {"R8"}


def test_summary_adds_up_by_source() -> None:
    lines = [
        Line(source="a", bed="core", start=0, end=10, virtual_s=3600, violations={"S2": [4]}),
        Line(source="a", bed="core", start=10, end=30, virtual_s=3600),
        Line(source="a", bed="mutants", caught={"R8": ["S1", 4, 1.5]}, missed=["R9"]),
    ]

    said = "\n".join(ledger.summary(lines))

    assert "30 seeds, 2.0 virtual hours" in said
    assert "violations: [4]" in said
    assert "1 caught, missed: R9" in said


def test_what_a_source_has_violated_is_not_forgotten_by_its_next_run() -> None:
    lines = [
        Line(source="a", bed="core", end=10, violations={"S2": [4]}),
        Line(source="a", bed="core", start=10, end=20, violations={"S2": [4, 11], "S1": [11]}),
        Line(source="b", bed="core", end=10, violations={"S3": [4]}),
        Line(source="a", bed="world", end=10, violations={"S4": [4]}),
    ]

    assert ledger.violated(lines, source="a", bed="core") == {"S1": [11], "S2": [4, 11]}


def test_rounds_of_a_source_that_failed_are_not_forgotten_by_its_next_rounds() -> None:
    failed = Line(source="a", bed="processes", family="kill", scenario="x", violations={"S1": [3]})

    assert ledger.violated([failed], source="a", bed="processes", scenario="x") == {"S1": [3]}
    assert not ledger.violated([failed], source="a", bed="processes", scenario="y")


def test_sum_of_a_source_counts_each_seed_once_and_every_family_of_rounds() -> None:
    lines = [
        Line(source="a", bed="core", start=0, end=10, counters={"kills": 2}),
        Line(source="a", bed="core", start=5, end=20, counters={"kills": 1}),
        Line(source="b", bed="core", start=20, end=90, counters={"kills": 9}),
        Line(source="a", bed="processes", family="kill", end=1, counters={"judged_S1": 4}),
        Line(source="a", bed="processes", family="disk", end=1, counters={"judged_S1": 3}),
    ]

    core = ledger.total(lines, source="a", bed="core")
    rounds = ledger.total(lines, source="a", bed="processes")

    assert (core.seeds, core.counters) == (20, {"kills": 3})
    assert (rounds.seeds, rounds.counters) == (2, {"judged_S1": 7})
    assert rounds.rounds == {"kill": 1, "disk": 1}
    assert "S1=7" in "\n".join(ledger.summary(lines))


@pytest.mark.parametrize("damaged", [b'{"source": "a", "be', b"[1]", b'{"source": "a"}', b"7"])
def test_damaged_line_is_named_with_its_file_and_number(tmp_path: Path, damaged: bytes) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b'{"source": "a", "bed": "core"}\n' + damaged + b"\n")

    with pytest.raises(BadRequestError, match=f"{path}, line 2 is no line of a ledger"):
        ledger.read(path)


def test_member_of_the_wrong_type_is_damage_too(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_text('{"source": "a", "bed": "core", "end": "7"}')

    with pytest.raises(BadRequestError, match="line 1 .*end is '7'"):
        ledger.read(path)


def test_reruns_add_up_to_one_sentence() -> None:
    lines = [
        Line(source="a", bed="determinism", end=60, counters={"reruns": 60, "reruns_same": 60}),
        Line(source="a", bed="determinism", end=100, counters={"reruns": 40, "reruns_same": 39}),
    ]

    assert "Trace hashes equal in 99 of 100 re-runs" in "\n".join(ledger.summary(lines))


def tree(root: Path) -> Path:
    for name in ledger.SOURCES:
        (root / name / "inside").mkdir(parents=True)
        (root / name / "inside" / "code.py").write_text(name)
    return root


def test_hash_is_of_what_is_on_disk_committed_or_not(tmp_path: Path) -> None:
    root = tree(tmp_path)
    seen = {ledger.source_hash(root)}

    for name in ledger.SOURCES:
        (root / name / "inside" / "new.py").write_text("")
        seen.add(ledger.source_hash(root))
        (root / name / "inside" / "code.py").write_text("changed")
        seen.add(ledger.source_hash(root))
        (root / name / "inside" / "new.py").rename(root / name / "inside" / "other.toml")
        seen.add(ledger.source_hash(root))

    assert len(seen) == 1 + 3 * len(ledger.SOURCES)


def test_hash_knows_nothing_of_what_running_leaves_behind(tmp_path: Path) -> None:
    root = tree(tmp_path)
    before = ledger.source_hash(root)

    for folder in ("client/inside/__pycache__", "client/paceline.egg-info", "chaos/.mypy_cache"):
        (root / folder).mkdir()
        (root / folder / "code.cpython-311.pyc").write_bytes(b"1")
        (root / folder / "text.txt").write_text("2")
    (root / "broker" / ".code.py.swp").write_bytes(b"3")

    assert ledger.source_hash(root) == before
    assert ledger.source_hash() == ledger.source_hash()


def test_line_about_sources_that_have_changed_is_not_added(tmp_path: Path) -> None:
    root, path = tree(tmp_path), tmp_path / "ledger.jsonl"
    line = Line(source=ledger.source_hash(root), bed="core", end=10)

    assert ledger.append_if_same(line, path, root=root)
    (root / "client" / "inside" / "code.py").write_text("changed")
    assert not ledger.append_if_same(line, path, root=root)

    assert ledger.read(path) == [line]


def test_job_of_a_mutant_says_which_check_caught_it() -> None:
    done = run_job(Job(bed="core", start=0, end=20, mutant="R10"))

    assert done.caught_by is not None
    assert done.caught_seed is not None


def test_replay_command_names_bed_seed_and_mutant() -> None:
    assert replay_command("core", 7, mutant="R8").endswith("--seed 7 --mutant R8")
    assert "--bed world --seed 9" in replay_command("world", 9)
    assert replay_command("determinism", 9).endswith("--determinism 1 --seed 9")
    assert replay_command("all_ack", 9).endswith("--first 9 --seeds 1")


def test_seed_of_all_ack_is_a_result_like_another(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "weak-one-off"
    monkeypatch.setattr(counted, "TABLES", {"all_ack": {name: SCENARIOS[name]}})

    (result,) = run_job(Job(bed="all_ack", start=1, end=2)).results

    assert (result.is_good, result.bed) == (True, "all_ack")
    assert result.counters["all_ack_scripts"] == 1
    assert result.operations > 0
