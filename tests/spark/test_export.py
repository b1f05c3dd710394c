"""The export: increments, formats, kill -9, compaction, verification, and what must be refused."""

import contextlib
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.spark.exports import TIMEOUT_S, arguments, bodies_in, export, run_export
from tests.spark.programs import Running, kill_when
from tests.spark.topics import Topics

from paceline.errors import BadRequestError


def test_increments_compaction_and_verification(spark: Any, topics: Topics, tmp_path: Path) -> None:
    topic, to = topics.make("export"), tmp_path / "out"
    bodies = topics.fill(topic, 1500)
    by: dict[str, Any] = {"partition_by": ("dt", "tag")}

    first = export(spark, topics, topic, to, **by)
    bodies += topics.fill(topic, 500, first=1500)
    second = export(spark, topics, topic, to, is_compact=True, is_verify=True, **by)
    third = export(spark, topics, topic, to, **by)

    assert (first["batch"], first["rows"]) == (1, 1500)
    assert (second["batch"], second["rows"], second["total_rows"]) == (2, 500, 2000)
    assert second["faults"] == []
    assert (second["verified_rows"], second["compared_rows"]) == (2000, 2000)
    assert (third["batch"], third["rows"], third["total_rows"]) == (None, 0, 2000)
    assert bodies_in(to) == Counter(dict.fromkeys(bodies, 1))


@pytest.mark.parametrize(
    ("file_format", "body", "partition_by"),
    [
        ("csv", "text", ("hour", "queue_id")),
        ("csv", "base64", ()),
        ("json", "text", ("topic",)),
        ("parquet", "text", ("broker_group", "tag")),
    ],
)
def test_every_format_gives_back_what_was_sent(
    spark: Any,
    topics: Topics,
    tmp_path: Path,
    file_format: str,
    body: str,
    partition_by: tuple[str, ...],
) -> None:
    """`--verify` compares bodies, keys, tags and properties with the brokers'."""
    topic = topics.make(f"export-{file_format}-{body}")
    topics.fill(topic, 300)
    order: dict[str, Any] = {"format": file_format, "body": body, "partition_by": partition_by}

    done = export(spark, topics, topic, tmp_path / "out", is_verify=True, **order)

    assert (done["rows"], done["faults"], done["compared_rows"]) == (300, [], 300)
    assert list((tmp_path / "out/data").rglob(f"part-*.{file_format}"))


def test_export_killed_at_random_moments_is_finished_exactly_once(
    topics: Topics, tmp_path: Path
) -> None:
    """Killed while Spark writes, and while what it wrote is counted; readers see whole batches."""
    topic, to = topics.make("export-killed"), tmp_path / "out"
    bodies = topics.fill(topic, 6000, size=300)
    master = topics.master()
    moments = [
        lambda: any((to / "_staging").rglob("*.parquet")),
        lambda: any((to / "_staging").rglob("_SUCCESS")),
    ]
    for is_time in moments:
        with contextlib.closing(Running(arguments(topics, topic, to))) as running:
            assert kill_when(running, is_time)
        assert bodies_in(to) == Counter()
    topics.kill(master)
    bodies += topics.fill(topic, 100, first=6000)
    last = run_export(topics, topic, to, "--verify")

    assert (last["batch"], last["rows"], last["is_resumed"], last["faults"]) == (2, 6100, True, [])
    assert bodies_in(to) == Counter(dict.fromkeys(bodies, 1))


def test_what_was_changed_is_found_and_refused(spark: Any, topics: Topics, tmp_path: Path) -> None:
    topic, to = topics.make("export-changed"), tmp_path / "out"
    topics.fill(topic, 200)
    export(spark, topics, topic, to, format="json")
    [part] = (to / "data").rglob("part-*.json")
    lines = part.read_bytes().splitlines(keepends=True)

    part.write_bytes(b"".join(lines[1:]) + lines[1])
    changed = run_export(topics, topic, to, "--format", "json", "--verify", code=1)
    other = run_export(topics, topic, to, "--format", "csv", code=2)
    manifest = next((to / "_paceline").glob("manifest-*.json"))
    manifest.write_bytes(manifest.read_bytes()[:100])
    broken = run_export(topics, topic, to, "--format", "json", code=1)

    assert "is not what was sent" in changed["detail"]
    assert "begun with format 'json'" in other["detail"]
    assert f"{manifest} is broken" in broken["detail"]
    assert "restore it from a copy" in broken["detail"]


def test_topic_that_was_made_again_is_another_one(
    spark: Any, topics: Topics, tmp_path: Path
) -> None:
    topic, to = topics.make("export-again"), tmp_path / "out"
    topics.fill(topic, 50)
    export(spark, topics, topic, to)
    topics.drop(topic)
    topics.make(topic)
    topics.fill(topic, 60)

    with pytest.raises(BadRequestError, match="deleted and made again .* to another folder"):
        export(spark, topics, topic, to)

    assert bodies_in(to).total() == 50


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--topic", "nothing"], "topic nothing does not exist; create it with"),
        (["--to", "s3://bucket/x"], "local or mounted"),
        (["--partition-by", "body"], "'body' is none of"),
        (["--start", "soon"], "startingOffsets must be"),
        (["--format", "csv", "--body", "binary"], "has no binary values"),
        (["--token-file", "/nowhere/token"], "tokenFile: /nowhere/token cannot be read"),
    ],
)
def test_wrong_arguments_are_one_sentence_before_spark_starts(
    topics: Topics, tmp_path: Path, more: list[str], sentence: str
) -> None:
    code = 1 if "does not exist" in sentence else 2

    problem = run_export(topics, "missing", tmp_path / "out", *more, code=code)

    assert sentence in problem["detail"]
    assert not (tmp_path / "out").exists()


def test_full_disk_is_told_and_nothing_half_done_is_seen(topics: Topics, tmp_path: Path) -> None:
    """A file system of 48 KiB in a mount namespace of its own."""
    topic = topics.make("export-full")
    topics.fill(topic, 9000)
    small = tmp_path / "small"
    small.mkdir()
    command = " ".join(arguments(topics, topic, small / "out"))
    script = f"mount -t tmpfs -o size=48k none {small} && {command}; echo $?; ls {small}/out/data"
    finished = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", script],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )

    assert finished.stdout.split() == [b"1"], finished.stderr.decode()[-2000:]
    assert b"is full: make room" in finished.stderr
