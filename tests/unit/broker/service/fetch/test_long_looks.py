"""Filters and searches over batches of very many records: in steps, by every way of reading."""

import asyncio
from typing import Any

import pytest
from tests.support.http.door import a_batch
from tests.support.service.fakes import Bench, until
from tests.support.service.fetch import Fetches
from tests.support.service.follow import Follower
from tests.support.service.receipts import receive
from tests.support.service.send import Answers

from paceline.errors import BadRequestError
from paceline.filters import Filter, make_filter
from paceline.filters.sql import SqlFilter
from paceline.records.decode import BatchView
from paceline.records.header import RECORDS_MAX, Codec
from paceline.wire.calls import pop as wire
from paceline.wire.stream import FetchCode, FetchQueue
from paceline_broker.service.fetch import filters
from paceline_broker.service.fetch.filters import STEP_COST
from paceline_broker.service.long_work import TURN_BYTES

NOTHING = " OR ".join(f"a = '{number}'" for number in range(2, 52))
COUNT = 4_000


class Counted:
    """Counts the tests of records in each turn of the loop."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.turns: dict[int, int] = {}
        each = SqlFilter._each

        def counted(wanted: SqlFilter, view: Any, first: int, end: int | None) -> Any:
            found = list(each(wanted, view, first, end))
            at = bench.service.work.steps
            self.turns[at] = self.turns.get(at, 0) + len(found) * wanted.terms
            return found

        monkeypatch.setattr(SqlFilter, "_each", counted)


async def a_bench(codec: Codec = Codec.ZSTD) -> Bench:
    """A queue whose last of very many messages is wanted."""
    bench = Bench()
    rows = [{"a": "1"}] * (COUNT - 1) + [{"a": "51"}]
    for given in ([{"a": "1"}] * COUNT, rows):
        batch = a_batch(*[b""] * COUNT, properties=given, codec=codec)
        bench.service.sender.send(batch, Answers(), 0)
        bench.finish_work()
    await until(lambda: bench.log.confirm == bench.log.end)
    return bench


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
async def test_a_fetch(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, sink = await a_bench(codec), Fetches()
    tests = Counted(bench, monkeypatch)
    number = bench.service.fetcher.filters.add("SQL92", NOTHING)

    bench.service.fetcher.fetch(
        [FetchQueue(1, 0, 0, 1 << 20, number)],
        wait_ms=20_000, max_bytes=1 << 20, min_bytes=1, sink=sink, request_id=1,
    )  # fmt: skip
    await until(lambda: 1 in sink.answers)

    [part] = sink.answers[1].parts
    assert (part.code, part.next_offset, sink.counts()) == (FetchCode.OK, 2 * COUNT, 1)
    assert max(tests.turns.values()) <= 2 * STEP_COST
    assert bench.service.budget.used_bytes == 0


async def test_a_fetch_of_one_look_says_how_far_it_got() -> None:
    bench, sink = await a_bench(), Fetches()
    number = bench.service.fetcher.filters.add("SQL92", NOTHING)

    bench.service.fetcher.fetch(
        [FetchQueue(1, 0, 0, 1 << 20, number)],
        wait_ms=0, max_bytes=1 << 20, min_bytes=1, sink=sink, request_id=1,
    )  # fmt: skip
    bench.finish_work()

    [part] = sink.answers[1].parts
    assert part.size == 0
    assert 0 < part.next_offset < COUNT


async def test_a_fetch_whose_asker_has_gone_is_looked_for_no_more() -> None:
    bench, sink = await a_bench(), Fetches()
    number = bench.service.fetcher.filters.add("SQL92", NOTHING)
    bench.service.fetcher.fetch(
        [FetchQueue(1, 0, 0, 1 << 20, number)],
        wait_ms=0, max_bytes=1 << 20, min_bytes=1, sink=sink, request_id=1,
    )  # fmt: skip
    bench.service.work.turn()
    bench.service.fetcher.cancel(sink)
    bench.finish_work()

    assert sink.answers == {}
    assert bench.service.budget.used_bytes == 0


async def test_a_fetch_session(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = await a_bench()
    tests = Counted(bench, monkeypatch)
    number = bench.service.fetcher.filters.add("SQL92", NOTHING)
    follower = Follower(bench)

    request = follower.ask((0, 0), filter_id=number)
    await until(lambda: request in follower.sink.answers)

    [part] = follower.sink.answers[request].parts
    assert (part.code, part.next_offset) == (FetchCode.OK, 2 * COUNT)
    assert part.size > 0
    assert max(tests.turns.values()) <= 2 * STEP_COST


async def test_a_receiver(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = await a_bench()
    looks: list[int] = []
    spend = filters.Look.spend

    def counted(look: filters.Look, cost: int) -> bool:
        looks.append(cost)
        return spend(look, cost)

    monkeypatch.setattr(filters.Look, "spend", counted)
    topics = [{"topic": "orders", "type": "SQL92", "expression": NOTHING}]

    answer = await receive(bench, topics=topics, wait_ms=20_000)

    assert answer["messages"] == [[1, 0, 2 * COUNT - 1, 2 * COUNT, 1]]
    assert max(looks) <= STEP_COST
    assert sum(looks) >= 2 * COUNT * 50


async def test_filters_that_are_kept_are_bounded_by_their_tests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(filters, "TERMS_KEPT_MAX", 30)
    registry = Bench().service.fetcher.filters
    first = registry.add("SQL92", " OR ".join(["a = 1"] * 10))
    second = registry.add("SQL92", " OR ".join(["a = 2"] * 10))
    assert registry.add("SQL92", " OR ".join(["a = 1"] * 10)) == first
    registry.add("SQL92", " OR ".join(["a = 3"] * 20))

    assert registry.get(second) is None, "the one that was used longest ago"
    assert registry.get(first) is not None
    assert registry.add("SQL92", " OR ".join(["a = 2"] * 10)) > second
    with pytest.raises(BadRequestError):
        await registry.register(wire.Filter(type="SQL92", expression="a = 1 OR" * 9), None)


class Parsed:
    """Notes the step of long work at which each expression is parsed."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: dict[str, int] = {}

        def noted(type_: str, expression: str) -> Filter:
            self.steps[expression] = bench.service.work.steps
            return make_filter(type_, expression)

        monkeypatch.setattr(filters, "make_filter", noted)


def long_expression(number: int) -> str:
    expression = " OR ".join(f"a = '{number}-{term:08d}'" for term in range(30))
    assert len(expression) > TURN_BYTES // filters.TURN_BYTES_OF_CHARACTER
    return expression


async def test_of_long_expressions_one_is_parsed_in_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    parsed = Parsed(bench, monkeypatch)
    registry = bench.service.fetcher.filters
    many = [registry.ensure("SQL92", long_expression(number), asker="many") for number in range(20)]
    one = registry.ensure("SQL92", long_expression(99), asker="one")
    numbers = [number for number, _ in await asyncio.gather(*many, one)]

    assert len(set(numbers)) == 21
    assert sorted(parsed.steps.values()) == list(range(1, 22))
    assert parsed.steps[long_expression(99)] == 2, "askers come in turn"
    again, _ = await registry.ensure("SQL92", long_expression(99), asker="many")
    assert again == numbers[-1]
    assert len(parsed.steps) == 21, "what is known is not parsed again"


async def test_a_long_expression_that_is_wrong_is_refused() -> None:
    bench = Bench()
    with pytest.raises(BadRequestError, match="SQL92"):
        await bench.call("filter", type="SQL92", expression=f"{long_expression(1)} OR")
    assert bench.service.work.is_idle


async def test_long_expressions_of_one_receive_are_parsed_in_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    parsed = Parsed(bench, monkeypatch)
    topics = [
        {"topic": "orders", "type": "SQL92", "expression": long_expression(number)}
        for number in range(5)
    ]

    await bench.call("receive", group="g", client_id="c", topics=topics)

    assert sorted(parsed.steps.values()) == list(range(1, 6))


async def test_short_expressions_are_parsed_at_once_as_far_as_a_turn_has_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    parsed = Parsed(bench, monkeypatch)
    registry = bench.service.fetcher.filters
    short = [f"a = '{number:04d}'" for number in range(100)]
    await asyncio.gather(*(registry.ensure("SQL92", each, asker="many") for each in short))

    at_once = [step for step in parsed.steps.values() if step == 0]
    room = TURN_BYTES // filters.TURN_BYTES_OF_CHARACTER // len("a = '0000'")
    assert len(at_once) == room
    assert len(parsed.steps) == 100


async def test_of_many_small_fetches_in_one_turn_some_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, sink = Bench(), Fetches()
    batch = a_batch(*[b""] * 40, properties=[{"a": "1"}] * 40)
    bench.service.sender.send(batch, Answers(), 0)
    await until(lambda: bench.log.confirm == bench.log.end)
    tests = Counted(bench, monkeypatch)
    number = bench.service.fetcher.filters.add("SQL92", NOTHING)
    for request_id in range(50):
        bench.service.fetcher.fetch(
            [FetchQueue(1, 0, 0, 1 << 20, number)],
            wait_ms=0, max_bytes=1 << 20, min_bytes=1, sink=sink, request_id=request_id,
        )  # fmt: skip
    at_once = sum(tests.turns.values())
    await until(lambda: len(sink.answers) == 50)

    assert at_once < RECORDS_MAX
    assert sum(tests.turns.values()) == 50 * 40 * 50


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
async def test_a_search(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    keys = ["no"] * 3_000
    for number in (5, 2_999):
        keys[number] = "yes"
    batch = a_batch(*[b""] * len(keys), keys=keys, codec=codec)
    bench.service.sender.send(batch, Answers(), 0)
    await until(lambda: bench.log.confirm == bench.log.end)
    before, looked = bench.service.work.steps, []
    texts = BatchView.keys

    def counted(view: BatchView, first: int = 0, end: int | None = None) -> list[str | None]:
        found = texts(view, first, end)
        looked.append(len(found))
        return found

    monkeypatch.setattr(BatchView, "keys", counted)

    answer = await bench.call("search", topic="orders", key="yes")
    [only] = (await bench.call("search", topic="orders", key="yes", after="0:6"))["messages"]

    assert [row["offset"] for row in answer["messages"]] == [5, 2_999]
    assert only["offset"] == 2_999
    assert max(looked) <= 1024
    assert bench.service.work.steps > before
    assert bench.service.budget.used_bytes == 0
