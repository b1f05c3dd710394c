"""What is unread in queues that a topic is to lose."""

from typing import Any

import pytest
from tests.support.service.fakes import GROUP, Bench
from tests.support.service.topic_checks import altered, sent

from paceline.errors import CommandRefusedError, NotYetAvailableError
from paceline.records.dues import due_of_delay
from paceline.records.header import Kind
from paceline.wire import properties as names


async def unread(bench: Bench, **changes: Any) -> list[dict[str, Any]]:
    asked = {"topic_id": 1, "from_queue": 2, "version": 2, **changes}
    return list((await bench.call("unread", **asked))["unread"])


async def a_bench() -> Bench:
    """Two messages in each of queues 1 and 3; 2 and 3 are written no more."""
    bench = Bench(view_wait_ms=10)
    for queue in (1, 1, 3, 3):
        await sent(bench, queue_id=queue)
    altered(bench, write_queues={GROUP: 2})
    return bench


async def commit(bench: Bench, group: str, queue: int, offset: int) -> None:
    row = {"topic_id": 1, "queue": queue, "offset": offset}
    await bench.call("commit", group=group, offsets=[row])


async def test_messages_that_nobody_ever_consumed_are_unread() -> None:
    bench = await a_bench()

    assert await unread(bench) == [{"queue": 3, "group": None, "messages": 2}]


async def test_each_group_that_consumes_the_topic_must_have_read_them() -> None:
    bench = await a_bench()
    await commit(bench, "billing", 1, 1)
    await commit(bench, "shipping", 3, 1)

    assert await unread(bench) == [
        {"queue": 3, "group": "billing", "messages": 2},
        {"queue": 3, "group": "shipping", "messages": 1},
    ]
    for group in ("billing", "shipping"):
        await commit(bench, group, 3, 2)
    assert await unread(bench) == []


async def test_messages_that_are_still_to_come_count_until_they_came_and_were_read() -> None:
    """R35: without their queue they would be buried, though the shrinking was said to be safe."""
    bench = Bench(view_wait_ms=10)
    delayed = {"kind": Kind.DELAY, "due_unix_ms": [due_of_delay(500)]}
    half = {"kind": Kind.HALF, "properties": [{names.PRODUCER_GROUP: "p"}]}
    for queue in (1, 3):
        await sent(bench, queue_id=queue, **delayed)
    await sent(bench, queue_id=2, **half)
    altered(bench, write_queues={GROUP: 2})
    assert await unread(bench) == [
        {"queue": 3, "group": None, "messages": 1, "pending": "delayed"},
        {"queue": 2, "group": None, "messages": 1, "pending": "transaction"},
    ]

    bench.clock.advance(500)
    bench.service.delivery.turn()
    bench.writer.confirm_all()
    rows = [row for row in await unread(bench) if row["queue"] == 3]
    assert rows == [{"queue": 3, "group": None, "messages": 1}]
    await commit(bench, "billing", 3, 1)
    assert [row["queue"] for row in await unread(bench)] == [2]
    assert await unread(bench, from_queue=3) == []


async def test_it_is_said_only_with_a_view_in_which_nobody_sends_there() -> None:
    bench = await a_bench()

    with pytest.raises(NotYetAvailableError):
        await unread(bench, version=9)
    altered(bench, write_queues={GROUP: 4})
    with pytest.raises(CommandRefusedError) as refused:
        await unread(bench, version=3)
    assert refused.value.details["reason"] == "STILL_WRITTEN"


async def test_a_topic_without_write_permission_is_written_by_nobody() -> None:
    bench = await a_bench()
    altered(bench, write_queues={GROUP: 4}, perm=4)
    view = bench.service.routes.view
    assert view is not None

    assert await unread(bench, version=view.version) != []
