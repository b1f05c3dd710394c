"""The simple consumers behind one gateway's receives and acknowledgements.

A receiver is for one client, consumer group and subscription: it asks all broker groups at once, so
a message is with its consumer as soon as any of them has it. What a client received it may
acknowledge at another gateway too, so acknowledgements need no receiver; only a message whose
invisible time is lengthened here is acknowledged through the receiver that does so.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from paceline.consumer.group_settings import settings_of
from paceline.consumer.pop.popped_message import PoppedMessage
from paceline.consumer.settings.simple import SimpleSettings
from paceline.consumer.simple import SimpleConsumer, give_back, renews
from paceline.errors import PacelineError
from paceline.filters import Subscription
from paceline.platform.runtime import spawn
from paceline.server.byte_budget import ByteBudget, ByteHolder
from paceline.types import GroupName
from paceline.wire.calls.pop import EndReceive
from paceline_gateway.clusters import UserCluster
from paceline_gateway.connected_clients import (
    ClientKey,
    ConnectedClient,
    ConnectedClients,
    broker_id,
)
from paceline_gateway.grpc.codec.limits import RENEW_MS_MAX
from paceline_gateway.shares import Shares, owner_of

log = logging.getLogger("paceline.gateway")

RECEIVERS_MAX = 20_000
UNUSED_S = 600.0
"""Then a receiver may go, as one for another subscription is made: nobody asks for this one."""
_ENDED_AT_ONCE = 2
"""At most so many go for each that is made, so that none waits for many."""
_MESSAGE_BYTES = 1024
"""What a message takes beside its body."""
_ATTEMPTS_MAX = 64
"""Remembered by one receiver: one for each receive that a client has under way, and some more."""
_GONE_TIMEOUT_MS = 10_000

REPEATED_S_MAX = 10.0
"""A client that repeats an attempt does so within this time; the Java client after 1 s."""


class Wanted(NamedTuple):
    """What a receiver is for."""

    cluster: UserCluster
    key: ClientKey
    group: str
    topic: str
    filter: tuple[str, str]
    auto_renew: bool
    ordered: bool


@dataclass(slots=True)
class _Attempt:
    """One receive under a client's attempt id."""

    messages: "asyncio.Future[list[PoppedMessage]]"
    invisible_until: float | None = None
    """Loop time; None: under way."""
    size: int = 0
    """Bytes of the messages, once they are remembered."""
    clients: int = 0
    """That wait for it, or are being told."""
    is_told: bool = False
    """A client was told of all messages."""


@dataclass(slots=True, eq=False)
class Receiver:
    """One simple consumer, and what its latest receives have given."""

    consumer: SimpleConsumer
    releases: Iterable[Callable[[], None]]
    """Its user's cluster is needed no more, nor its place."""
    holder: ByteHolder
    """For what is remembered."""
    attempts: OrderedDict[str, _Attempt] = field(default_factory=OrderedDict)
    attempt_of: dict[str, str] = field(default_factory=dict)
    """Handle of a message -> the attempt that it was given in."""
    under_way: int = 0
    """Receives."""
    used_at: float = 0.0
    """Loop time."""

    @property
    def is_idle(self) -> bool:
        """Nobody receives, or may be given what was received; no message's time is lengthened."""
        is_told = all(each.is_told for each in self.attempts.values())
        return not self.under_way and is_told and not renews(self.consumer)

    @asynccontextmanager
    async def receive(
        self, attempt_id: str, receive: Callable[[], Awaitable[list[PoppedMessage]]], ms: int
    ) -> AsyncIterator[list[PoppedMessage]]:
        """What `receive` gives, for a client that is told of it meanwhile. A repetition of an
        attempt joins it, or is given the same again while nobody else is. What no client was told
        of wholly is given back. `ms`: how long the messages are invisible."""
        self.under_way += 1
        try:
            async with self._receive(attempt_id, receive, ms) as messages:
                yield messages
        finally:
            self.under_way -= 1

    @asynccontextmanager
    async def _receive(
        self, attempt_id: str, receive: Callable[[], Awaitable[list[PoppedMessage]]], ms: int
    ) -> AsyncIterator[list[PoppedMessage]]:
        if not attempt_id:
            found = await receive()
            is_told = False
            try:
                yield found
                is_told = True
            finally:
                if not is_told:
                    give_back(self.consumer, found)
            return
        attempt = self._attempt(attempt_id, receive, ms)
        attempt.clients += 1
        try:
            yield await asyncio.shield(attempt.messages)
            attempt.is_told = True
        finally:
            attempt.clients -= 1
            self._look_whether_told_soon(attempt_id, attempt)

    def _attempt(
        self, attempt_id: str, receive: Callable[[], Awaitable[list[PoppedMessage]]], ms: int
    ) -> _Attempt:
        now = asyncio.get_running_loop().time()
        known = self.attempts.get(attempt_id)
        if known is not None:
            if known.invisible_until is None or known.invisible_until > now:
                return known
            self._forget(attempt_id)
        while len(self.attempts) >= _ATTEMPTS_MAX:
            self._forget(next(iter(self.attempts)))
        attempt = self.attempts[attempt_id] = _Attempt(asyncio.get_running_loop().create_future())
        spawn(self._run(attempt_id, attempt, receive, ms), name="grpc-receive")
        return attempt

    def _look_whether_told_soon(self, attempt_id: str, attempt: _Attempt) -> None:
        if not attempt.is_told and not attempt.clients:
            asyncio.get_running_loop().call_later(
                REPEATED_S_MAX, self._look_whether_told, attempt_id, attempt
            )

    def _look_whether_told(self, attempt_id: str, attempt: _Attempt) -> None:
        if attempt.invisible_until is None or attempt.is_told or attempt.clients:
            return
        attempt.is_told = True  # or others will be
        if self.attempts.get(attempt_id) is attempt:
            self._forget(attempt_id)
        give_back(self.consumer, attempt.messages.result())

    async def _run(
        self,
        attempt_id: str,
        attempt: _Attempt,
        receive: Callable[[], Awaitable[list[PoppedMessage]]],
        ms: int,
    ) -> None:
        try:
            found = await receive()
        except PacelineError as error:
            attempt.messages.set_exception(error)
            attempt.messages.exception()  # whoever asked may have gone
            found = []
        except BaseException:
            attempt.messages.cancel()
            raise
        else:
            attempt.messages.set_result(found)
        is_remembered = self.attempts.get(attempt_id) is attempt
        if not found:
            if is_remembered:
                self._forget(attempt_id)
            return
        attempt.invisible_until = asyncio.get_running_loop().time() + ms / 1000
        size = bytes_of(found)
        if is_remembered and self.holder.take(size):
            attempt.size = size
            self.attempt_of.update(dict.fromkeys((each.handle for each in found), attempt_id))
        elif is_remembered:
            self.attempts.pop(attempt_id)  # a repetition is given others
        self._look_whether_told_soon(attempt_id, attempt)

    async def close(self) -> None:
        """Give back what no client was told of."""
        for attempt_id, attempt in list(self.attempts.items()):
            attempt.clients = 0
            self._look_whether_told(attempt_id, attempt)
            attempt.is_told = True
        try:
            await self.consumer.close()
        finally:
            self.attempts.clear()
            self.holder.close()
            for release in self.releases:
                release()

    def done_with(self, handle: str) -> None:
        """What was acknowledged or changed is not given again."""
        attempt_id = self.attempt_of.get(handle)
        if attempt_id is not None:
            self._forget(attempt_id)

    def _forget(self, attempt_id: str) -> None:
        attempt = self.attempts.pop(attempt_id, None)
        if attempt is not None and attempt.invisible_until is not None:
            self.holder.give(attempt.size)
            for message in attempt.messages.result():
                self.attempt_of.pop(message.handle, None)


class Receivers:
    """Owned by one gateway's gRPC door. What is made here is of a client that was just heard of,
    and ends when that client is forgotten."""

    def __init__(self, clients: ConnectedClients, budget: ByteBudget) -> None:
        self._clients = clients
        self._budget = budget
        self._receivers: OrderedDict[Wanted, Receiver] = OrderedDict()
        """Which was used longest ago comes first."""
        self._of_client: dict[ClientKey, dict[str, list[tuple[Wanted, Receiver]]]] = {}
        """By group; to find who lengthens the time of a message."""
        self._ackers: dict[ClientKey, dict[tuple[UserCluster, str], Receiver]] = {}
        """Of clients that have received elsewhere, by group."""
        self._shares = Shares(RECEIVERS_MAX, "receivers")
        """Of both."""
        self._closing: set[asyncio.Task[None]] = set()
        clients.on_gone(self._gone)

    async def close(self) -> None:
        """Give back what no receive has returned."""
        ackers = [each for of_client in self._ackers.values() for each in of_client.values()]
        everyone = [*self._receivers.values(), *ackers]
        self._receivers.clear()
        self._of_client.clear()
        self._ackers.clear()
        await asyncio.gather(*(each.close() for each in everyone), *self._closing)

    def receiver(self, wanted: Wanted, subscription: Subscription) -> Receiver:
        """That of a client for a group and a subscription. OverloadedError, ForbiddenError."""
        self._clients.hear(wanted.key, "grpc", wanted.cluster.principal.source)
        found = self._receivers.get(wanted)
        if found is not None:
            self._used(wanted, found)
            return found
        self._end_unused()
        settings = SimpleSettings(
            auto_renew=wanted.auto_renew, auto_renew_ms_max=RENEW_MS_MAX, ordered=wanted.ordered
        )
        found = self._receivers[wanted] = self._made(
            wanted.cluster,
            group=wanted.group,
            topics=[subscription],
            settings=settings,
            client_id=broker_id(wanted.key.client_id),
        )
        self._used(wanted, found)
        by_group = self._of_client.setdefault(wanted.key, {})
        by_group.setdefault(wanted.group, []).append((wanted, found))
        return found

    def consumer_of(
        self, key: ClientKey, group: str, cluster: UserCluster, handle: str
    ) -> SimpleConsumer:
        """Who acknowledges or changes the message of that receipt. OverloadedError."""
        self._clients.hear(key, "grpc", cluster.principal.source)
        receivers = self._of_client.get(key, {}).get(group, [])
        for wanted, receiver in receivers:
            receiver.done_with(handle)
            if renews(receiver.consumer, handle):
                self._used(wanted, receiver)
                return receiver.consumer
        if receivers:
            self._used(*receivers[-1])
            return receivers[-1][1].consumer
        found = self._ackers.get(key, {}).get((cluster, group))
        if found is None:
            found = self._made(cluster, group=group, client_id=broker_id(key.client_id))
            self._ackers.setdefault(key, {})[cluster, group] = found
        return found.consumer

    def _made(self, cluster: UserCluster, **options: Any) -> Receiver:
        principal = cluster.principal
        give = self._shares.take(owner_of(principal.user, principal.source))
        try:
            consumer = SimpleConsumer(cluster.cluster, is_introduced=False, **options)
        except BaseException:
            give()
            raise
        holder = self._budget.holder(principal.source)
        return Receiver(consumer, [cluster.hold(), give], holder)

    def _used(self, wanted: Wanted, receiver: Receiver) -> None:
        receiver.used_at = asyncio.get_running_loop().time()
        self._receivers.move_to_end(wanted)

    def _end_unused(self) -> None:
        """Some of those that nobody has asked for for long: a client may name another subscription
        each time, and live for ever."""
        now = asyncio.get_running_loop().time()
        for wanted, receiver in list(islice(self._receivers.items(), _ENDED_AT_ONCE)):
            if now - receiver.used_at < UNUSED_S:
                return
            if not receiver.is_idle:
                self._used(wanted, receiver)
                continue
            del self._receivers[wanted]
            by_group = self._of_client[wanted.key]
            by_group[wanted.group].remove((wanted, receiver))
            if not by_group[wanted.group]:
                del by_group[wanted.group]
            self._ending(receiver.close())

    def _gone(self, client: ConnectedClient) -> None:
        """A client has gone: its messages are given to others when their time is over."""
        ending: list[Receiver] = []
        for receivers in self._of_client.pop(client.key, {}).values():
            for wanted, receiver in receivers:
                del self._receivers[wanted]
                ending.append(receiver)
        ending += self._ackers.pop(client.key, {}).values()
        self._ending(self._end(client, ending))

    def _ending(self, work: Coroutine[Any, Any, None]) -> None:
        task = spawn(work, name="grpc-receivers-end")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _end(self, client: ConnectedClient, receivers: list[Receiver]) -> None:
        await asyncio.gather(*(receiver.close() for receiver in receivers))
        cluster = client.cluster
        view = None if cluster is None else cluster.cluster.view
        if not client.has_left or cluster is None or view is None:
            return  # it may be at another gateway
        release = cluster.hold()
        try:
            await asyncio.gather(
                *(
                    _tell_gone(cluster, broker_group, group, client.broker_id)
                    for group in client.groups
                    if settings_of(view, group).is_broadcasting
                    for broker_group in view.groups
                )
            )
        finally:
            release()


async def _tell_gone(
    cluster: UserCluster, broker_group: GroupName, group: str, client_id: str
) -> None:
    """Where a client of a broadcasting group stands need not be known any more."""
    request = EndReceive(group=group, client_id=client_id, has_gone=True)
    try:
        await cluster.links.call(broker_group, request, timeout_ms=_GONE_TIMEOUT_MS)
    except PacelineError as error:  # the broker forgets it later
        log.info("client_not_ended", extra={"group": broker_group, "error": error.message})


def bytes_of(messages: list[PoppedMessage]) -> int:
    """What they take, roughly."""
    return sum(len(message.body) + _MESSAGE_BYTES for message in messages)
