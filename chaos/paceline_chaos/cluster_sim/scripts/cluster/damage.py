"""A bit flips below confirm, on a replica and then on the master, or while a segment is made ahead
(R24, R25)."""

from functools import partial

from paceline.platform.disk_memory import MemoryFile
from paceline.platform.runtime import pause
from paceline_broker.log.commit_log import CommitLog
from paceline_chaos.cluster_sim.all_ack.questions import fell_silent, unseen
from paceline_chaos.cluster_sim.nodes import BrokerNode
from paceline_chaos.cluster_sim.run import Result
from paceline_chaos.cluster_sim.script import Director, Steps

REPAIRED_MS_MAX = 30_000
SEGMENT_BYTES = 64 * 1024
SPARE_MS = 2_500
"""The disk takes that long for one spare segment: longer than until damage is found and mended."""


def damaged(d: Director) -> Steps:
    """The scrubber finds it; the node is mended by a member and in the set again."""
    yield d.is_whole
    yield d.pass_ms(500)
    for node in (d.replicas[0], d.master):
        assert node.broker is not None
        care = node.broker.role.repairer
        began_us = d.stage.simulation.now_us
        d.begin("disk_flip", node.name, for_ms=1, region=1)
        d.saw("flips")
        yield partial(_is_mended, d, node, care.repaired_count)
        took_ms = (d.stage.simulation.now_us - began_us) / 1000
        d.expect(took_ms <= REPAIRED_MS_MAX, f"{node.name} was mended after {took_ms:.0f} ms")
        d.saw("repairs")
        yield d.is_whole
    d.mark("after")


def _is_mended(d: Director, node: BrokerNode, before: int) -> bool:
    """Whether there was another repair; watches what must hold as long as the log is damaged."""
    assert node.broker is not None
    role = node.broker.role
    damage = role.repairer.damage
    if damage is not None:
        d.expect(not role.is_healthy(), f"{node.name} is damaged and calls itself healthy")
        is_kept = role.reader.is_damaged(damage.position, damage.mark)
        d.expect(is_kept, f"{node.name} would serve damaged bytes")
        d.saw("damages")
    return role.repairer.repaired_count > before


def mended(result: Result) -> list[str]:
    """Both were mended without an operator, and sends went on (R24)."""
    return [
        *unseen(result, flips=2, repairs=2),
        *fell_silent(result, since="after"),
    ]


def spare_under_way(d: Director) -> Steps:
    """A replica makes its next segment ahead, and meanwhile its log is mended and opened anew."""
    yield d.is_whole
    node = d.replicas[0]
    _slow_down_spare(d, node)
    yield lambda: d.notes.seen["a spare under way"] == 1
    assert node.broker is not None
    role = node.broker.role
    commit_log = role._store.log
    d.begin("disk_flip", node.name, for_ms=1, region=1)
    yield lambda: role.repairer.repaired_count == 1 and role.flusher.is_idle
    segments_count = len(commit_log.segment_bounds())
    yield lambda: len(commit_log.segment_bounds()) > segments_count or _has_failed(commit_log)
    d.expect(not _has_failed(commit_log), f"{node.name} could not begin another segment (R25)")
    d.saw("a roll after it")
    yield d.is_whole
    d.mark("after")


def _slow_down_spare(d: Director, node: BrokerNode) -> None:
    """The next one only."""
    disk = node.disk
    create_ahead = disk.create_ahead

    async def create_slowly(path: str, size: int) -> MemoryFile:
        disk.create_ahead = create_ahead  # type: ignore[method-assign]
        file = await create_ahead(path, size)
        d.saw("a spare under way")
        await pause(SPARE_MS)
        return file

    disk.create_ahead = create_slowly  # type: ignore[method-assign]


def _has_failed(commit_log: CommitLog) -> bool:
    return commit_log.failure is not None and commit_log.damage is None


def rolled_on(result: Result) -> list[str]:
    """What a repair has unlinked is no log's next segment (R25)."""
    return [
        *unseen(result, a_spare_under_way=1, a_roll_after_it=1),
        *fell_silent(result, since="after"),
    ]
