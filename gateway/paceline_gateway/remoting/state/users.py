"""What the remoting door keeps for one user at one address, over that user's connections."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from paceline.platform.runtime import cancel_and_wait, spawn
from paceline.producer.producer import send_library
from paceline.producer.request_reply import Requester
from paceline.producer.transaction import HalfProducer
from paceline.producer.transaction_ends import TransactionEndSender
from paceline.types import GroupName
from paceline_gateway.clusters import SENDING, UserCluster
from paceline_gateway.connected_clients import ConnectedClients
from paceline_gateway.remoting.state.checks import Checks
from paceline_gateway.remoting.state.groups import Groups
from paceline_gateway.remoting.state.locks import Locks
from paceline_gateway.remoting.state.queue_of import QueueOf
from paceline_gateway.remoting.state.queue_reader import QueueReader
from paceline_gateway.shares import Shares, owner_of

_KEPT_BYTES_MAX = 32 * 1024 * 1024
_ENDING_S = 5.0


class RemotingUser:
    """Owner of the state of one `UserCluster`; it outlives connections."""

    def __init__(self, cluster: UserCluster, clients: ConnectedClients, polls: Shares) -> None:
        """`polls`: requests of all users that wait for messages."""
        self._polls = polls
        self.cluster = cluster
        self._release = cluster.hold()
        self.links = cluster.links
        self.halves = HalfProducer(cluster.cluster, settings=SENDING)
        self.requester = Requester(cluster.cluster, partial(send_library, cluster.producer))
        self.ends = TransactionEndSender(
            self.links,
            timeout_ms=SENDING.delivery_timeout_ms,
            attempt_ms=SENDING.request_timeout_ms,
        )
        self.reader = QueueReader(cluster.cluster, kept_bytes_max=_KEPT_BYTES_MAX)
        self.groups = Groups(cluster, clients)
        client_id = f"gateway-{cluster.cluster.random.token(8).hex()}"
        self.checks = Checks(cluster.cluster, self.links, self.groups, client_id)
        self.locks = Locks(self.groups.has_member)
        self.first_sends: set[str] = set()
        """Topics that there are not yet, whose first send is under way."""
        self.retries_count = 0
        """Sends to retry topics under way."""
        self._queue_of: dict[GroupName, QueueOf] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}

    def poll(self) -> Callable[[], None]:
        """A request begins to wait for messages; to be called when it has ended. OverloadedError:
        too many of this user do."""
        principal = self.cluster.principal
        return self._polls.take(owner_of(principal.user, principal.source))

    def queue_of(self, group: GroupName) -> QueueOf:
        """Which queues of a broker group sends without one go to."""
        found = self._queue_of.get(group)
        if found is None:
            found = self._queue_of[group] = QueueOf(self.cluster.cluster, group)
        return found

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        """Work that no request waits for; it answers for itself."""
        task = spawn(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    async def close(self) -> None:
        """Wait a while for sends under way: one that wants no answer may be the client's last."""
        self.locks.close()
        await self.checks.close()
        await self.groups.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_ENDING_S)
        await cancel_and_wait(*self._tasks)
        await self.requester.close()
        await self.halves.close()
        await self.ends.close()
        await self.reader.close()
        self._release()
