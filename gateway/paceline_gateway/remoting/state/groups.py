"""Consumer groups and producers that are connected here.

Each member that a client's heartbeats tell of is kept a member of its group at the coordinating
broker group, so native consumers and those of this door share a group. One member of each group
waits there for news; the others say now and then that they are still there.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from paceline.consumer.group.membership import coordinating_group
from paceline.errors import OverloadedError, PacelineError, PeerError
from paceline.filters import ALL, Filter, told
from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline.queues import QueueKey
from paceline.types import GroupName
from paceline.wire.calls import groups as wire
from paceline.wire.clients import Kind
from paceline_gateway.clusters import UserCluster
from paceline_gateway.connected_clients import ClientKey, ConnectedClients
from paceline_gateway.remoting.codec.codes import RequestCode, ResponseCode, version_text
from paceline_gateway.remoting.codec.heartbeats import ConsumerTold, Told
from paceline_gateway.remoting.state.peers import Peer

log = logging.getLogger("paceline.gateway")

_BEAT_TIMEOUT_MS = 3_000
_FIRST_BEAT_MS = 1_500
"""A client's heartbeat waits for the first one at the coordinator: it asks for the members next."""
_NEWS_WAIT_MS = 1_000
_BEAT_EVERY_S = 3.0
"""Brokers drop a member that is silent for 10 s."""
_RETRY_MS = 300
_CLAIM_S = 10.0
"""A queue counts as owned for so long after its last pull has ended."""
_LEAVE_TIMEOUT_MS = 2_000
ASK_MS = 10_000
"""mqadmin waits 15 s for what a consumer does with a message, and 3 to 5 s for what it tells."""


class Member:
    """One client in one group. It has a connection to the listener of each broker group."""

    def __init__(self, client_id: str, about: ConsumerTold) -> None:
        self.client_id = client_id
        self.told = about
        self.peers: dict[Peer, None] = {}
        self.beat_at = 0.0
        self.pulled: dict[QueueKey, float] = {}
        """When it last asked for messages of a queue."""

    def owned(self, now: float) -> list[tuple[int, str, int]]:
        """The queues that it works on."""
        self.pulled = {key: at for key, at in self.pulled.items() if now - at < _CLAIM_S + 20}
        return [(key.topic_id, str(key.group), key.queue_id) for key in self.pulled]


class Group:
    """The members of one consumer group that are connected here. Owned by `Groups`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.members: dict[str, Member] = {}
        self.generation = 0
        self.ids: list[str] = []
        """All members, also native ones and those at other gateways, as last heard."""
        self.task: asyncio.Task[None] | None = None

    def peers(self) -> list[Peer]:
        """One open connection of each member."""
        found = (next(filter(_is_open, each.peers), None) for each in self.members.values())
        return [peer for peer in found if peer is not None]

    def peer(self, client_id: str) -> Peer | None:
        """An open connection of that member."""
        member = self.members.get(client_id)
        return None if member is None else next(filter(_is_open, member.peers), None)

    def topics(self) -> set[str]:
        """What its members subscribe to."""
        return {topic for member in self.members.values() for topic in member.told.filters}


def _is_open(peer: Peer) -> bool:
    return peer.is_open


class Groups:
    """Of one user. All calls on the event loop."""

    def __init__(self, of: UserCluster, clients: ConnectedClients) -> None:
        """`clients`: who is connected to the gateway, by whatever door; told of ours."""
        self._of = of
        self._clients = clients
        self._cluster = of.cluster
        self._links = of.links
        self._loop = asyncio.get_running_loop()
        self._groups: dict[str, Group] = {}
        self.producers: dict[str, dict[str, dict[Peer, None]]] = {}
        """By group and client id."""
        self.on_producers: Callable[[str], None] = lambda group: None
        """A group of producers has come or gone."""
        self._leaving: dict[asyncio.Task[None], None] = {}

    async def close(self) -> None:
        """Leave all groups."""
        for name in list(self._groups):
            for client_id in list(self._groups[name].members):
                self._leave(name, client_id)
        if self._leaving:
            await asyncio.wait(dict(self._leaving), timeout=_LEAVE_TIMEOUT_MS / 1000)
        await cancel_and_wait(*self._leaving)

    def group(self, name: str) -> Group | None:
        return self._groups.get(name)

    def has_member(self, group: str, client_id: str) -> bool:
        found = self._groups.get(group)
        return found is not None and client_id in found.members

    def peer_of(self, client_id: str) -> Peer | None:
        """An open connection of a producer."""
        for clients in self.producers.values():
            for peer in clients.get(client_id, ()):
                if peer.is_open:
                    return peer
        return None

    def producers_of(self, group: str) -> list[Peer]:
        """One open connection of each producer of a group."""
        found = (
            next(filter(_is_open, each), None) for each in self.producers.get(group, {}).values()
        )
        return [peer for peer in found if peer is not None]

    def of_topic(self, topic: str) -> list[str]:
        """Groups with a member here that subscribes to a topic."""
        return sorted(
            name
            for name, group in self._groups.items()
            if any(topic in member.told.filters for member in group.members.values())
        )

    def subscription(self, group: str, peer: Peer, topic: str) -> Filter | None:
        """What a client wants of a topic, by its heartbeat; None: it has not said so."""
        told_of = self._told_before(peer, group)
        return None if told_of is None else told_of.filters.get(topic)

    def _told_before(self, peer: Peer, group: str) -> ConsumerTold | None:
        found = self._groups.get(group)
        member = None if found is None else found.members.get(peer.client_id)
        return None if member is None else member.told

    def pulled(self, group: str, peer: Peer, key: QueueKey) -> None:
        """A member asks for messages of a queue."""
        found = self._groups.get(group)
        member = None if found is None else found.members.get(peer.client_id)
        if member is not None:
            member.pulled[key] = self._loop.time()

    async def heard(self, peer: Peer, heartbeat: Told) -> None:
        """A client tells what it is. PacelineError: a group will not have it, or there is no room
        for it; the others do."""
        if peer.client_id and peer.client_id != heartbeat.client_id:
            self.left(peer)  # it was somebody else
        peer.client_id = heartbeat.client_id
        refusal: PacelineError | None = None
        new: list[tuple[Group, Member]] = []
        try:
            for name in heartbeat.producers:
                self._produces(peer, name)
            for told_of in heartbeat.consumers:
                before = self._told_before(peer, told_of.group)
                if before is not None and heartbeat.is_without_subscriptions:
                    told_of = before
                group, member = self._consumes(peer, told_of)
                has_changed = member.told.filters != told_of.filters
                member.told = told_of
                if (not member.beat_at or has_changed) and not told_of.is_broadcasting:
                    new.append((group, member))
        except OverloadedError as no_room:
            refusal = no_room
        errors = await asyncio.gather(*(self._beat(*each, wait_ms=0) for each in new))
        for (group, member), error in zip(new, errors, strict=True):
            if error is not None and error.is_definite and not member.beat_at:
                refusal = error  # the client's next heartbeat tries again
            elif group.task is None and group.members:
                group.task = spawn(self._run(group), name=f"members-{group.name}")
        if refusal is not None:
            raise refusal

    def _produces(self, peer: Peer, group: str) -> None:
        self._connected(peer, "producer", group)
        clients = self.producers.setdefault(group, {})
        clients.setdefault(peer.client_id, {})[peer] = None
        self.on_producers(group)

    def _consumes(self, peer: Peer, told_of: ConsumerTold) -> tuple[Group, Member]:
        """A member of its group; `told_of` is what counts now."""
        self._connected(peer, "consumer", told_of.group, told_of.filters)
        group = self._groups.setdefault(told_of.group, Group(told_of.group))
        member = group.members.setdefault(peer.client_id, Member(peer.client_id, told_of))
        member.peers[peer] = None
        return group, member

    def left(self, peer: Peer) -> None:
        """A connection has ended."""
        for name, group in list(self._groups.items()):
            member = group.members.get(peer.client_id)
            if member is not None:
                member.peers.pop(peer, None)
                if not member.peers:
                    self._leave(name, peer.client_id)
        for name in list(self.producers):
            self.left_producers(peer, name)

    def left_consumers(self, peer: Peer, group: str) -> None:
        """The client of a connection leaves a consumer group."""
        if self.has_member(group, peer.client_id):
            self._leave(group, peer.client_id)

    def left_producers(self, peer: Peer, group: str) -> None:
        """A connection is no producer's of a group any more."""
        peers = self.producers.get(group, {}).get(peer.client_id)
        if peers is not None:
            peers.pop(peer, None)
            if not peers:
                self._end_producer(group, peer.client_id)

    def _key(self, client_id: str, kind: Kind, group: str) -> ClientKey:
        return ClientKey(self._of.principal.user, client_id, f"{kind} {group}")

    def _connected(
        self, peer: Peer, kind: Kind, group: str, filters: Mapping[str, Filter] | None = None
    ) -> None:
        """Have the client shown. OverloadedError: there are too many."""
        source = self._of.principal.source
        client = self._clients.hear(self._key(peer.client_id, kind, group), "remoting", source)
        client.cluster, client.kind = self._of, kind
        client.on_silent = partial(self._silent, peer.client_id, kind, group)
        if kind == "consumer":
            client.running_info = partial(self._running_info, group, peer.client_id)
        names = self._cluster.namespace
        client.groups = {names.full_group(group)}
        client.topics = {names.full_topic(topic): each for topic, each in (filters or {}).items()}
        client.language, client.version = peer.language, version_text(peer.version)

    async def _running_info(self, name: str, client_id: str, *, has_stacks: bool) -> bytes:
        """307."""
        group = self._groups.get(name)
        peer = None if group is None else group.peer(client_id)
        if peer is None:
            raise PeerError("the client has gone")
        asking = {
            "consumerGroup": name,
            "clientId": client_id,
            "jstackEnable": str(has_stacks).lower(),
        }
        answer = await peer.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, asking, timeout_ms=ASK_MS)
        if answer.code != ResponseCode.SUCCESS:
            raise PeerError(f"the client answered {answer.code}: {(answer.remark or '')[:255]}")
        return bytes(answer.body)

    def _silent(self, client_id: str, kind: Kind, name: str) -> None:
        """It has sent no heartbeat for too long, whatever else it does."""
        if kind == "consumer" and self.has_member(name, client_id):
            self._leave(name, client_id)
        elif kind == "producer" and client_id in self.producers.get(name, {}):
            self._end_producer(name, client_id)

    def _end_producer(self, name: str, client_id: str) -> None:
        clients = self.producers[name]
        del clients[client_id]
        self._clients.gone(self._key(client_id, "producer", name))
        if not clients:
            del self.producers[name]
            self.on_producers(name)

    def _leave(self, name: str, client_id: str) -> None:
        group = self._groups[name]
        member = group.members.pop(client_id)
        self._clients.gone(self._key(client_id, "consumer", name))
        if not group.members:
            del self._groups[name]
            if group.task is not None:
                group.task.cancel()
        if not member.told.is_broadcasting:
            task = spawn(self._say_left(name, client_id), name=f"leave-{name}")
            self._leaving[task] = None
            task.add_done_callback(lambda done: self._leaving.pop(done, None))

    async def _say_left(self, name: str, client_id: str) -> None:
        request = wire.Leave(group=name, client_id=client_id)
        try:
            await self._links.call(self._coordinator(name), request, timeout_ms=_LEAVE_TIMEOUT_MS)
        except PacelineError as error:  # it drops the member when heartbeats stay away
            log.info("leave_failed", extra={"consumer_group": name, "error": error.message})

    # -- heartbeats to the coordinator ------------------------------------------------------------

    def _coordinator(self, name: str) -> GroupName:
        view = self._cluster.view
        assert view is not None
        return coordinating_group(self._cluster.namespace.full_group(name), view.groups)

    async def _run(self, group: Group) -> None:
        """Until the last member has gone."""
        while True:
            now = self._loop.time()
            members = [each for each in group.members.values() if not each.told.is_broadcasting]
            if not members:
                group.task = None
                return
            others = [each for each in members[1:] if now - each.beat_at >= _BEAT_EVERY_S]
            errors = await asyncio.gather(
                self._beat(group, members[0], wait_ms=_NEWS_WAIT_MS),
                *(self._beat(group, each, wait_ms=0) for each in others),
            )
            if any(errors):
                await pause(_RETRY_MS)

    async def _beat(self, group: Group, member: Member, *, wait_ms: int) -> PacelineError | None:
        """One heartbeat; why it was not answered, if it was not."""
        now = self._loop.time()
        wanted = {topic: each for topic, each in member.told.filters.items() if each != ALL}
        request = wire.Heartbeat(
            group=group.name,
            client_id=member.client_id,
            topics=list(member.told.filters),
            owned=member.owned(now),
            generation=group.generation,
            wait_ms=wait_ms,
            message_model="clustering",
            mode="concurrent" if member.told.is_push else "pull",
            filters={topic: told(each) for topic, each in wanted.items()},
        )
        timeout_ms = _BEAT_TIMEOUT_MS if member.beat_at else _FIRST_BEAT_MS
        try:
            answer, _ = await self._links.call(
                self._coordinator(group.name), request, timeout_ms=timeout_ms
            )
        except PacelineError as error:
            log.info(
                "heartbeat_failed", extra={"consumer_group": group.name, "error": error.message}
            )
            return error
        member.beat_at = now
        self._heard(group, answer)
        return None

    def _heard(self, group: Group, answer: wire.Rebalance) -> None:
        if answer.generation < group.generation:
            return
        group.generation = answer.generation
        ids = sorted(row.client_id for row in answer.members)
        if ids == group.ids:
            return
        group.ids = ids
        for member in group.members.values():
            _tell_one(member.peers, group.name)


def _tell_one(peers: Iterable[Peer], group: str) -> None:
    """Over one of its connections: a client looks at all its queues then."""
    for peer in peers:
        if peer.is_open:
            peer.tell(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group})
            return
