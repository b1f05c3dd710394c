"""Which clients of RocketMQ are connected: soft state by client id, of both doors.

A client is heard of by its heartbeats, settings and requests, and forgotten 120 s after its last
word or when it says that it goes. No connection has to last: clients of some languages open theirs
anew only minutes after it broke. Brokers are told of each client every 30 s, over its user's
connections, so that `paceline client list` shows it.
"""

import asyncio
import logging
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from typing import NamedTuple, Protocol

from paceline.consumer.group_settings import settings_of
from paceline.errors import PacelineError
from paceline.filters import Filter, told
from paceline.platform.ports import Clock
from paceline.platform.runtime import pause
from paceline.types import GroupName
from paceline.wire.calls.groups import Client, Door
from paceline.wire.clients import (
    HEARTBEAT_BROKER_INTERVAL_MS,
    LANGUAGE_LENGTH_MAX,
    TOPICS_MAX,
    VERSION_LENGTH_MAX,
    Kind,
)
from paceline.wire.names import CLIENT_ID_PATTERN
from paceline_gateway.clusters import UserCluster
from paceline_gateway.shares import Shares, owner_of

log = logging.getLogger("paceline.gateway")

SILENT_MS = 120_000
"""RocketMQ's channelExpiredTimeout."""
CLIENTS_MAX = 20_000
GROUPS_MAX = 64
"""Of one client that has told no settings; RocketMQ's have one group each."""
_SWEEP_MS = 5_000
_TELL_TIMEOUT_MS = 5_000
_OTHERS = re.compile(r"[^A-Za-z0-9._:@/#-]")
_HASH_LENGTH = 16
CLIENT_ID_LENGTH_MAX = 255
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")


def broker_id(client_id: str) -> str:
    """A client's id as brokers take it; other clients' are others, as brokers tell clients of a
    group apart by them."""
    taken = _OTHERS.sub("_", client_id)
    if taken == client_id and re.fullmatch(CLIENT_ID_PATTERN, client_id):
        return client_id
    mark = sha256(client_id.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_LENGTH]
    return f"{taken[: CLIENT_ID_LENGTH_MAX - _HASH_LENGTH - 1]}-{mark}"


class ClientKey(NamedTuple):
    """Whose client it is, and its own id: ids of other users' clients are others."""

    user: str
    client_id: str
    role: str = ""
    """Which one of those that share an id: by remoting, a producer and a consumer may."""


class RunningInfoAsked(Protocol):
    """Asks a consumer what it does."""

    async def __call__(self, *, has_stacks: bool) -> bytes:
        """ConsumerRunningInfo as JSON, perhaps with the stacks of its threads. PeerError,
        DeadlineError; OverloadedError: the client does not read."""


@dataclass(slots=True, eq=False)
class ConnectedClient:
    """What is known of one client. Owner: the table; the doors fill it."""

    key: ClientKey
    door: Door
    cluster: UserCluster | None = None
    """Its user's, once it is known."""
    kind: Kind = "producer"
    groups: set[str] = field(default_factory=set)
    """Full names, of consumers."""
    topics: dict[str, Filter | None] = field(default_factory=dict)
    """Full names; of consumers with what they want of them."""
    language: str = ""
    version: str = ""
    heard_ms: int = 0
    told_ms: int | None = None
    """When brokers were told of it; None: not as it is now."""
    was_told: bool = False
    """Brokers list it, as it is or was."""
    has_left: bool = False
    """It said that it goes, and does not come back."""
    release: Callable[[], None] = lambda: None
    """It has its place no more."""
    on_silent: Callable[[], None] = lambda: None
    """Its door's: it is forgotten, as it has said nothing for too long."""
    running_info: RunningInfoAsked | None = None
    """Its door's; None: its protocol has no such question."""
    broker_id: str = field(init=False)
    """Its id as brokers take it."""

    def __post_init__(self) -> None:
        self.broker_id = broker_id(self.key.client_id)

    def works_for(self, group: str) -> None:
        """It has named that group; one that names too many is listed with the first ones."""
        if len(self.groups) < GROUPS_MAX:
            self.groups.add(group)

    def introductions(self, *, has_gone: bool = False) -> Iterable[Client]:
        """What brokers are told: once for each group."""
        filters = {topic: told(wanted) for topic, wanted in self.topics.items() if wanted}
        is_consumer = self.kind == "consumer"
        view = None if self.cluster is None else self.cluster.cluster.view
        for group in sorted(self.groups) or (["DEFAULT_PRODUCER"] if not is_consumer else []):
            yield Client(
                kind=self.kind,
                group=group,
                client_id=self.broker_id,
                version=_text(self.version, VERSION_LENGTH_MAX),
                language=_text(self.language, LANGUAGE_LENGTH_MAX),
                topics=list(self.topics)[:TOPICS_MAX],
                message_model=settings_of(view, group).message_model if is_consumer else None,
                filters=filters if is_consumer else None,
                door=self.door,
                has_gone=has_gone,
            )


def _text(text: str, length: int) -> str:
    return _UNPRINTABLE.sub("?", text)[:length] or "-"


class ConnectedClients:
    """The table. `run` forgets who is silent, and tells brokers of the others."""

    def __init__(self, clock: Clock, *, clients_max: int = CLIENTS_MAX) -> None:
        self._clock = clock
        self._shares = Shares(clients_max, "clients", retry_after_ms=SILENT_MS)
        self._clients: OrderedDict[ClientKey, ConnectedClient] = OrderedDict()
        """Who was heard of longest ago comes first."""
        self._leaving: asyncio.Queue[ConnectedClient] = asyncio.Queue()
        """Brokers still list them."""
        self._on_gone: list[Callable[[ConnectedClient], None]] = []

    def __iter__(self) -> Iterator[ConnectedClient]:
        return iter(tuple(self._clients.values()))

    def __len__(self) -> int:
        return len(self._clients)

    def on_gone(self, listener: Callable[[ConnectedClient], None]) -> None:
        """Have a door told of clients that are forgotten."""
        self._on_gone.append(listener)

    def get(self, key: ClientKey) -> ConnectedClient | None:
        return self._clients.get(key)

    def find(
        self, client_id: str, kind: Kind, group: str, *, user: str | None
    ) -> ConnectedClient | None:
        """A client that brokers were told of: by its id there, the full name of its group, and
        whose it is (None: rights are off)."""
        for client in self._clients.values():
            if client.broker_id != client_id or user not in (None, client.key.user):
                continue
            if client.kind == kind and client.cluster is not None:
                full = client.cluster.cluster.namespace.full_group
                if any(full(each.group) == group for each in client.introductions()):
                    return client
        return None

    def counts(self) -> Counter[Kind]:
        """Clients by kind; one that has told several groups is one."""
        found = {(each.key[:2], each.kind) for each in self._clients.values()}
        return Counter(kind for _, kind in found)

    def hear(self, key: ClientKey, door: Door, source: str = "") -> ConnectedClient:
        """A client has said something, at that address. OverloadedError: there are too many."""
        client = self._clients.get(key)
        if client is None:
            owner = owner_of(key.user, source)
            if not self._shares.has_room(owner):
                self.expire()
            release = self._shares.take(owner)
            client = self._clients[key] = ConnectedClient(key, door, release=release)
        client.heard_ms = self._clock.monotonic_ms()
        self._clients.move_to_end(key)
        return client

    def gone(self, key: ClientKey) -> None:
        """A client says that it goes. Idempotent."""
        client = self._clients.get(key)
        if client is not None:
            client.has_left = True
            self._forget(client)
            if client.was_told:
                self._leaving.put_nowait(client)

    def expire(self) -> None:
        """Forget whom nothing was heard of for too long; it may be at another gateway."""
        silent_ms = self._clock.monotonic_ms() - SILENT_MS
        while self._clients:
            client = next(iter(self._clients.values()))
            if client.heard_ms > silent_ms:
                return
            self._forget(client)
            client.on_silent()

    def _forget(self, client: ConnectedClient) -> None:
        del self._clients[client.key]
        client.release()
        for listener in self._on_gone:
            listener(client)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._forget_silent())
            tasks.create_task(self._tell_of_all())
            tasks.create_task(self._tell_of_leaving())

    async def _forget_silent(self) -> None:
        while True:
            await pause(_SWEEP_MS)
            self.expire()

    async def _tell_of_all(self) -> None:
        while True:
            await pause(_SWEEP_MS)
            told_ms = self._clock.monotonic_ms() - HEARTBEAT_BROKER_INTERVAL_MS
            await self._tell(
                client
                for client in self._clients.values()
                if client.told_ms is None or client.told_ms <= told_ms
            )

    async def _tell_of_leaving(self) -> None:
        while True:
            leaving = [await self._leaving.get()]
            while not self._leaving.empty():
                leaving.append(self._leaving.get_nowait())
            # One that has come back is told of.
            gone = (client for client in leaving if client.key not in self._clients)
            await self._tell(gone, has_gone=True)

    async def _tell(self, clients: Iterable[ConnectedClient], *, has_gone: bool = False) -> None:
        """That they are there, or have gone. Users side by side: none waits for another's nodes."""
        of_users: dict[UserCluster, list[ConnectedClient]] = {}
        for client in clients:
            if client.cluster is not None:
                client.told_ms = None if has_gone else self._clock.monotonic_ms()
                client.was_told = True
                of_users.setdefault(client.cluster, []).append(client)
        await asyncio.gather(
            *(
                self._tell_group(cluster, group, of_user, has_gone=has_gone)
                for cluster, of_user in of_users.items()
                for group in (() if cluster.cluster.view is None else cluster.cluster.view.groups)
            )
        )

    async def _tell_group(
        self,
        cluster: UserCluster,
        group: GroupName,
        clients: Iterable[ConnectedClient],
        *,
        has_gone: bool,
    ) -> None:
        """The master of a broker group, as long as it answers. For people only: what it was not
        told, it is told with the next round."""
        try:
            connection = await cluster.links.link(group).wait_up(timeout_ms=_TELL_TIMEOUT_MS)
        except PacelineError as error:
            log.debug("clients_not_told", extra={"group": group, "error": error.message})
            return
        for client in clients:
            try:
                for introduction in client.introductions(has_gone=has_gone):
                    if not has_gone and self._clients.get(client.key) is not client:
                        break  # it has gone meanwhile
                    await connection.call(introduction, timeout_ms=_TELL_TIMEOUT_MS)
            except PacelineError as error:
                fields = {"client": client.broker_id, "error": error.message}
                log.debug("client_not_told", extra=fields)
                if not error.is_definite:
                    return
