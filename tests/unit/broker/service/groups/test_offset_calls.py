"""Groups that are moved: reset to an end, an offset or a time, cloned; who hears of it (R33)."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.support.http.door import a_batch
from tests.support.http.turns import turn
from tests.support.service.fakes import Bench, a_view, until
from tests.support.service.send import Answers

from paceline.errors import (
    BadRequestError,
    GroupNotFoundError,
    OffsetMovedBackError,
    OffsetOutOfRangeError,
    OutcomeUnknownError,
    TopicNotFoundError,
)
from paceline.types import ConsumerGroupName
from paceline.wire.consumer_groups import ConsumerGroupView

QUEUE = {"topic": "orders", "queue": 0}


def stored(bench: Bench, count: int) -> None:
    bench.service.sender.send(a_batch(*[b"x"] * count), Answers(), 0)
    bench.writer.confirm_all()


async def offset_of(bench: Bench, group: str) -> tuple[Any, Any]:
    row = (await bench.call("offsets", group=group, queues=[QUEUE]))["offsets"][0]
    return row["offset"], row["generation"]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ({"to": "first"}, 0),
        ({"to": "last"}, 30),
        ({"offset": 7}, 7),
        ({"offset": 10**9}, 30),
        ({"unix_ms": 0}, 0),
    ],
)
async def test_a_reset_moves_the_group_and_starts_a_generation(
    target: dict[str, Any], expected: int
) -> None:
    bench = Bench()
    stored(bench, 30)
    await bench.call("commit", group="g", offsets=[{**QUEUE, "offset": 20, "generation": 0}])

    answer = await bench.call("reset", group="g", topic="orders", queues=[0], **target)

    [row] = answer["queues"]
    assert (row["before"], row["offset"], row["generation"], row["code"]) == (20, expected, 1, None)
    assert await offset_of(bench, "g") == (expected, 1)
    with pytest.raises(OffsetMovedBackError):  # a commit that was under way undoes nothing
        await bench.call("commit", group="g", offsets=[{**QUEUE, "offset": 30, "generation": 0}])
    await bench.service.close()


async def test_a_reset_to_a_time_goes_to_the_first_batch_stored_then_or_later() -> None:
    bench = Bench()
    for _ in range(3):
        stored(bench, 10)
        bench.clock.advance(60_000)
    second_at = bench.clock.unix_ms() - 2 * 60_000

    answer = await bench.call(
        "reset", group="g", new=True, topic="orders", queues=[0], unix_ms=second_at
    )

    assert [row["offset"] for row in answer["queues"]] == [10]
    await bench.service.close()


async def test_a_reset_of_a_topic_moves_all_its_queues_also_those_never_consumed() -> None:
    bench = Bench()
    stored(bench, 5)
    count = bench.service.routes.queue_counts[1]

    answer = await bench.call("reset", group="new", new=True, topic="orders", to="last")

    assert [(row["queue"], row["offset"]) for row in answer["queues"]] == [
        (queue, 5 if queue == 0 else 0) for queue in range(count)
    ]
    await bench.service.close()


async def test_a_group_that_nobody_knows_is_not_made_by_a_reset() -> None:
    """A misspelt name is told, and is not a group from then on."""
    bench = Bench()
    stored(bench, 5)
    end = bench.log.end

    with pytest.raises(GroupNotFoundError, match="consumer group typo does not exist"):
        await bench.call("reset", group="typo", topic="orders", to="first")
    assert bench.log.end == end
    assert (await bench.call("lag", group="typo"))["queues"] == []

    known = ConsumerGroupView(group=ConsumerGroupName("idle"))
    bench.service.view_changed(replace(a_view(version=2), consumer_groups={known.group: known}))
    await bench.call("commit", group="unrecorded", offsets=[{**QUEUE, "offset": 3}])
    for group in ("idle", "unrecorded"):
        moved = await bench.call("reset", group=group, topic="orders", queues=[0], offset=1)
        assert [row["offset"] for row in moved["queues"]] == [1]
    await bench.service.close()


async def test_going_back_only_never_skips_messages() -> None:
    bench = Bench()
    stored(bench, 30)
    await bench.call("commit", group="g", offsets=[{**QUEUE, "offset": 10}])

    forward = await bench.call("reset", group="g", topic="orders", to="last", back_only=True)
    back = await bench.call("reset", group="g", topic="orders", offset=4, back_only=True)

    assert forward["queues"] == []
    assert [(row["queue"], row["offset"]) for row in back["queues"]] == [(0, 4)]
    await bench.service.close()


async def test_resets_is_a_number_that_changes_with_every_reset_and_with_no_commit() -> None:
    bench = Bench()
    stored(bench, 10)
    seen = [(await bench.call("resets", group="g"))["resets"]]
    await bench.call("commit", group="g", offsets=[{**QUEUE, "offset": 3}])
    seen.append((await bench.call("resets", group="g"))["resets"])
    for _ in range(2):
        await bench.call("reset", group="g", new=True, topic="orders", queues=[0], to="first")
        seen.append((await bench.call("resets", group="g"))["resets"])

    assert seen[:2] == [0, 0]
    assert len(set(seen)) == 3
    await bench.service.close()


async def test_a_reset_that_is_not_confirmed_is_told_to_nobody() -> None:
    """R28: a member that remembers its number would not hear of the next master's first reset."""
    bench = Bench(is_automatic=False)
    stored(bench, 10)
    told: list[Any] = []

    async def call(name: str, **fields: Any) -> None:
        with pytest.raises(OutcomeUnknownError):
            told.append(await bench.call(name, group="g", **fields))

    async with asyncio.TaskGroup() as calls:
        calls.create_task(call("reset", new=True, topic="orders", queues=[0], to="first"))
        await until(lambda: bench.role.projections.offsets.resets("g") != 0)
        calls.create_task(call("resets"))
        for _ in range(5):
            await turn()
        bench.role.become_replica()  # as an election does

    assert told == []
    await bench.service.close()


async def test_a_reset_is_seen_though_a_topic_that_was_reset_before_goes() -> None:
    bench = Bench()
    stored(bench, 10)
    await bench.call("reset", group="g", new=True, topic="orders", queues=[0], to="first")
    offsets = bench.role.projections.offsets
    before = offsets.resets("g")

    offsets.drop_topic(1)
    bench.service.view_changed(a_view(version=2, topics={"gone": 4, "other": 4}))
    await bench.call("reset", group="g", new=True, topic="other", queues=[0], to="first")

    assert (await bench.call("resets", group="g"))["resets"] not in (before, 0)
    await bench.service.close()


async def test_a_queue_without_an_offset_tells_where_it_stood_when_the_group_began() -> None:
    bench = Bench()
    bench.service.sender.send(a_batch(*[b"x"] * 3, queue_id=1), Answers(), 0)
    began_ms = bench.clock.unix_ms()
    await bench.call("commit", group="g", offsets=[{**QUEUE, "offset": 0}])
    bench.clock.advance(1_000)
    bench.service.sender.send(a_batch(b"x", queue_id=1), Answers(), 0)
    bench.role.begin_epoch(2)
    queues = [{"topic": "orders", "queue": 1}]

    [ours] = (await bench.call("offsets", group="g", queues=queues))["offsets"]
    [theirs] = (await bench.call("offsets", group="h", queues=queues))["offsets"]

    assert (ours["offset"], ours["joined_offset"], ours["joined_unix_ms"]) == (None, 3, began_ms)
    assert (theirs["joined_offset"], theirs["joined_unix_ms"]) == (None, None)
    await bench.service.close()


async def test_lag_is_told_in_messages_and_in_time() -> None:
    bench = Bench()
    for _ in range(3):
        stored(bench, 10)
        bench.clock.advance(60_000)
    for group, offset in (("behind", 12), ("done", 30)):
        await bench.call("commit", group=group, offsets=[{**QUEUE, "offset": offset}])

    [behind] = (await bench.call("lag", group="behind"))["queues"]
    [done] = (await bench.call("lag", group="done"))["queues"]

    assert (behind["lag"], behind["behind_ms"]) == (18, 2 * 60_000)
    assert (done["lag"], done["behind_ms"]) == (0, 0)
    await bench.service.close()


async def test_the_times_of_queues_are_told_if_they_are_asked_for() -> None:
    bench = Bench()
    began_ms = bench.clock.unix_ms()
    for _ in range(3):
        stored(bench, 10)
        bench.clock.advance(60_000)
    for group, offset in (("new", 0), ("behind", 11), ("done", 30)):
        await bench.call("commit", group=group, offsets=[{**QUEUE, "offset": offset}])

    async def told(group: str, **more: Any) -> list[Any]:
        rows = (await bench.call("lag", group=group, **more))["queues"]
        names = ("first_unix_ms", "last_unix_ms", "consumed_unix_ms")
        return [
            tuple((row[name] - began_ms) // 60_000 for name in names if name in row) for row in rows
        ]

    assert await told("done") == [()]
    assert await told("new", times=True) == [(0, 2)]
    assert await told("behind", times=True) == [(0, 2, 1)]
    assert await told("done", times=True) == [(0, 2, 2)]
    empty = [{"topic_id": 1, "queue": 1}]
    assert await told("nobody", times=True, queues=empty) == [()]
    await bench.service.close()


async def test_queues_that_a_group_has_still_before_it_are_unread() -> None:
    bench = Bench()
    for queue in (0, 1):
        bench.service.sender.send(a_batch(*[b"x"] * 10, queue_id=queue), Answers(), 0)
        bench.writer.confirm_all()
    bench.clock.advance(60_000)
    await bench.call("commit", group="g", offsets=[{**QUEUE, "offset": 4}])
    named = [{"topic_id": 1, "queue": queue} for queue in (0, 1, 99)]

    rows = (await bench.call("lag", group="g", queues=named))["queues"]

    shown = [(row["queue"], row["offset"], row["end"], row["lag"]) for row in rows]
    assert shown == [(0, 4, 10, 6), (1, None, 10, 10), (99, None, 0, 0)]
    assert [row["behind_ms"] for row in rows] == [60_000, 60_000, 0]
    wrongs: list[Any] = [{}, [{"topic_id": 1}], [{"topic_id": 1, "queue": 65_536}]]
    for wrong in wrongs:
        with pytest.raises(BadRequestError, match="queue"):
            await bench.call("lag", group="g", queues=wrong)
    await bench.service.close()


async def test_a_clone_has_the_offsets_of_its_source() -> None:
    bench = Bench()
    stored(bench, 10)
    await bench.call("commit", group="source", offsets=[{**QUEUE, "offset": 6}])
    await bench.call("commit", group="g", offsets=[{**QUEUE, "offset": 9}])

    answer = await bench.call("clone_offsets", group="g", source="source", topic="orders")

    assert [(row["before"], row["offset"]) for row in answer["queues"]] == [(9, 6)]
    assert await offset_of(bench, "g") == (6, 1)
    assert await offset_of(bench, "source") == (6, 0)
    await bench.service.close()


@pytest.mark.parametrize(
    "fields",
    [
        {"topic": "orders"},
        {"topic": "orders", "to": "middle"},
        {"topic": "orders", "to": "first", "offset": 1},
        {"topic": "orders", "to": "first", "queues": []},
        {"topic": "orders", "to": "first", "queues": [99]},
        {"topic": "orders", "to": "first", "queues": [0, 0]},
        {"topic": "orders", "to": "first", "queues": "all"},
        {"topic": "orders", "to": "first", "colour": "red"},
    ],
)
async def test_wrong_resets_change_nothing(fields: dict[str, Any]) -> None:
    bench = Bench()
    stored(bench, 10)
    end = bench.log.end

    with pytest.raises(BadRequestError):
        await bench.call("reset", group="g", **fields)
    with pytest.raises(TopicNotFoundError):
        await bench.call("reset", group="g", topic="nothing", to="first")

    assert bench.log.end == end
    await bench.service.close()


async def test_a_commit_that_is_refused_makes_no_group() -> None:
    bench = Bench()
    stored(bench, 3)
    end = bench.log.end

    with pytest.raises(OffsetOutOfRangeError):
        await bench.call("commit", group="new", offsets=[{**QUEUE, "offset": 999}])

    assert bench.log.end == end
    assert "new" not in bench.service.routes.consumer_groups
    answer = await bench.call("commit", group="new", offsets=[{**QUEUE, "offset": 3}])
    assert answer["offsets"][0]["code"] is None
