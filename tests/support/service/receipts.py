"""What tests of receipts share with others."""

from typing import Any

from tests.support.http.door import a_batch
from tests.support.service.fakes import Bench
from tests.support.service.send import Answers

from paceline.wire.receipts import Receipt, format_handle

ASK = {"group": "g", "client_id": "c1", "topics": ["orders"]}


def send(bench: Bench, count: int, queue_id: int = 0) -> None:
    batch = a_batch(*[b"x"] * count, queue_id=queue_id)
    bench.service.sender.send(batch, Answers(), 0)
    if not bench.log.is_automatic:
        bench.writer.confirm_all()


async def receive(bench: Bench, **fields: Any) -> dict[str, Any]:
    return await bench.call("receive", **{**ASK, **fields})


def handles(answer: dict[str, Any], group: str = "g") -> list[str]:
    """A handle for each message of an answer, as the client makes them."""
    return [
        format_handle(Receipt("g1", topic, queue, offset, answer["position"], attempt), group)
        for topic, queue, first, end, attempt in answer["messages"]
        for offset in range(first, end)
    ]


def lowest(bench: Bench, key: int = 1 << 16) -> int:
    committed = bench.role.projections.offsets.get("g", key)
    assert committed is not None
    return committed.offset


def offset_row(offset: int) -> dict[str, Any]:
    return {"topic": "orders", "queue": 0, "offset": offset}
