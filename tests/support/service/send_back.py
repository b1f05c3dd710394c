"""What tests of send back share with others."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.support.service.fakes import Bench, a_view
from tests.support.service.send import Answers

from paceline.records.decode import BatchView, Record
from paceline.records.encode import encode_batch
from paceline.records.header import Cause, pack_source
from paceline.types import ConsumerGroupName, PhysicalOffset
from paceline.wire import properties as names
from paceline.wire.consumer_groups import ConsumerGroupSettings, ConsumerGroupView

ORDERS, RETRY, DEAD, OTHER_RETRY = 1, 2, 3, 4


KEY = ORDERS << 16
TOPICS = {"orders": 4, "%RETRY%g": 2, "%DLQ%g": 1, "%RETRY%h": 1}


def a_bench(*, settings: ConsumerGroupSettings | None = None, **more: Any) -> Bench:
    bench = Bench(**more)
    group = ConsumerGroupName("g")
    view = ConsumerGroupView(group=group, settings=settings or ConsumerGroupSettings())
    bench.service.view_changed(
        replace(a_view(version=2, topics=TOPICS), consumer_groups={group: view})
    )
    return bench


def send(bench: Bench, count: int = 1, *, queue: int = 0, **more: Any) -> PhysicalOffset:
    """Store messages of every kind of column; where their batch lies."""
    position = bench.writer.end
    if bench.role.projections.topics.get(ORDERS) is None:
        bench.service.sender.send(a_batch(1, queue=queue), Answers(), 0)
        bench.writer.confirm_all()
        position = bench.writer.end
    bench.service.sender.send(a_batch(count, queue=queue, **more), Answers(), 0)
    bench.writer.confirm_all()
    return position


def a_batch(count: int, *, queue: int = 0, **more: Any) -> bytes:
    numbers = range(count)
    fields: dict[str, Any] = {
        "keys": [f"key-{number}" for number in numbers],
        "tags": ["a" if number % 2 else "b" for number in numbers],
        "properties": [{"colour": f"shade {number}"} for number in numbers],
        "born_unix_ms": [1000 + number for number in numbers],
        **more,
    }
    bodies = [b"body %d" % number for number in numbers]
    return encode_batch(bodies, topic_id=ORDERS, queue_id=queue, **fields)


def a_row(offset: int, *, topic_id: int = ORDERS, queue: int = 0, **more: Any) -> dict[str, Any]:
    return {"topic_id": topic_id, "queue": queue, "offset": offset, **more}


async def send_back(bench: Bench, *rows: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    answer = await bench.call("send_back", group="g", messages=list(rows), **more)
    found: list[dict[str, Any]] = answer["messages"]
    return found


def made(bench: Bench, cause: Cause) -> list[BatchView]:
    return [view for view in bench.log.views() if view.header.cause == cause]


def records(views: Sequence[BatchView]) -> list[Record]:
    return [record for view in views for record in view.records()]


def retried(bench: Bench, *, times: int, offset: int = 0, queue: int = 0) -> dict[str, Any]:
    """As if the timers had delivered a retry; the row that sends it back."""
    properties = {
        names.RECONSUME_TIMES: str(times),
        names.RETRY_TOPIC: "orders",
        names.ORIGIN_MESSAGE_ID: "g1:64:0",
        names.UNIQ_KEY: "unique",
        "colour": "red",
    }
    batch = encode_batch(
        [b"again"],
        properties=[properties],
        born_unix_ms=1,
        topic_id=RETRY,
        queue_id=queue,
        sources=[pack_source(0, 0)],
        flags=Cause.DELAYED,
    )
    bench.append_derived(batch)
    return a_row(offset, topic_id=RETRY, queue=queue)
