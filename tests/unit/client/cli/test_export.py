"""`paceline export`: what its arguments order, and what it says of the outcome. Runs no Spark."""

import io
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.unit.client.cli.conftest import run_command

from paceline.cli import export
from paceline.cli import main as cli
from paceline.cli.profiles import Profile, write_profile
from paceline.spark import submit
from paceline.spark.export import command as spark_command
from paceline.spark.export.command import Tasks, Work

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


def test_arguments_of_the_application_are_the_same_order(
    ordered: Callable[..., Given], tmp_path: Path
) -> None:
    """`paceline export` and the spark-submit application differ in who names the master."""
    works = ordered()
    arguments = [
        "--topic", "a,b", "--to", str(tmp_path), "--format", "csv", "--partition-by", "dt, tag",
        "--body", "text", "--start", "-1h", "--compact", "--file-mib", "7", "--verify",
        "--accept-loss", "--token-file", str(tmp_path / "token"), "--tls-ca", "ca.pem",
    ]  # fmt: skip

    run_command("export", *arguments, bootstrap="https://h:1")
    found = submit.parse(["--bootstrap", "https://h:1", *arguments])

    [work] = works
    options = {key: work.order.options[key] for key in work.order.options if "retry" not in key}
    assert found.order == replace(work.order, options=options)
    assert found == replace(work, master=None, order=found.order)


def test_an_access_key_goes_to_spark_by_the_environment(
    ordered: Callable[..., Given], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one of a profile: as an option it would stand in plans."""
    works = ordered()
    keyed = {"PACELINE_ACCESS_KEY": "pk1", "PACELINE_SECRET_KEY": "sk_1"}
    for name in keyed:
        monkeypatch.setenv(name, "")  # and as it was afterwards
    write_profile(
        tmp_path, "default", Profile(bootstrap="h:1", access_key="pk1", secret_key="sk_1")
    )

    outcome = run_command(
        "export", "--topic", "a", "--to", str(tmp_path / "to"), "--namespace", "shop",
        bootstrap="h:1",
        environment={
            "PACELINE_CONFIG_DIR": str(tmp_path),
            "PACELINE_TLS_CA": "/ca.pem",
            "PACELINE_TLS_CERT": "/c.pem",
        },
    )  # fmt: skip

    assert outcome.exit_code == 0, outcome.stderr
    assert {name: os.environ[name] for name in keyed} == keyed
    [work] = works
    assert "sk_1" not in str(work)
    options = work.order.options
    assert (options["namespace"], options["tlsCa"], options["tlsCert"]) == (
        "shop", "/ca.pem", "/c.pem"
    )  # fmt: skip


@pytest.mark.parametrize("to", ["s3://bucket/out", "hdfs://name/out"])
def test_object_stores_are_refused_by_both(
    ordered: Callable[..., Given], capsys: pytest.CaptureFixture[str], to: str
) -> None:
    works = ordered()

    outcome = run_command("export", "--topic", "a", "--to", to, bootstrap="h:1")
    code = submit.main(["--bootstrap", "h:1", "--topic", "a", "--to", to])

    assert (outcome.exit_code, code, works) == (2, 2, [])
    assert "--to must be a folder of a local or mounted file system" in outcome.stderr
    assert "--to must be a folder of a local or mounted file system" in capsys.readouterr().err


@pytest.mark.parametrize("size", ["0", "65537"])
def test_size_of_files_is_checked_by_both(capsys: pytest.CaptureFixture[str], size: str) -> None:
    arguments = ["--topic", "a", "--to", "/data/out", "--file-mib", size]

    outcome = run_command("export", *arguments, bootstrap="h:1")
    with pytest.raises(SystemExit) as refusal:
        submit.parse(["--bootstrap", "h:1", *arguments])

    assert (outcome.exit_code, refusal.value.code) == (2, 2)
    assert "--file-mib" in outcome.stderr
    assert "--file-mib" in capsys.readouterr().err


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, *more: str) -> str:
    """What an export writes on a terminal's stderr; its work is two steps, the first with tasks."""

    def run(work: Work, *, tell: Callable[[str], None], tasks: Tasks) -> dict[str, Any]:
        tell("batch 3: writing 1,500 rows")
        tasks(3, 8)
        tell("batch 3: counting what was written")
        return SUMMARY

    screen = _Terminal()
    monkeypatch.setattr(spark_command, "run_export", run)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("PACELINE_BOOTSTRAP", "h:1")
    assert cli.main(["export", "--topic", "a", "--to", "/data/out", *more]) == 0
    return screen.getvalue()


def test_progress_is_shown_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = on_a_terminal(monkeypatch)

    assert "batch 3: counting what was written" in shown
    last = shown[shown.rindex("batch 3: counting") :]
    assert "0/?" in last, "a step whose tasks are not known yet shows those of the one before"
    assert capsys.readouterr().out.startswith("batch 3: 1,500 rows, 4 files, 2.0 MB in 2.0 s")


def test_tasks_of_a_step_are_counted_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = _Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")

    with export._Shown(is_silent=False) as shown:
        shown.tell("batch 3: writing 1,500 rows")
        shown.tasks(3, 8)

    last = screen.getvalue()[screen.getvalue().rindex("batch 3: writing 1,500 rows") :]
    assert "3/8" in last


def test_programs_get_no_progress_even_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert on_a_terminal(monkeypatch, "--json") == ""
    assert orjson.loads(capsys.readouterr().out) == SUMMARY


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
