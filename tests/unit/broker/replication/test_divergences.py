"""An old master comes back as a replica, whatever its log became: logs equal below confirm (INV-3).

Each row is two histories, the present master's and that of the one who returns: (epoch, bodies)
after (epoch, bodies), then a power cut in the middle of the replica's truncation or none.
"""

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from tests.support.replication.builders import a_view
from tests.support.replication.nodes import (
    SEGMENT_BYTES,
    Group,
    ReplicaNode,
    a_batch,
    append,
    append_start,
    content,
    eventually,
)

from paceline.platform.disk_memory import MemoryDisk, PowerLost
from paceline.platform.runtime import SeededRandom
from paceline.types import PhysicalOffset
from paceline_broker.log.commit_log import CommitLog
from paceline_broker.log.epochs import EpochTable
from paceline_broker.replication.handshake import divergence_point

Part = tuple[int, Sequence[bytes]]
BIG = b"x" * (SEGMENT_BYTES // 3)
NEXT_EPOCH = 20


class Row(NamedTuple):
    """Parts of the same epoch hold the same batches up to the shorter one's end (R1)."""

    name: str
    master: tuple[Part, ...]
    returning: tuple[Part, ...]
    common: int
    """Batches, epoch starts included, that both hold: what may be confirmed."""


ROWS = [
    Row("nothing-at-all", ((1, [b"a"]),), (), 0),
    Row("wiped", ((1, [b"a", b"b"]), (4, [b"c"])), (), 0),
    Row("behind", ((1, [b"a", b"b", b"c"]),), ((1, [b"a"]),), 2),
    Row(
        "several-epochs-behind",
        ((1, [b"a"]), (3, [b"b"]), (5, []), (8, [b"c"])),
        ((1, [b"a"]),),
        2,
    ),
    Row("longer-in-its-own-epoch", ((1, [b"a"]),), ((1, [b"a", b"lost", b"lost too"]),), 2),
    Row("one-empty-epoch", ((1, [b"a"]), (3, [b"b"])), ((1, [b"a"]), (2, [])), 2),
    Row(
        "empty-epochs-on-both-sides",
        ((1, [b"a"]), (4, []), (6, []), (7, [b"b"])),
        ((1, [b"a"]), (2, []), (3, []), (5, [])),
        2,
    ),
    Row(
        "longer-than-the-master-in-another-epoch",
        ((1, [b"a"]), (3, [b"b"])),
        ((1, [b"a", b"own"]), (2, [BIG, BIG, BIG, BIG, BIG])),
        2,
    ),
    Row(
        "fell-twice",
        ((1, [b"a", b"b"]), (4, [b"c"]), (9, [b"d"])),
        ((1, [b"a", b"b"]), (4, [b"c", b"own"]), (5, [b"own"]), (7, [])),
        5,
    ),
    Row("no-epoch-in-common", ((2, [b"a"]),), ((1, [b"own"]),), 0),
    Row("a-stale-copy", ((1, [BIG] * 9), (2, [BIG] * 3)), ((1, [BIG] * 2),), 3),
]


def _write(log: CommitLog, parts: Sequence[Part]) -> None:
    for epoch, bodies in parts:
        append_start(log, epoch)
        for body in bodies:
            append(log, a_batch(body), epoch)
            log.write_pending()
    log.flush_now()


def _open(disk: MemoryDisk) -> CommitLog:
    return CommitLog.open(disk, "log", segment_size_bytes=SEGMENT_BYTES)[0]


def _end_of(log: CommitLog, count: int) -> PhysicalOffset:
    """Of the first `count` batches."""
    ends = [PhysicalOffset(h.physical_offset + h.size_bytes) for h, _ in log.batches(log.start)]
    return ends[count - 1] if count else PhysicalOffset(0)


async def _comes_back(row: Row, returning: CommitLog) -> None:
    async with Group(replicas=()) as group:
        log = group.master.log
        _write(log, row.master)
        confirm = _end_of(log, row.common)
        log.set_confirm(confirm)
        assert content(log)[:confirm] == content(returning)[:confirm]
        returning.set_confirm(confirm)
        replica = ReplicaNode(2, log=returning)
        group.replicas.append(replica)

        await group.form(a_view(epoch=NEXT_EPOCH, sync_state_set=frozenset({1, 2})))
        group.master.send(b"after", BIG)
        await eventually(group.is_equal)

        assert replica.stop_reason is None
        assert returning.epochs == log.epochs
    returning.close()


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
async def test_an_old_master_comes_back_from(row: Row) -> None:
    disk = MemoryDisk()
    returning = _open(disk)
    _write(returning, row.returning)

    await _comes_back(row, returning)

    again = _open(disk)
    assert again.damage is None
    assert again.epochs.last_epoch == NEXT_EPOCH


@pytest.mark.parametrize("survival", [0.0, 0.5, 1.0])
async def test_a_crash_in_the_middle_of_its_truncation_is_one_more_divergence(
    survival: float,
) -> None:
    """R25."""
    row = next(row for row in ROWS if row.name == "longer-than-the-master-in-another-epoch")
    has_ended = False
    for fuse in range(0, 40, 3):
        disk = MemoryDisk()
        log = _open(disk)
        _write(log, row.returning)
        common = _end_of(log, row.common)
        disk.fuse = fuse
        try:
            log.truncate_to(common)
            has_ended = True
        except PowerLost:
            pass
        disk.crash(SeededRandom(f"{fuse}"), keep_page_cache=False, survival=survival)
        returning = _open(disk)
        assert returning.damage is None, fuse
        assert returning.end >= common

        await _comes_back(row, returning)
    assert has_ended, "the last fuses must outlive the truncation"


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_both_sides_find_the_same_parting_point(row: Row) -> None:
    """At or above what both hold, whoever computes it; the whole log when it is a prefix."""
    here, there = _open(MemoryDisk()), _open(MemoryDisk())
    _write(here, row.master)
    _write(there, row.returning)

    point = divergence_point(
        here=here.epochs,
        here_start=here.start,
        here_end=here.end,
        there=there.epochs,
        there_start=there.start,
        there_end=there.end,
    )
    mirrored = divergence_point(
        here=there.epochs,
        here_start=there.start,
        here_end=there.end,
        there=here.epochs,
        there_start=here.start,
        there_end=here.end,
    )

    assert point == mirrored == _end_of(here, row.common)


def test_a_log_above_0_without_a_common_epoch_parts_nowhere() -> None:
    """R5."""
    point = divergence_point(
        here=EpochTable.of([(2, 0)]),
        here_start=PhysicalOffset(4096),
        here_end=PhysicalOffset(9000),
        there=EpochTable.of([(1, 0)]),
        there_start=PhysicalOffset(0),
        there_end=PhysicalOffset(500),
    )

    assert point is None
