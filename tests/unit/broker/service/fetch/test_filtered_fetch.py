"""Fetches with filters: whole batches are passed over, and the asker is told how far."""

from collections.abc import Generator
from typing import Any

import pytest
from tests.support.askers import ANYBODY
from tests.support.http.door import a_batch
from tests.support.service.fakes import Bench, until
from tests.support.service.fetch import Fetches
from tests.support.service.filtered_fetch import a_filter, send
from tests.support.service.send import Answers

from paceline.errors import BadRequestError
from paceline.wire.stream import FetchCode, FetchQueue
from paceline_broker.service.fetch import fetch, filters


def ask(bench: Bench, sink: Fetches, *rows: FetchQueue, wait_ms: int = 0) -> None:
    bench.service.fetcher.fetch(
        rows, wait_ms=wait_ms, max_bytes=1 << 20, min_bytes=1, sink=sink, request_id=1
    )


async def test_batches_without_anything_wanted_are_left_out() -> None:
    bench, sink = Bench(), Fetches()
    for tags in (["red"], ["blue", None], ["red", "blue"], ["blue"]):
        send(bench, *tags)
    await until(lambda: bench.log.confirm == bench.log.end)

    ask(bench, sink, FetchQueue(1, 0, 0, 1 << 20, await a_filter(bench, "red || green")))

    [part] = sink.answers[1].parts
    assert sink.counts() == 2
    assert (part.end, part.next_offset) == (6, 6)
    assert part.size == sink.answers[1].size_bytes == sum(map(len, sink.answers[1].buffers))


async def test_a_long_poll_passes_over_what_is_not_wanted_and_goes_on_waiting() -> None:
    bench, sink = Bench(), Fetches()
    number = await a_filter(bench, "n > 5", "SQL92")
    send(bench, "red")
    ask(bench, sink, FetchQueue(1, 0, 0, 1 << 20, number), wait_ms=5_000)

    for _ in range(3):
        send(bench, "red")
        await until(lambda: bench.log.confirm == bench.log.end)
    assert not sink.answers
    wanted = a_batch(b"x", properties=[{"n": "6"}])
    bench.service.sender.send(wanted, Answers(), 0)
    await until(lambda: 1 in sink.answers)

    [part] = sink.answers[1].parts
    assert (sink.counts(), part.next_offset) == (1, 5)


async def test_at_the_end_of_a_wait_the_asker_is_told_how_far_was_looked() -> None:
    bench, sink = Bench(), Fetches()
    number = await a_filter(bench, "blue")
    send(bench, "red", "red")
    await until(lambda: bench.log.confirm == bench.log.end)

    ask(bench, sink, FetchQueue(1, 0, 0, 1 << 20, number), wait_ms=30)
    await until(lambda: 1 in sink.answers)

    [part] = sink.answers[1].parts
    assert (part.code, part.size, part.next_offset) == (FetchCode.OK, 0, 2)


async def test_other_queues_of_the_fetch_are_left_whole() -> None:
    bench, sink = Bench(), Fetches()
    send(bench, "red")
    send(bench, "red", queue_id=1)
    await until(lambda: bench.log.confirm == bench.log.end)

    number = await a_filter(bench, "blue")
    ask(bench, sink, FetchQueue(1, 0, 0, 1 << 20, number), FetchQueue(1, 1, 0, 1 << 20))

    first, second = sink.answers[1].parts
    assert (first.size, first.next_offset) == (0, 1)
    assert second.size > 0
    assert second.next_offset == 0


async def test_what_is_delivered_of_all_queues_of_a_fetch_is_counted() -> None:
    bench, sink = Bench(), Fetches()
    for tags in (["red"], ["blue", "red"]):
        send(bench, *tags)
        send(bench, *tags, queue_id=1)
    await until(lambda: bench.log.confirm == bench.log.end)

    number = await a_filter(bench, "blue")
    ask(bench, sink, FetchQueue(1, 0, 0, 1 << 20, number), FetchQueue(1, 1, 0, 1 << 20))

    counted = bench.service.counters.topics[1]
    assert counted.messages_out == 2 + 3
    assert counted.bytes_out == sink.answers[1].size_bytes


async def test_much_that_is_not_wanted_is_looked_at_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetch, "LOOK_BYTES_MAX", 1)
    bench, sink = Bench(), Fetches()
    for _ in range(5):
        send(bench, "red")
    send(bench, "blue")
    await until(lambda: bench.log.confirm == bench.log.end)
    reads = bench.log.reads

    ask(bench, sink, FetchQueue(1, 0, 0, 1 << 20, await a_filter(bench, "blue")), wait_ms=1_000)
    await until(lambda: 1 in sink.answers)

    assert bench.log.reads - reads >= 6
    assert sink.answers[1].parts[0].next_offset == 6


async def test_what_is_looked_at_in_one_turn_is_bounded_over_all_queues_of_a_fetch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, sink = Bench(), Fetches()
    for queue_id in range(4):
        send(bench, "red", queue_id=queue_id)
        send(bench, "blue", queue_id=queue_id)
    await until(lambda: bench.log.confirm == bench.log.end)
    batch_bytes = max(map(len, bench.log.batches))
    monkeypatch.setattr(fetch, "LOOK_BYTES_MAX", 2 * batch_bytes)
    looks: list[int] = []

    def counted(registry: Any, queues: Any, answer: Any) -> Generator[None, None, filters.Sifted]:
        looks.append(answer.size_bytes)
        return filters.sift(registry, queues, answer)

    monkeypatch.setattr(fetch, "sift", counted)
    number = await a_filter(bench, "green")
    rows = [FetchQueue(1, queue_id, 0, 1 << 20, number) for queue_id in range(4)]

    bench.service.fetcher.fetch(
        rows, wait_ms=5_000, max_bytes=1 << 20, min_bytes=1 << 20, sink=sink, request_id=1
    )
    await until(lambda: sum(looks) >= 8 * min(map(len, bench.log.batches)))

    assert len(looks) >= 4
    assert max(looks) <= 2 * batch_bytes
    bench.service.fetcher.cancel(sink)


async def test_a_filter_that_is_not_known_is_said_at_once() -> None:
    bench, sink = Bench(), Fetches()
    send(bench, "red")
    await until(lambda: bench.log.confirm == bench.log.end)

    ask(bench, sink, FetchQueue(1, 0, 0, 1 << 20, 77), wait_ms=5_000)

    assert sink.codes() == [FetchCode.UNKNOWN_FILTER]
    assert sink.answers[1].size_bytes == 0


async def test_a_queue_is_named_once_beside_a_filter() -> None:
    bench, sink = Bench(), Fetches()
    row = FetchQueue(1, 0, 0, 1 << 20, await a_filter(bench, "red"))

    ask(bench, sink, row, row._replace(filter_id=0))

    assert isinstance(sink.errors[1], BadRequestError)


async def test_the_same_expression_has_the_same_number() -> None:
    bench = Bench()

    first = await a_filter(bench, "red")
    assert await a_filter(bench, "red") == first
    assert await a_filter(bench, "a = 1", "SQL92") != first


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"type": "SQL92", "expression": "a >"}, "ends too early"),
        ({"type": "CLASS", "expression": "a"}, "filter type"),
        ({"type": "TAG"}, "expression"),
        ({"type": "TAG", "expression": "*", "more": 1}, "more"),
    ],
)
async def test_what_is_no_filter_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRequestError, match=said):
        await Bench().service.calls.call({"call": "filter", **fields}, asker=ANYBODY)


async def test_the_filter_used_longest_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "FILTERS_MAX", 2)
    registry = Bench().service.fetcher.filters
    first, second = registry.add("TAG", "a"), registry.add("TAG", "b")

    assert registry.add("TAG", "a") == first
    registry.add("TAG", "c")

    assert registry.get(second) is None
    assert registry.get(first) is not None
