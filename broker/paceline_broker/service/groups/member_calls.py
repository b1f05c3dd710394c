"""Calls of the members of consumer groups, and about connected clients, topics and routes."""

from collections.abc import AsyncIterator, Callable, Hashable, Iterable
from typing import Any

from paceline.errors import BadRequestError
from paceline.platform.ports import Clock
from paceline.platform.runtime import pause
from paceline.security.access import ASKING, Asker
from paceline.security.visible import VisibleViews
from paceline.wire.calls import groups as wire
from paceline.wire.clients import Conflicts, Merging, Row
from paceline.wire.names import (
    check_group_name,
    check_name,
    check_readable_topic_name,
    check_topic_name,
)
from paceline_broker.ports import Role
from paceline_broker.service.groups.clients import ClientInfo, ClientTable, Introduced, Peer
from paceline_broker.service.groups.members import Coordinator, Owned
from paceline_broker.service.produce.auto_create import AutoCreator
from paceline_broker.service.routes import Routes
from paceline_broker.service.rpc import AskerHandlers, CallerHandlers, Handlers
from paceline_broker.service.settings import ServiceSettings

TURN_TOPICS = 1000
"""Clients, and the topics that they name, in one turn of the loop."""


class MemberCalls:
    """`heartbeat`, `leave`, `members`, `ensure_topic`, `ensure_group`, `routes`."""

    def __init__(
        self,
        coordinator: Coordinator,
        routes: Routes,
        creator: AutoCreator,
        settings: ServiceSettings,
        views: VisibleViews,
    ) -> None:
        self._views = views
        self._coordinator = coordinator
        self._routes = routes
        self._creator = creator
        self._settings = settings

    def handlers(self) -> Handlers:
        return {
            wire.Leave: self.leave,
            wire.Members: self.members,
            wire.EnsureTopic: self.ensure_topic,
            wire.EnsureGroup: self.ensure_group,
        }

    def handlers_of_askers(self) -> AskerHandlers:
        return {wire.Routes: self.routes}

    def handlers_of_callers(self) -> CallerHandlers:
        return {wire.Heartbeat: self.heartbeat}

    async def heartbeat(self, asked: wire.Heartbeat, caller: Hashable) -> Any:
        group = check_name(asked.group, "group")
        topics, about = _topics(asked.topics), _about(asked)
        is_broadcasting = asked.message_model == "broadcasting"
        owned = _owned(asked.owned)
        self._routes.check_consume(group, is_broadcasting=is_broadcasting)
        await self._creator.ensure_group(group)
        return await self._coordinator.heartbeat(
            group,
            asked.client_id,
            topics,
            owned,
            generation=asked.generation,
            wait_ms=asked.wait_ms,
            via=caller,
            about=about,
        )

    async def leave(self, asked: wire.Leave) -> Any:
        return self._coordinator.leave(check_name(asked.group, "group"), asked.client_id)

    async def members(self, asked: wire.Members) -> Any:
        return self._coordinator.describe(check_name(asked.group, "group"))

    async def ensure_topic(self, asked: wire.EnsureTopic) -> wire.TopicMade:
        made = await self._creator.ensure_topic(check_topic_name(asked.topic))
        return wire.TopicMade(made.to_json())

    async def ensure_group(self, asked: wire.EnsureGroup) -> wire.GroupMade:
        made = await self._creator.ensure_group(check_group_name(asked.group))
        return wire.GroupMade(made.to_json())

    async def routes(self, asked: wire.Routes, asker: Asker) -> dict[str, Any]:
        timeout_ms = self._settings.view_wait_ms
        await self._routes.wait_newer(asked.version - 1, timeout_ms=timeout_ms)
        view = self._routes.view
        if view is None or not asker.has_own_view:
            return {} if view is None else view.to_json()
        return self._views.document(asker, view)


class ClientCalls:
    """`client` and `clients`; the table outlives every role, as the connections do."""

    def __init__(
        self,
        role: Role,
        clock: Clock,
        settings: ServiceSettings,
        *,
        heard: Callable[[str, str], None],
    ) -> None:
        """`heard`: told the group and the client id of each consumer that says that it is there."""
        self._role = role
        self._heard = heard
        self._clock = clock
        self.clients = ClientTable(
            expired_ms=settings.channel_expired_timeout_ms, clients_max=settings.clients_max
        )

    def handlers(self) -> Handlers:
        return {wire.Clients: self.list}

    def handlers_of_callers(self) -> CallerHandlers:
        return {wire.Client: self.hear}

    async def hear(self, asked: wire.Client, caller: Hashable) -> wire.Nothing:
        about = _about(asked)
        if about and asked.kind == "producer":
            raise BadRequestError(f"client: a producer has no {min(about)}", field=min(about))
        info = ClientInfo(
            kind=asked.kind,
            group=check_name(asked.group, "group"),
            client_id=asked.client_id,
            user=ASKING.get(),
            version=asked.version,
            language=asked.language,
            topics=_topics(asked.topics),
            about=about,
            door=asked.door,
        )
        if asked.has_gone:
            self.clients.gone(info, via=caller)
            return wire.Nothing()
        if asked.kind == "consumer":
            self._heard(info.group, info.client_id)
        address = None
        if isinstance(caller, Peer):
            address = caller.peer if asked.door is None else caller.source
        now_ms = self._clock.monotonic_ms()
        self.clients.hear(info, via=caller, address=address, now_ms=now_ms)
        if isinstance(caller, Introduced) and asked.door is None:
            caller.is_client(asked.client_id)
        return wire.Nothing()

    async def list(self, asked: wire.Clients) -> wire.ClientsOf:
        group = None if asked.group is None else check_name(asked.group, "group")
        if asked.topic is not None:
            check_readable_topic_name(asked.topic)
        now_ms = self._clock.monotonic_ms()
        self.clients.expire(now_ms)
        identity = self._role.identity
        broker = f"{identity.group}/{identity.replica_id or 0}"
        now_unix_ms = self._clock.unix_ms()
        listed = self.clients.rows(
            group=group, broker=broker, now_ms=now_ms, now_unix_ms=now_unix_ms
        )
        merging, different = Merging(), Conflicts()
        async for row in _in_turns(listed):
            merging.add(row)
        rows = []
        async for row in _in_turns(merging.rows()):
            different.add(row)  # among all members, whatever else is asked for
            is_of_topic = asked.topic is None or asked.topic in row["topics"]
            if asked.kind in (None, row["kind"]) and is_of_topic:
                rows.append(row)
        return wire.ClientsOf(rows, different.found())


async def _in_turns(rows: Iterable[Row]) -> AsyncIterator[Row]:
    """The rows; others have their turn in between."""
    looked = 0
    for row in rows:
        yield row
        looked += 1 + len(row["topics"])
        if looked > TURN_TOPICS:
            looked = 0
            await pause(0)


def _topics(topics: Iterable[str]) -> tuple[str, ...]:
    return tuple(check_readable_topic_name(topic) for topic in topics)


def _owned(owned: Iterable[wire.OwnedQueue]) -> Owned:
    checked = [(topic_id, check_name(group, "owned"), queue) for topic_id, group, queue in owned]
    return tuple(sorted(checked))


def _about(asked: wire.Heartbeat | wire.Client) -> dict[str, Any]:
    """What people read of a consumer."""
    for topic in asked.filters or ():
        check_readable_topic_name(topic)
    about = {
        "message_model": asked.message_model,
        "mode": asked.mode,
        "filters": asked.filters,
    }
    return {key: value for key, value in about.items() if value is not None}
