"""Messages read back from the log: in bounded memory, whatever is asked for."""

import weakref
from dataclasses import replace
from typing import Any

import pytest
from tests.support.service.resend import resend
from tests.support.service.send import Answers
from tests.support.service.send_back import DEAD, KEY, ORDERS, a_bench, a_row, send, send_back

from paceline.errors import TooLargeError, TopicNotFoundError
from paceline.records.decode import BatchView
from paceline.records.encode import encode_batch
from paceline.records.header import Codec
from paceline.types import PhysicalOffset
from paceline_broker.ports import LogReader
from paceline_broker.service.retry import resend as resend_module
from paceline_broker.service.retry import send_back as send_back_module
from paceline_broker.service.retry import source_messages as sources_module
from paceline_broker.service.retry.source_messages import Source, Wanted


class Batches:
    """Watches which batches a reader takes from the log, and which of them it still holds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read: list[int] = []
        self.held_max = 0
        self._refs: list[weakref.ref[memoryview]] = []
        take = sources_module.read_batch

        async def batch(reader: LogReader, position: PhysicalOffset, size: int) -> BatchView:
            view = await take(reader, position, size)
            self.read.append(position)
            self._refs.append(weakref.ref(view.raw))
            self.held_max = max(self.held_max, sum(ref() is not None for ref in self._refs))
            return view

        monkeypatch.setattr(sources_module, "read_batch", batch)


async def test_each_batch_is_read_once_and_let_go_before_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = a_bench()
    for _ in range(3):
        send(bench, 2)
    batches = Batches(monkeypatch)
    wanted = [Wanted(KEY, offset) for offset in (5, 1, 3, 99, 6, 2, 4)]

    found = await bench.service.sources.read(wanted)

    offsets = [one.offset if isinstance(one, Source) else None for one in found]
    assert offsets == [5, 1, 3, None, 6, 2, 4]
    assert len(batches.read) == len(set(batches.read)) == 3
    assert batches.held_max == 1


async def test_too_much_is_refused_before_the_rest_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = a_bench()
    for _ in range(9):
        send(bench)
    rows = [a_row(offset) for offset in range(1, 10)]
    await send_back(bench, *[{**row, "delay_level": -1} for row in rows])
    for module in (send_back_module, resend_module):
        monkeypatch.setattr(module, "REQUEST_BYTES_MAX", 2 * len(b"body 0"))
    batches = Batches(monkeypatch)
    end = bench.writer.end

    with pytest.raises(TooLargeError):
        await send_back(bench, *rows)
    assert len(batches.read) == 3
    assert bench.role.projections.queue_end(DEAD << 16) == 9
    with pytest.raises(TooLargeError):
        await resend(bench, 0, 1, 2)
    assert bench.writer.end == end
    assert len(await send_back(bench, *rows[:2])) == 2, "so much may be asked"


async def test_others_have_their_turn_by_what_was_decompressed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns = 0

    async def pause(_: float) -> None:
        nonlocal turns
        turns += 1

    monkeypatch.setattr(sources_module, "pause", pause)
    bench = a_bench()
    send(bench)
    fields: dict[str, Any] = {"born_unix_ms": 1, "topic_id": ORDERS, "queue_id": 0}
    for _ in range(3):
        batch = encode_batch([b"0" * 700_000], codec=Codec.ZSTD, **fields)
        bench.service.sender.send(batch, Answers(), 0)
        bench.finish_work()
        bench.writer.confirm_all()

    await bench.service.sources.read([Wanted(KEY, offset) for offset in range(2, 5)])

    assert turns == 1


async def test_message_whose_topic_is_deleted_while_it_is_read_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R35: no retry is made of it that names no topic."""
    bench = a_bench()
    send(bench)
    view, read = bench.service.routes.view, bench.service.sources.read
    assert view is not None
    topics = {name: topic for name, topic in view.topics.items() if name != "orders"}
    gone = replace(view, version=9, topics=topics)

    async def read_slowly(*wanted: Any, **limits: Any) -> Any:
        found = await read(*wanted, **limits)
        bench.service.view_changed(gone)
        return found

    monkeypatch.setattr(bench.service.sources, "read", read_slowly)
    end = bench.writer.end

    with pytest.raises(TopicNotFoundError):
        await send_back(bench, a_row(1))
    assert bench.writer.end == end
