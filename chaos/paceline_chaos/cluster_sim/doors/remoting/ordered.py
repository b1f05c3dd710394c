"""Members of a group that consume in order, each queue under its lock (41, 42).

They take queues by chance, so that they meet. What a client believes of its lock it counts from its
own question on, and begins nothing later; it renews in time or not. Clients are told no token: the
one that their gateway keeps for them is looked up there, for the history alone.
"""

import orjson

from paceline.errors import LockHeldError, PacelineError
from paceline.platform.runtime import pause
from paceline_chaos.cluster_sim.doors.gateways import Gateways
from paceline_chaos.cluster_sim.doors.remoting.client import (
    Consuming,
    RemotingClient,
    error_of,
)
from paceline_chaos.cluster_sim.doors.remoting.gateway import RemotingGateway
from paceline_chaos.cluster_sim.doors.remoting.pulling import Puller
from paceline_chaos.cluster_sim.jobs.around import Around
from paceline_chaos.cluster_sim.jobs.reading import seen
from paceline_chaos.history.model import Deliver, Lock, Queue, Unlock, token_number
from paceline_gateway.remoting.codec.codes import RequestCode
from paceline_gateway.remoting.codec.routes import json_of
from paceline_gateway.remoting.codec.store_format import Stored

GROUP = "remoting-ordered-1"
LEASE_MS = 1_500
"""What clients count on; brokers grant 2 s where these clients are."""
_ROUNDS = 6
_MESSAGES_MAX = 10
_PROCESS_MS_MAX = 20.0
_LATE_SHARE, _RENEW_SHARE, _UNLOCK_SHARE = 0.1, 0.5, 0.8


class _Held:
    """A lock, as far as its holder knows."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.token: int | None = None
        self.until_ms = 0


class RemotingOrdered:
    """One member."""

    def __init__(self, around: Around, gateways: Gateways[RemotingGateway], name: str) -> None:
        self._around = around
        self._name = name
        about = Consuming(GROUP, (around.topic,))
        self._client = RemotingClient(around, gateways, name, consuming=about)
        self._locks: dict[Queue, _Held] = {}

    async def close(self) -> None:
        await self._client.close()

    async def run(self) -> None:
        """Take queues by chance until it is over."""
        around = self._around
        while not around.is_over():
            queues = await self._client.queues(around.topic)
            if queues:
                queue = around.choice(queues)
                await self._hold(self._locks.setdefault(queue, _Held(queue)))
            await around.think()

    async def _hold(self, held: _Held) -> None:
        """Lock, work some rounds from the committed offset on, unlock (most times)."""
        around = self._around
        if not await self._lock(held):
            return
        puller = Puller(self._client, GROUP, held.queue)
        offset, done = await puller.committed(), 0
        for _ in range(around.whole(1, _ROUNDS)):
            if offset is None or around.is_over() or not self._is_held(held):
                break
            pulled = await puller.pull(offset, done=done, token=held.token)
            if pulled is None or pulled.has_moved:
                break
            for message in pulled.messages[: around.whole(1, _MESSAGES_MAX)]:
                if not self._is_held(held):
                    break
                await self._process(held, message)
                offset = done = message.queue_offset + 1
            if around.happens(_LATE_SHARE):
                await pause(around.random.uniform(0, 1.5 * LEASE_MS))  # perhaps too long
            elif around.happens(_RENEW_SHARE) and not await self._renew(held):
                return
        if done:
            puller.commit(done, held.token)
        if around.happens(_UNLOCK_SHARE):
            await self._unlock(held)

    def _is_held(self, held: _Held) -> bool:
        return self._around.clock.monotonic_ms() < held.until_ms

    async def _process(self, held: _Held, message: Stored) -> None:
        around = self._around
        with around.recorder.asking(
            Deliver,
            client=around.client,
            consumer_group=GROUP,
            member=self._name,
            queue=held.queue,
            message=seen(message.queue_offset, message.body),
            token=held.token,
        ) as asking:
            await pause(around.random.uniform(0, _PROCESS_MS_MAX))
            asking.ok()

    async def _renew(self, held: _Held) -> bool:
        """False: it is lost, or was granted anew, so somebody may have had it meanwhile."""
        before = held.token
        return await self._lock(held) and held.token == before

    async def _lock(self, held: _Held) -> bool:
        """41: get the lock, or keep it."""
        around, queue = self._around, held.queue
        asked_ms = around.clock.monotonic_ms()
        with around.recorder.asking(
            Lock,
            client=around.client,
            consumer_group=GROUP,
            member=self._name,
            queue=queue,
            lease_ms=LEASE_MS,
        ) as asking:
            try:
                answer = await self._client.ask(
                    queue.group, RequestCode.LOCK_BATCH_MQ, {}, self._body(queue)
                )
            except PacelineError as error:
                asking.raised(error)
                return False
            failure = error_of(answer)
            if failure is not None:
                asking.raised(failure)
                return False
            is_granted = bool(orjson.loads(bytes(answer.body))["lockOKMQSet"])
            token = self._token(queue)
            if not is_granted or token is None:  # None: the connection has ended since
                if not is_granted:
                    asking.fail(LockHeldError.code)
                held.until_ms = 0
                return False
            asking.ok(token=token, is_renewal=token == held.token)
        held.token, held.until_ms = token, asked_ms + LEASE_MS
        return True

    def _token(self, queue: Queue) -> int | None:
        connection = self._client.connection(queue.group)
        if connection is None:
            return None
        gateway = self._client.gateway()
        found = gateway.lock_token(connection, self._name, GROUP, queue.topic, queue.queue)
        return None if found is None else token_number(found)

    async def _unlock(self, held: _Held) -> None:
        """42."""
        around, queue = self._around, held.queue
        assert held.token is not None
        with around.recorder.asking(
            Unlock,
            client=around.client,
            consumer_group=GROUP,
            member=self._name,
            queue=queue,
            token=held.token,
        ) as asking:
            try:
                answer = await self._client.ask(
                    queue.group, RequestCode.UNLOCK_BATCH_MQ, {}, self._body(queue)
                )
            except PacelineError as error:
                asking.raised(error)
                return
            failure = error_of(answer)
            if failure is None:
                asking.ok()
            else:
                asking.raised(failure)

    def _body(self, queue: Queue) -> bytes:
        return json_of(
            {
                "clientId": self._name,
                "consumerGroup": GROUP,
                "mqSet": [
                    {"topic": queue.topic, "brokerName": queue.group, "queueId": queue.queue}
                ],
            }
        )
