"""The base class of clients: start, close, `async with`."""

import os
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self
from weakref import WeakSet

from paceline.errors import ShuttingDownError
from paceline.net.cluster import Cluster
from paceline.net.connect import Bootstrap

FORKED = (
    "this client was made before its process forked: its connections are the parent's; make one"
    " in each process"
)
_CLIENTS: "WeakSet[Client]" = WeakSet()


class Client(ABC):
    """A client on one event loop; `async with`, or `start` and `close`."""

    is_of_parent = False
    """It was made before this process was forked off: nothing can be done with it here."""

    def __init__(self, bootstrap: Bootstrap | Cluster) -> None:
        """`bootstrap`: "host:port,..." of controllers or brokers, or a `Cluster` to share."""
        self._owns_cluster = not isinstance(bootstrap, Cluster)
        self._cluster = (
            bootstrap if isinstance(bootstrap, Cluster) else Cluster(bootstrap, sees_all=False)
        )
        _CLIENTS.add(self)

    async def start(self, *, timeout_ms: int = 10_000) -> None:
        """Wait until the cluster is known. PeerError when no bootstrap address answers."""
        if self.is_of_parent:
            raise ShuttingDownError(FORKED)
        self._cluster.start()
        await self._cluster.watch.wait_for(lambda view: True, timeout_ms=timeout_ms)

    @abstractmethod
    async def close(self) -> None: ...

    async def _leave_cluster(self) -> None:
        """The last step of `close`; who shares a cluster closes it himself."""
        if self._owns_cluster:
            await self._cluster.close()

    def _forked(self) -> None:
        """This process is a child, and the client the parent's."""
        self.is_of_parent = True

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


def _forked() -> None:
    """In the child: all clients that there are belong to the parent."""
    for client in list(_CLIENTS):
        client._forked()


os.register_at_fork(after_in_child=_forked)
