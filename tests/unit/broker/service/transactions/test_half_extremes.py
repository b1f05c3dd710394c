"""Half messages that are long, odd or many."""

import asyncio
from typing import Any

import pytest
from tests.support.http.door import a_batch
from tests.support.http.turns import turn
from tests.support.service.fakes import until
from tests.support.service.send import Answers
from tests.support.service.transactions import INTERVAL_MS, TIME_OUT_MS, HalfBench, polled

from paceline.errors import (
    BadRequestError,
    OutcomeUnknownError,
    OverloadedError,
    StorageError,
)
from paceline.platform.ports import Buffer
from paceline.platform.runtime import cancel_and_wait, spawn
from paceline.records.encode import encode_batch
from paceline.records.header import Cause, Codec, Kind
from paceline.types import PhysicalOffset
from paceline.wire.properties import CHECK_IMMUNITY_S, PRODUCER_GROUP
from paceline_broker.service.transactions import half_messages as halves_module
from paceline_broker.service.transactions.half_messages import KEPT_BYTES, HalfMessageReader


@pytest.mark.parametrize(
    ("column", "filling"),
    [("keys", "\u20ac" * 10_000), ("tags", "\u20ac" * 10_000), ("properties", "\x01" * 5000)],
)
async def test_texts_of_halves_that_end_together_count_for_the_size_of_their_batches(
    column: str, filling: str
) -> None:
    """R34: none is too large to be encoded, with bodies of a byte and texts of 30 KB each."""
    bench = HalfBench()
    ids: list[str] = []
    for first in range(0, 600, 60):  # 18 MB, where a batch is at most 16
        texts = [f"{first + number:03}{filling}" for number in range(60)]
        given: dict[str, Any] = {column: texts}
        if column == "properties":
            given = {"properties_each": [{"PGROUP": "payers", "note": text} for text in texts]}
        ids += bench.half(*[b"a"] * 60, **given)

    assert set(await bench.end(commit=ids)) == {"COMMITTED"}

    assert len(bench.bodies()) == 600


@pytest.mark.parametrize("text", ["", "-1", "1.5", "soon", "259201", "9" * 5000, "\u0663"])
async def test_a_half_with_an_immunity_that_is_none_is_refused(text: str) -> None:
    bench = HalfBench()
    sink = Answers()
    given = {PRODUCER_GROUP: "payers", CHECK_IMMUNITY_S: text}
    bench.service.sender.send(a_batch(b"a", kind=Kind.HALF, properties=[given]), sink, 1)

    assert isinstance(sink.last, BadRequestError)
    assert sink.last.details["field"] == CHECK_IMMUNITY_S
    assert bench.role.projections.transactions.open_count == 0


async def test_a_stored_immunity_of_5000_digits_does_not_end_the_checks() -> None:
    """Such a half may be in the log of before it was refused: it waits as if it asked for none."""
    bench = HalfBench(transaction_age_ms_max=3600_000)
    [text] = bench.half(b"a")
    given = {PRODUCER_GROUP: "payers", CHECK_IMMUNITY_S: "9" * 5000}
    bench.append_derived(
        encode_batch(
            [b"a"],
            properties=[given],
            born_unix_ms=1,
            sources=[bench.ends.source_of(text)],
            topic_id=1,
            queue_id=0,
            kind=Kind.HALF,
            flags=Cause.AGAIN,
        )
    )
    bench.clock.advance(3600_000)

    await bench.checks.look()

    assert bench.bodies(2 << 16) == [b"a"]


async def test_a_look_that_fails_unforeseen_is_not_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = HalfBench(transaction_time_out_ms=40)
    looks: list[int] = []

    async def look() -> None:
        looks.append(len(looks))
        raise ValueError("unforeseen")

    monkeypatch.setattr(bench.checks, "look", look)
    running = spawn(bench.checks.run(), name="checks")

    await until(lambda: len(looks) > 1 or running.done())

    assert not running.done()
    await cancel_and_wait(running)


async def test_an_immunity_does_not_outlast_the_age_at_which_a_half_is_given_up() -> None:
    bench = HalfBench(transaction_age_ms_max=3600_000)
    bench.half(b"a", properties={PRODUCER_GROUP: "payers", CHECK_IMMUNITY_S: "7200"})
    await bench.checks.look()
    bench.clock.advance(3600_000)

    await bench.checks.look()

    assert bench.bodies(2 << 16) == [b"a"]


async def test_a_log_that_fails_among_ends_answers_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """R32: one of two queues has its message; to say that nothing was stored would be wrong."""
    bench = HalfBench()
    ids = bench.half(b"a") + bench.half(b"b", queue_id=1)
    append = bench.writer.append

    def append_once(header: bytes, payload: Buffer) -> PhysicalOffset:
        if bench.bodies():
            raise StorageError("the disk failed")
        return append(header, payload)

    monkeypatch.setattr(bench.writer, "append", append_once)

    with pytest.raises(OutcomeUnknownError):
        await bench.end(commit=ids)

    assert bench.bodies() == [b"a"]


async def test_who_is_to_be_asked_is_not_forgotten_when_a_check_out_fails() -> None:
    bench = HalfBench(transaction_check_max=1)
    bench.half(b"lost")
    bench.clock.advance(TIME_OUT_MS)
    asking = await polled(bench)
    await bench.checks.look()
    assert len((await asking)[0]) == 1
    bench.half(b"young")
    await bench.checks.look()
    bench.clock.advance(INTERVAL_MS)
    asking = await polled(bench)
    bench.writer.refusal = OverloadedError("enough", retry_after_ms=1000)
    with pytest.raises(OverloadedError):
        await bench.checks.look()
    assert not asking.done()
    bench.writer.refusal = None

    await bench.checks.look()

    [[question]] = await asking
    assert question.body == "young"
    assert bench.bodies(2 << 16) == [b"lost"]


async def test_batches_that_are_kept_count_with_what_they_take_unpacked() -> None:
    bench = HalfBench()
    ids = [
        bench.half(bytes(4_000_000), codec=Codec.ZSTD)[0]
        for _ in range(KEPT_BYTES // 4_000_000 + 1)
    ]
    assert bench.writer.end < 1_000_000
    halves = [bench.role.projections.transactions.find(bench.ends.source_of(text)) for text in ids]
    reader = HalfMessageReader(bench.role)
    for half in halves:
        assert half is not None
        await reader.batch_of(half)
    reads = bench.log.reads

    assert halves[-1] is not None
    await reader.batch_of(halves[-1])
    assert bench.log.reads == reads, "the last one is kept"
    assert halves[0] is not None
    await reader.batch_of(halves[0])

    assert bench.log.reads > reads, "the first one had to go"


async def test_a_batch_that_many_read_at_one_time_counts_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = HalfBench()
    half = bench.role.projections.transactions.find(bench.ends.source_of(bench.half(b"x")[0]))
    await turn()
    assert half is not None
    monkeypatch.setattr(halves_module, "HOT_TAIL_BYTES", 0)
    bench.log.cold.add(int(half.position))

    async def warm(view: memoryview) -> None:
        await turn()
        bench.log.cold.clear()

    monkeypatch.setattr(bench.log, "warm", warm)
    reader = HalfMessageReader(bench.role)

    batches = await asyncio.gather(*(reader.batch_of(half) for _ in range(4)))

    assert {id(batch) for batch in batches} == {id(batches[0])}
    assert reader._kept_bytes == batches[0].memory_bytes


async def test_halves_that_nobody_decided_are_given_up_a_few_at_a_time() -> None:
    bench = HalfBench(transaction_age_ms_max=3600_000)
    for _ in range(3):
        bench.half(bytes(3_000_000))
    await bench.checks.look()
    bench.clock.advance(3600_000)
    await bench.checks.look()
    given_up = [len(bench.bodies(2 << 16))]
    bench.writer.confirm_all()
    await bench.checks.look()
    given_up.append(len(bench.bodies(2 << 16)))

    assert given_up == [2, 3]
    assert bench.role.projections.transactions.open_count == 0
