"""What tests of cleaner share with others."""

from dataclasses import replace
from typing import Any

from tests.support.broker.brokers import CLUSTER, DATA, GROUP, Broker, eventually

from paceline.platform.runtime import ManualClock, SystemClock
from paceline.types import TopicId, TopicName
from paceline.wire.cluster import ClusterView, TopicView
from paceline_broker.controllers.clock_skew import ClockSkew
from paceline_broker.retention.cleaner import Cleaner
from paceline_broker.service.routes import Routes
from paceline_broker.service.settings import ServiceSettings

HOUR_MS = 3_600_000
BODY = b"x" * 8000


class Bench:
    """An open master alone with its set, and its cleaner, which the test drives."""

    def __init__(self, broker: Broker, **settings: Any) -> None:
        self.broker = broker
        self.store, self.role, self.log = broker.store, broker.role, broker.store.log
        self.clock = ManualClock(unix_ms=SystemClock().unix_ms() + HOUR_MS)
        self.clocks = ClockSkew(controllers_count=1, skew_ms_max=5000)
        self.config = replace(
            broker.config, segment_size_bytes=64 * 1024, disk_free_bytes_enough=1 << 60, **settings
        )
        self.routes = Routes(GROUP)
        self.cleaner = Cleaner(
            role=broker.role,
            store=broker.store,
            flusher=broker.role.flusher,
            clock=self.clock,
            clocks=self.clocks,
            config=self.config,
            service=ServiceSettings(producer_expiry_ms=HOUR_MS, producer_states_max=4),
            routes=self.routes,
        )
        self.agree()

    def agree(self, *, skew_ms: int = 0) -> None:
        self.clocks.told(
            "c1",
            unix_ms=self.clock.unix_ms() + skew_ms,
            now_ms=self.clock.monotonic_ms(),
        )

    def know(self, topics: dict[str, int]) -> None:
        """A newer view, with these topics by id."""
        self.routes.apply(
            ClusterView(
                cluster_id=CLUSTER,
                version=self.routes.version + 1,
                topics={
                    TopicName(name): TopicView(
                        topic=TopicName(name), topic_id=TopicId(number), queues={GROUP: 1}
                    )
                    for name, number in topics.items()
                },
            )
        )

    async def fill(self, count: int = 40) -> None:
        for _ in range(count):
            end = self.broker.send(BODY)
        await eventually(lambda: self.log.confirm == end == self.log.flushed)

    async def checkpoint(self) -> None:
        self.store.begin_checkpoint()
        await eventually(lambda: self.log.flushed == self.log.confirm == self.log.end)
        await self.store.finish_checkpoint()

    async def clean(self) -> None:
        """Decide, then let the record be confirmed, the state saved, and the files go."""
        self.cleaner.clean()
        await self.checkpoint()
        await self.checkpoint()
        self.cleaner.clean()
        await eventually(lambda: self.log.drop_wanted is None and self.role.flusher.is_idle)

    @property
    def files(self) -> list[str]:
        return [name for name in self.broker.disk.list(f"{DATA}/log") if name.endswith(".log")]
