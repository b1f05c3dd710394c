"""What every consumer of this package is on the outside: opened by `async with`, closed once."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from paceline.net.cluster import Cluster
from paceline.routing import acting_groups
from paceline.types import GroupName


class OpenedConsumer(ABC):
    """A consumer on one event loop; `async with`, or `start` and `close`."""

    @abstractmethod
    async def start(self, *, timeout_ms: int = 10_000) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


class ReadingConsumer(OpenedConsumer):
    """One that fetches from queues itself, so from an acting master too."""

    _cluster: Cluster

    @property
    def acting_groups(self) -> frozenset[GroupName]:
        """Broker groups without a master now: an acting one is read, which may be behind (R36)."""
        view = self._cluster.view
        return frozenset() if view is None else acting_groups(view)
