"""The base class of clients: start, close, `async with`."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from paceline.net.cluster import Cluster


class Opened(ABC):
    """A client on one event loop; `async with`, or `start` and `close`."""

    def __init__(self, bootstrap: str | Sequence[str] | Cluster) -> None:
        """`bootstrap`: "host:port,..." of controllers or brokers, or a `Cluster` to share."""
        self._owns_cluster = not isinstance(bootstrap, Cluster)
        self._cluster = bootstrap if isinstance(bootstrap, Cluster) else Cluster(bootstrap)

    async def start(self, *, timeout_ms: int = 10_000) -> None:
        """Wait until the cluster is known. PeerError when no bootstrap address answers."""
        self._cluster.start()
        await self._cluster.watch.wait_for(lambda view: True, timeout_ms=timeout_ms)

    @abstractmethod
    async def close(self) -> None: ...

    async def _leave_cluster(self) -> None:
        """The last step of `close`; who shares a cluster closes it himself."""
        if self._owns_cluster:
            await self._cluster.close()

    async def _give_up(self) -> None:
        """It could not be started."""
        await self.close()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self._give_up()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
