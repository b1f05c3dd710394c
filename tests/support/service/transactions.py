"""What tests of transactions share with others."""

from typing import Any

from tests.support.http.door import a_batch
from tests.support.service.calls import started
from tests.support.service.fakes import Bench, a_view
from tests.support.service.send import Answers

from paceline.records.header import Kind
from paceline.wire.message_ids import OffsetMessageId, make_handle
from paceline.wire.names import TRANS_CHECK_MAX_TIME_TOPIC

KEY = 1 << 16
TIME_OUT_MS = 6_000
INTERVAL_MS = 30_000


class HalfBench(Bench):
    """A broker that has half messages."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.service.view_changed(
            a_view(version=2, topics={"orders": 4, TRANS_CHECK_MAX_TIME_TOPIC: 1})
        )
        self.ends = self.service.transactions.ends
        self.checks = self.service.transactions.checks

    def half(self, *bodies: bytes, **fields: Any) -> list[str]:
        """Store half messages; their transaction ids."""
        sink = Answers()
        properties = fields.pop("properties", {"PGROUP": "payers"})
        given = fields.pop("properties_each", [properties] * len(bodies))
        batch = a_batch(*bodies, kind=Kind.HALF, properties=given, **fields)
        self.service.sender.send(batch, sink, 1)
        self.finish_work()
        self.writer.confirm_all()
        assert sink.answers
        place = sink.last.base_queue_offset
        return [self.id_of(place, number) for number in range(len(bodies))]

    def id_of(self, place: int, number: int = 0, group: str = "g1") -> str:
        return make_handle("tx", OffsetMessageId(group, place, number))

    async def end(self, *, commit: list[str] = [], rollback: list[str] = []) -> list[Any]:  # noqa: B006
        answer = await self.call("end_transactions", commit=commit, rollback=rollback)
        return [row["code"] or row["outcome"] for row in answer["ends"]]

    def bodies(self, key: int = KEY) -> list[bytes]:
        """What the queue holds."""
        return [
            body
            for view in self.log.views()
            if view.header.kind == Kind.NORMAL
            and view.header.topic_id << 16 | view.header.queue_id == key
            for body in view.bodies()
        ]

    def kinds(self) -> list[tuple[Kind, int]]:
        return [(Kind(view.header.kind), view.header.cause) for view in self.log.views()]


async def polled(bench: HalfBench, group: str = "payers") -> Any:
    return await started(bench.checks.poll(group, wait_ms=20_000))
