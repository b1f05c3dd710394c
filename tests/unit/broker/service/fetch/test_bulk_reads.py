"""Where a queue can be cut for bulk readers, and which offset a time is (SPARK)."""

import pytest
from tests.support.http.door import a_batch
from tests.support.service.fakes import Bench
from tests.support.service.send import Answers

from paceline.errors import BadRequestError, NotYetAvailableError, OffsetOutOfRangeError
from paceline_broker.service.fetch import bulk_reads

QUEUE = {"topic": "orders", "queue": 0}


def stored(bench: Bench, *counts: int, step_ms: int = 0) -> list[int]:
    """Batches of so many records in queue 0, `step_ms` apart; their sizes in bytes."""
    sizes = []
    for count in counts:
        batch = a_batch(*[b"x" * 100] * count)
        bench.service.sender.send(batch, Answers(), 0)
        bench.clock.advance(step_ms)
        sizes.append(len(batch))
    bench.writer.confirm_all()
    return sizes


async def cuts(bench: Bench, low: int, high: int, piece_bytes: int) -> dict[str, object]:
    answer = await bench.call(
        "cuts", piece_bytes=piece_bytes, queues=[{**QUEUE, "from": low, "to": high}]
    )
    [row] = answer["queues"]
    return dict(row)


async def test_pieces_are_whole_batches_and_their_sizes_sum_up() -> None:
    bench = Bench()
    sizes = stored(bench, 10, 10, 10, 10)

    row = await cuts(bench, 0, 40, sizes[0] * 2)

    assert row["cuts"] == [[0, sizes[0] + sizes[1]], [20, sizes[2] + sizes[3]]]
    assert row["next"] == 40
    assert (row["start"], row["end"]) == (0, 40)


async def test_first_piece_begins_where_the_range_does_even_inside_a_batch() -> None:
    bench = Bench()
    sizes = stored(bench, 10, 10, 10)

    row = await cuts(bench, 7, 12, 1)

    assert row["cuts"] == [[7, sizes[0]], [10, sizes[1]]]


async def test_long_answer_says_where_to_ask_for_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    sizes = stored(bench, *[5] * 7)
    monkeypatch.setattr(bulk_reads, "PLAN_BATCHES_MAX", 3)

    pieces: list[object] = []
    low = 0
    while low < 35:
        row = await cuts(bench, low, 35, 1)
        found = row["cuts"]
        assert isinstance(found, list)
        pieces += found
        assert isinstance(row["next"], int)
        low = row["next"]

    assert pieces == [[5 * number, size] for number, size in enumerate(sizes)]


async def test_what_is_not_confirmed_here_is_not_available_yet() -> None:
    """R3: above a node's confirm nothing is out of range."""
    bench = Bench(is_automatic=False)
    stored(bench, 10)
    bench.service.sender.send(a_batch(*[b"x"] * 5), Answers(), 0)

    with pytest.raises(NotYetAvailableError):
        await cuts(bench, 0, 15, 1)


async def test_below_the_start_is_out_of_range() -> None:
    bench = Bench()
    stored(bench, 10, 10)
    queue = bench.role.projections.consume_queues.get(1 << 16)
    assert queue is not None
    _, positions = queue.index(1, 2)
    queue.drop_below(positions[0])

    with pytest.raises(OffsetOutOfRangeError) as refusal:
        await cuts(bench, 5, 20, 1)

    assert refusal.value.details["start"] == 10


async def test_queue_without_a_record_has_no_pieces() -> None:
    row = await cuts(Bench(), 0, 0, 1)

    assert (row["cuts"], row["next"]) == ([], 0)


async def test_time_is_the_first_offset_stored_at_or_after_it() -> None:
    bench = Bench()
    began = bench.clock.unix_ms()
    stored(bench, 10, 10, 10, step_ms=1000)

    async def offset(unix_ms: int) -> int:
        answer = await bench.call("times", unix_ms=unix_ms, queues=[QUEUE])
        found: int = answer["queues"][0]["offset"]
        return found

    assert await offset(0) == 0
    assert await offset(began) == 0
    assert await offset(began + 1) == 10
    assert await offset(began + 1000) == 10
    assert await offset(began + 1001) == 20
    assert await offset(began + 2001) == 30


async def test_time_search_warms_cold_pages_off_the_loop() -> None:
    bench = Bench()
    stored(bench, 1, 1, 1, step_ms=10)
    bench.log.cold.add(1)

    await bench.call("times", unix_ms=bench.clock.unix_ms(), queues=[QUEUE])

    assert bench.log.warmed > 0


async def test_replica_answers_once_it_knows_confirm() -> None:
    bench = Bench()
    stored(bench, 10)
    bench.role.become_replica()

    assert (await cuts(bench, 0, 10, 1))["next"] == 10
    bench.log.is_readable = False
    with pytest.raises(NotYetAvailableError):
        await cuts(bench, 0, 10, 1)


@pytest.mark.parametrize("wrong", [{"piece_bytes": 0}, {"piece_bytes": 1, "queues": []}])
async def test_malformed_calls_name_the_field(wrong: dict[str, object]) -> None:
    fields = {"piece_bytes": 1, "queues": [{**QUEUE, "from": 0, "to": 0}], **wrong}

    with pytest.raises(BadRequestError):
        await Bench().call("cuts", **fields)
