"""The export: increments, kill -9, compaction, verification, and what must be refused."""

import contextlib
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest
from tests.process.harness import paceline_command
from tests.spark.programs import Running, kill_when
from tests.spark.topics import Topics

TIMEOUT_S = 180


def arguments(topics: Topics, topic: str, to: Path, *more: str) -> list[str]:
    fixed = ["export", "--topic", topic, "--to", str(to), "--bootstrap", topics.endpoints]
    return paceline_command(*fixed, "--master", "local[2]", "--json", *more)


def export(topics: Topics, topic: str, to: Path, *more: str, code: int = 0) -> dict[str, Any]:
    """Run `paceline export --json`; the summary, or the problem."""
    finished = subprocess.run(
        arguments(topics, topic, to, *more),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert finished.returncode == code, finished.stderr.decode()[-3000:]
    said = finished.stdout if code == 0 else finished.stderr
    document: dict[str, Any] = orjson.loads(said.strip().splitlines()[-1])
    return document


def bodies_in(folder: Path) -> Counter[str]:
    """By a reader that knows nothing of manifests."""
    if not any((folder / "data").rglob("*.parquet")):
        return Counter()
    table = pq.read_table(folder / "data", columns=["body"])
    return Counter(bytes(body).decode() for body in table["body"].to_pylist())


def test_increments_compaction_and_verification(topics: Topics, tmp_path: Path) -> None:
    topic, to = topics.make("export"), tmp_path / "out"
    bodies = topics.fill(topic, 1500)

    first = export(topics, topic, to, "--partition-by", "dt,tag")
    bodies += topics.fill(topic, 500, first=1500)
    second = export(topics, topic, to, "--partition-by", "dt,tag", "--compact", "--verify")
    third = export(topics, topic, to, "--partition-by", "dt,tag")

    assert (first["batch"], first["rows"]) == (1, 1500)
    assert (second["batch"], second["rows"], second["total_rows"]) == (2, 500, 2000)
    assert second["faults"] == []
    assert (second["verified_rows"], second["compared_rows"]) == (2000, 2000)
    assert (third["batch"], third["rows"], third["total_rows"]) == (None, 0, 2000)
    assert bodies_in(to) == Counter(dict.fromkeys(bodies, 1))


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
    last = export(topics, topic, to, "--verify")

    assert (last["batch"], last["rows"], last["is_resumed"], last["faults"]) == (2, 6100, True, [])
    assert bodies_in(to) == Counter(dict.fromkeys(bodies, 1))


def test_what_was_changed_is_found_and_refused(topics: Topics, tmp_path: Path) -> None:
    topic, to = topics.make("export-changed"), tmp_path / "out"
    topics.fill(topic, 200)
    export(topics, topic, to, "--format", "json")
    [part] = (to / "data").rglob("part-*.json")
    lines = part.read_bytes().splitlines(keepends=True)

    part.write_bytes(b"".join(lines[1:]) + lines[1])
    changed = export(topics, topic, to, "--format", "json", "--verify", code=1)
    other = export(topics, topic, to, "--format", "csv", code=2)
    manifest = next((to / "_paceline").glob("manifest-*.json"))
    manifest.write_bytes(manifest.read_bytes()[:100])
    broken = export(topics, topic, to, "--format", "json", code=1)

    assert "is not what was sent" in changed["detail"]
    assert "begun with format 'json'" in other["detail"]
    assert manifest.name in broken["detail"]


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--topic", "nothing"], "topic nothing does not exist"),
        (["--to", "s3://bucket/x"], "local or mounted"),
        (["--partition-by", "body"], "'body' is none of"),
        (["--start", "soon"], "startingOffsets must be"),
        (["--format", "csv", "--body", "binary"], "has no binary values"),
    ],
)
def test_wrong_arguments_are_one_sentence(
    topics: Topics, tmp_path: Path, more: list[str], sentence: str
) -> None:
    topic = topics.make(f"wrong-{abs(hash(sentence)) % 10**9}")
    code = 1 if "does not exist" in sentence else 2

    problem = export(topics, topic, tmp_path / "out", *more, code=code)

    assert sentence in problem["detail"]


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
