"""`paceline export`: what its arguments order, and what it says of the outcome. Runs no Spark."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.unit.cli.conftest import run_command

from paceline.spark.export import command as spark_command
from paceline.spark.export.command import Work

SUMMARY = {
    "to": "/data/out",
    "batch": 3,
    "rows": 1500,
    "size_bytes": 2_000_000,
    "files": 4,
    "seconds": 2.0,
    "is_resumed": False,
    "total_rows": 4500,
    "lost_rows": 0,
}
Given = list[Work]


@pytest.fixture
def ordered(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Given]:
    """Lets the export answer with a summary; what it was given."""

    def answer(**changes: Any) -> Given:
        works: Given = []

        def run(work: Work, **_: object) -> dict[str, Any]:
            works.append(work)
            return {**SUMMARY, **changes}

        monkeypatch.setattr(spark_command, "run_export", run)
        return works

    return answer


def test_arguments_become_an_order(ordered: Callable[..., Given], tmp_path: Path) -> None:
    works = ordered()
    token, authority = tmp_path / "token", tmp_path / "ca.pem"

    outcome = run_command(
        "export", "--topic", "a,b", "--to", str(tmp_path), "--format", "csv",
        "--partition-by", "dt, tag", "--body", "text", "--start", "-1h", "--master", "local[1]",
        "--compact", "--file-mib", "7", "--verify", "--accept-loss", "--token-file", str(token),
        "--tls-ca", str(authority), bootstrap="https://h:1",
    )  # fmt: skip

    assert outcome.exit_code == 0, outcome.stderr
    [work] = works
    assert work.order.to == tmp_path
    assert (work.order.format, work.order.body) == ("csv", "text")
    assert work.order.partition_by == ("dt", "tag")
    assert work.order.options == {
        "endpoints": "https://h:1",
        "topics": "a,b",
        "startingOffsets": "-1h",
        "failOnDataLoss": "false",
        "retryTimeoutMs": "30000",
        "tokenFile": str(token),
        "tlsCa": str(authority),
    }
    assert (work.master, work.file_bytes) == ("local[1]", 7 * 1024 * 1024)
    assert work.is_compact
    assert work.is_verify


def say(*more: str) -> tuple[int, str, str]:
    found = run_command("export", "--topic", "a", "--to", "/data/out", *more, bootstrap="h:1")
    return found.exit_code, found.stdout, found.stderr


def test_summary_is_a_line_of_figures(ordered: Callable[..., Given]) -> None:
    ordered()
    assert say() == (
        0,
        "batch 3: 1,500 rows, 4 files, 2.0 MB in 2.0 s (1 MB/s); 4,500 rows are in /data/out\n",
        "",
    )

    ordered(batch=None, rows=0)
    assert say()[1] == "nothing new; 4,500 rows are in /data/out\n"


def test_summary_tells_what_was_resumed_lost_compacted_and_verified(
    ordered: Callable[..., Given],
) -> None:
    ordered(
        is_resumed=True, lost_rows=12, compacted_files=2, verified_rows=4500, compared_rows=4000,
        faults=[],
    )  # fmt: skip
    code, said, _ = say()

    assert code == 0
    assert "batch 3, begun by an earlier run: 1,500 rows" in said
    assert "12 rows were deleted before they were exported" in said
    assert "compacted into 2 files" in said
    assert "verified: 4,500 rows, each offset once; 4,000 compared with the brokers" in said


def test_summary_for_programs_is_one_document(ordered: Callable[..., Given]) -> None:
    ordered()

    assert orjson.loads(say("--json")[1]) == SUMMARY


def test_faults_end_with_1(ordered: Callable[..., Given]) -> None:
    ordered(faults=["part-1 is missing"], verified_rows=0, compared_rows=0)

    code, _, said = say()

    assert code == 1
    assert "the export is not what was sent, 1 faults: part-1 is missing" in said
