"""What tests of delivery share with others."""

from collections.abc import Sequence
from typing import Any

from tests.support.http.door import a_batch
from tests.support.service.fakes import Bench, a_view
from tests.support.service.send import Answers

from paceline.records.decode import BatchView
from paceline.records.header import Kind
from paceline.wire.names import DELAY_DLQ_TOPIC


class DelayBench(Bench):
    """A service with a view that has the dead letters' topic, and doors for delayed messages."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(is_automatic=False, **settings)
        self.topics = {"orders": 4, DELAY_DLQ_TOPIC: 1}
        self.service.view_changed(a_view(version=2, topics=self.topics))
        self.sink = Answers()

    def delay(
        self, dues: Sequence[int], *bodies: bytes, is_confirmed: bool = True, **arguments: Any
    ) -> Any:
        """Send a batch of delayed messages; its answer."""
        batch = a_batch(
            *(bodies or [b"x"] * len(dues)), kind=Kind.DELAY, due_unix_ms=dues, **arguments
        )
        self.service.sender.send(batch, self.sink, len(self.sink.answers) + 1)
        self.finish_work()
        if is_confirmed:
            self.writer.confirm_all()
            return self.sink.last
        return None

    def turn(self) -> int:
        waits_ms = self.service.delivery.turn()
        self.writer.confirm_all()
        return waits_ms

    def delivered(self) -> list[BatchView]:
        return [
            view
            for view in self.log.views()
            if view.header.is_derived and view.header.kind == Kind.NORMAL
        ]

    def bodies(self) -> list[bytes]:
        return [body for view in self.delivered() for body in view.bodies()]
