"""The export's folder: what is remembered, what a cut-short run leaves, what is refused."""

import os
from pathlib import Path

import orjson
import pytest
from tests.support.spark.offsets import queue

from paceline.errors import BadRequestError, ConflictError, CorruptLogError, StorageError
from paceline.spark.export.counts import QueueCount, check_counts
from paceline.spark.export.folder import ExportFolder, files_below
from paceline.spark.export.protocol import (
    ExportedFile,
    Intent,
    Layout,
    Lost,
    Manifest,
    manifest_of,
    merged,
    next_offsets,
    seal,
)
from paceline.spark.export.run import finish_compaction

LAYOUT = Layout(
    cluster_id="c", topics={"t": 1}, format="parquet", partition_by=("dt",), body="binary"
)
Q = queue("t", 0)


def an_intent(number: int, start: int, end: int) -> Intent:
    return Intent(number=number, layout=LAYOUT, start={Q: start}, end={Q: end})


def written(folder: ExportFolder, number: int, start: int, end: int) -> Manifest:
    """A batch that was exported."""
    batch = folder.batch(number)
    batch.mkdir(parents=True)
    (batch / "part-0.parquet").write_bytes(b"x" * (end - start))
    manifest = manifest_of(an_intent(number, start, end), files_below(batch))
    folder.add_manifest(manifest)
    return manifest


def test_intent_and_manifests_come_back_as_they_were(tmp_path: Path) -> None:
    folder = ExportFolder(tmp_path / "out")
    with folder.locked():
        folder.begin(an_intent(3, 5, 9))
        first = written(folder, 1, 0, 3)
        second = written(folder, 2, 3, 5)

        assert folder.intent() == an_intent(3, 5, 9)
        assert folder.manifests() == [first, second]
        assert next_offsets(folder.manifests()) == {Q: 5}
        folder.end_intent()
        assert folder.intent() is None


def test_two_exports_cannot_share_a_folder(tmp_path: Path) -> None:
    folder = ExportFolder(tmp_path)

    with folder.locked(), pytest.raises(ConflictError), ExportFolder(tmp_path).locked():
        pass


def test_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("dear")

    with pytest.raises(BadRequestError, match=r"letters\.txt"), ExportFolder(tmp_path).locked():
        pass


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "version"])
def test_broken_manifest_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    folder = ExportFolder(tmp_path)
    with folder.locked():
        written(folder, 1, 0, 3)
        path = tmp_path / "_paceline" / "manifest-00000001.json"
        raw = path.read_bytes()
        match damage:
            case "cut":
                path.write_bytes(raw[: len(raw) // 2])
            case "flip":
                path.write_bytes(raw.replace(b'"0": 3', b'"0": 2'))
            case "empty":
                path.write_bytes(b"")
            case _:
                content = {**orjson.loads(raw)["content"], "version": 9}
                path.write_bytes(seal(content))

        with pytest.raises(CorruptLogError, match="manifest-00000001"):
            folder.manifests()


def test_gap_between_manifests_is_refused(tmp_path: Path) -> None:
    folder = ExportFolder(tmp_path)
    with folder.locked():
        written(folder, 1, 0, 3)
        written(folder, 2, 3, 5)
        written(folder, 3, 5, 8)
        (tmp_path / "_paceline" / "manifest-00000002.json").unlink()

        with pytest.raises(CorruptLogError, match="batch 2 is missing"):
            folder.manifests()


def test_overlap_between_manifests_is_refused(tmp_path: Path) -> None:
    folder = ExportFolder(tmp_path)
    with folder.locked():
        written(folder, 1, 0, 3)
        written(folder, 2, 2, 5)

        with pytest.raises(CorruptLogError, match="begins at 2"):
            folder.manifests()


def test_published_batch_appears_whole_and_staging_goes(tmp_path: Path) -> None:
    folder = ExportFolder(tmp_path)
    with folder.locked():
        folder.clear_staging()
        staged = folder.staged(1) / "dt=2026-01-01"
        staged.mkdir(parents=True)
        (staged / "part-0.parquet").write_bytes(b"abc")
        (staged / "_SUCCESS").touch()
        (staged / ".part-0.parquet.crc").touch()
        assert list(folder.data.iterdir()) == []

        folder.publish(1)

        assert files_below(folder.batch(1)) == (
            ExportedFile(path="dt=2026-01-01/part-0.parquet", size_bytes=3),
        )
        folder.drop_staging()
        assert not folder.staging.exists()


def test_full_disk_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28), str(tmp_path))

    folder = ExportFolder(tmp_path)
    with folder.locked():
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match="is full: make room"):
            folder.begin(an_intent(1, 0, 3))
        monkeypatch.undo()

        assert folder.intent() is None


def compacting(folder: ExportFolder) -> tuple[Manifest, Path]:
    """Three batches, and their compaction as it is right before the folders change places."""
    manifests = [written(folder, number, 3 * number - 3, 3 * number) for number in (1, 2, 3)]
    folder.clear_staging()
    target = folder.staging / "data"
    (target / folder.batch(3).name).mkdir(parents=True)
    (target / folder.batch(3).name / "part-9.parquet").write_bytes(b"y" * 9)
    folder.begin_compaction(1, 3)
    return merged(manifests, (ExportedFile(path="part-9.parquet", size_bytes=9),)), target


def test_compaction_that_was_not_put_in_place_is_forgotten(tmp_path: Path) -> None:
    folder = ExportFolder(tmp_path)
    with folder.locked():
        compacting(folder)

        assert finish_compaction(folder) is None

        assert len(folder.manifests()) == 3
        assert folder.compaction() is None
        assert folder.batch(1).exists()


def test_compaction_that_was_put_in_place_is_noted_by_the_next_run(tmp_path: Path) -> None:
    folder = ExportFolder(tmp_path)
    with folder.locked():
        whole, target = compacting(folder)
        folder.exchange_data(target)

        assert finish_compaction(folder) == whole

        assert folder.manifests() == [whole]
        assert (whole.first_number, whole.number, whole.rows) == (1, 3, 9)
        assert [path.name for path in folder.data.iterdir()] == ["batch=00000003"]


def test_manifests_left_by_a_cut_short_note_do_not_count_twice(tmp_path: Path) -> None:
    folder = ExportFolder(tmp_path)
    with folder.locked():
        whole, target = compacting(folder)
        folder.exchange_data(target)
        folder.add_manifest(whole)  # and then the process ended

        assert folder.manifests() == [whole]
        after = written(folder, 4, 9, 12)
        assert folder.manifests() == [whole, after]


def test_counts_find_what_is_missing_double_or_foreign() -> None:
    pieces = [(Q, 10, 14)]
    check_counts(pieces, {Q: QueueCount(4, 10, 13, 46)})
    check_counts([(Q, 5, 5)], {})
    for wrong in (
        {},
        {Q: QueueCount(3, 10, 13, 35)},
        {Q: QueueCount(4, 10, 13, 45)},
        {Q: QueueCount(4, 9, 13, 46)},
        {Q: QueueCount(4, 10, 13, 46), queue("t", 1): QueueCount(1, 0, 0, 0)},
    ):
        with pytest.raises(CorruptLogError):
            check_counts(pieces, wrong)


def with_loss(folder: ExportFolder, number: int, lost: Lost, end: int) -> Manifest:
    """A batch that begins where a loss ends."""
    batch = folder.batch(number)
    batch.mkdir(parents=True)
    intent = Intent(number=number, layout=LAYOUT, start={Q: lost.end}, end={Q: end}, lost=(lost,))
    folder.begin(intent)
    assert folder.intent() == intent
    manifest = manifest_of(intent, ())
    folder.add_manifest(manifest)
    return manifest


def test_loss_that_was_accepted_is_no_gap_and_counts_as_no_row(tmp_path: Path) -> None:
    folder = ExportFolder(tmp_path / "out")
    with folder.locked():
        first = written(folder, 1, 0, 3)
        second = with_loss(folder, 2, Lost(Q, 3, 10), 12)
        third = with_loss(folder, 3, Lost(Q, 12, 20), 20)

        assert folder.manifests() == [first, second, third]
        assert next_offsets(folder.manifests()) == {Q: 20}
        assert (second.rows, third.rows) == (2, 0)
        whole = merged(folder.manifests(), ())
        assert whole.rows == 5
        folder.add_manifest(whole)
        folder.drop_manifests(first=1, below=3)
        assert folder.manifests() == [whole]
        fourth = written(folder, 4, 20, 21)
        assert merged(folder.manifests(), ()).rows == whole.rows + fourth.rows

    check_counts(whole.pieces(), {Q: QueueCount(5, 0, 11, 0 + 1 + 2 + 10 + 11)})
    with pytest.raises(CorruptLogError, match="4 rows were written for the 5"):
        check_counts(whole.pieces(), {Q: QueueCount(4, 0, 11, 13)})


def test_loss_that_nobody_accepted_is_a_gap(tmp_path: Path) -> None:
    folder = ExportFolder(tmp_path / "out")
    with folder.locked():
        written(folder, 1, 0, 3)
        with_loss(folder, 2, Lost(Q, 3, 10), 12)
        with_loss(folder, 3, Lost(Q, 11, 20), 21)

        with pytest.raises(CorruptLogError, match="begins at 20 .* end at 12"):
            folder.manifests()


def test_torn_list_of_losses_is_refused(tmp_path: Path) -> None:
    folder = ExportFolder(tmp_path / "out")
    with folder.locked():
        written(folder, 1, 0, 3)
        path = tmp_path / "out/_paceline/manifest-00000001.json"
        content = {**orjson.loads(path.read_bytes())["content"], "lost": [["t", "g1", 0, 1]]}
        path.write_bytes(seal(content))

        with pytest.raises(CorruptLogError, match="lost must be"):
            folder.manifests()
