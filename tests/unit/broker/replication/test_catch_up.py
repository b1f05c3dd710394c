"""The pump of a master: what it sends to replicas that are behind, over real sockets."""

from typing import Any

import pytest
from tests.support.replication.builders import a_view
from tests.support.replication.nodes import Group, eventually

from paceline.platform.runtime import SeededRandom
from paceline.types import PhysicalOffset
from paceline_broker.replication.master.catch_up_pace import CatchUpPace
from paceline_broker.replication.master.ports import TermSettings

OF_TWO = frozenset({1, 2})


async def test_pages_of_a_cold_log_are_brought_in_before_anything_looks_at_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sizes stand in the batches: to cut a piece is to touch its pages, and the loop would wait."""
    async with Group() as group:
        late = group.replicas.pop()
        await group.form(a_view(sync_state_set=OF_TWO))
        for number in range(100):
            group.master.send(bytes([number]) * 1000)
        log = group.master.log
        await eventually(lambda: log.confirm == log.end)
        disk: Any = log._disk
        cold = {id(segment.view.obj) for segment in _mapped(log)}
        disk._cold.update(cold)
        touched: list[int] = []
        read_raw = log.read_raw

        def spy(start: PhysicalOffset, *arguments: Any) -> memoryview:
            if log.is_cold(log.read(start, 1)):
                touched.append(start)
            return read_raw(start, *arguments)

        monkeypatch.setattr(log, "read_raw", spy)
        group.replicas.append(late)
        late.follow(group.master.port)

        await eventually(group.is_equal)

        assert cold
        assert not disk._cold
        assert not touched


def _mapped(log: Any) -> list[Any]:
    for start in log._segments.firsts:
        log.read(start, 1)  # maps the segment
    return [segment for segment in log._segments._segments if segment.view is not None]


async def test_who_is_far_behind_keeps_to_the_pace_until_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paced: list[int] = []
    wait_ms = CatchUpPace.wait_ms

    def spy(pace: CatchUpPace, size_bytes: int, now_ms: int) -> float:
        waits = wait_ms(pace, size_bytes, now_ms)
        if waits == 0:
            paced.append(size_bytes)
        return waits

    counted: list[int] = []
    monkeypatch.setattr(CatchUpPace, "wait_ms", spy)
    monkeypatch.setattr(CatchUpPace, "spent", lambda _, size, loop_s: counted.append(size))
    settings = TermSettings(
        tick_ms=20, heartbeat_ms=40, window_bytes=8192, catch_up_frame_bytes=2048
    )
    async with Group() as group:
        late = group.replicas.pop()
        await group.form(a_view(sync_state_set=OF_TWO), settings=settings)
        for number in range(50):
            group.master.send(bytes([number]) * 1000)
        await eventually(group.is_equal)
        paced.clear()
        group.replicas.append(late)
        late.follow(group.master.port)
        await eventually(group.is_equal)
        far_bytes = sum(paced)
        paced.clear()

        group.master.send(*(bytes([number]) * 1000 for number in range(5)))
        await eventually(group.is_equal)

        assert far_bytes == group.replicas[0].log.end - _sizes(group, last=5)
        assert not paced  # a moment behind is not far
        assert sum(counted) >= far_bytes  # what its pieces took of the loop's time


def _sizes(group: Group, *, last: int) -> int:
    batches = [len(batch) for _, batch in group.master.log.batches(PhysicalOffset(0))]
    return sum(batches[-last:])


async def test_a_replica_goes_on_where_it_was_when_the_master_changes_in_the_middle() -> None:
    """What it has below the divergence point stays: another master sends the rest, not all."""
    random = SeededRandom("middle")
    settings = TermSettings(tick_ms=20, heartbeat_ms=40, window_bytes=4096)
    async with Group() as first, Group() as second:
        late = first.replicas.pop()
        await first.form(a_view(sync_state_set=OF_TWO), settings=settings)
        for _ in range(60):
            first.master.send(random.token(2000))
        await eventually(first.is_equal)
        late.flushes = False  # so the window ends it in the middle
        client = late.follow(first.master.port)
        await eventually(lambda: late.log.end > settings.window_bytes)
        await client.stop()
        had = late.log.flush_now()
        assert had < first.master.log.end
        late.flushes = True

        second.master.log = first.replicas[0].log
        await first.replicas[0].client.stop()  # type: ignore[union-attr]
        second.replicas = [late]
        term = second.master.lead(a_view(epoch=4, sync_state_set=frozenset({1}), minimum=1))
        appended: list[int] = []
        append_raw = late.log.append_raw

        def spy(position: PhysicalOffset, data: Any) -> PhysicalOffset:
            appended.append(position)
            return append_raw(position, data)

        late.log.append_raw = spy  # type: ignore[method-assign]
        late.follow(second.master.port, epoch=4)

        await eventually(second.is_equal)
        assert term.confirm == late.log.end
        assert late.truncations == []
        assert min(appended) == had
