"""Shell: the HTTP interface of a controller.

Reads answer what this node has applied, or with `?linearizable=true` what the leader has after a
read barrier. Those and all writes a follower relays to the leader (`relay.py`). Errors are problem
documents (RFC 9457). docs/protocol/controller.md lists the routes.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from paceline.errors import (
    BadRequestError,
    NotYetAvailableError,
)
from paceline.platform.address import parse_address
from paceline.platform.ports import Clock
from paceline.server.http_guard import OWN_HOSTS, next_turn
from paceline.server.http_origin import own_hosts
from paceline.types import GroupName, ReplicaId
from paceline.wire import session as wire
from paceline.wire.fields import Fields
from paceline_controller.leader.inquirer import heard_document
from paceline_controller.server.http_answers import (
    JSON_BYTES_MAX,
    json_answer,
    json_body,
    replica_of,
)
from paceline_controller.server.http_context import HttpContext, Node
from paceline_controller.server.http_errors import problem_middleware, query_integer
from paceline_controller.server.http_groups import GroupRoutes
from paceline_controller.server.http_once import once_of, opening, settled
from paceline_controller.server.http_quorum import QuorumRoutes
from paceline_controller.server.http_recovery import RecoveryRoutes
from paceline_controller.server.http_static_topics import StaticTopicRoutes
from paceline_controller.server.http_topics import TopicRoutes
from paceline_controller.server.not_found import no_broker_group
from paceline_controller.state.commands import SetGroupSettings
from paceline_controller.state.model import Group, read_settings

WATCH_MS_MAX = 60_000
WATCHES_MAX = 10_000
ALWAYS_ANSWERED = (wire.PATH, "/v1/heard/", "/metrics", "/healthz", "/readyz")
"""To people and peers, also where others take all connections."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ControllerHttp:
    """Routes of one controller."""

    def __init__(self, node: Node, *, clock: Clock) -> None:
        self.context = context = HttpContext(node, clock=clock)
        self.node = node
        self.clock = clock
        self._watches: set[asyncio.Future[None]] = set()
        self.app = web.Application(
            middlewares=[problem_middleware, node.relay.middleware], client_max_size=JSON_BYTES_MAX
        )
        config = node.config
        self.app[OWN_HOSTS] = own_hosts(
            config.listen.host,
            *(parse_address(address).host for address in config.controllers),
            allowed=config.allowed_hosts,
        )
        self.app.add_routes(
            [
                web.get(wire.PATH, node.sessions.serve),
                web.get("/v1/cluster", self._cluster),
                web.get("/v1/routes", self._routes),
                web.get("/v1/watch", self._watch),
                *TopicRoutes(context).routes(),
                *StaticTopicRoutes(context).routes(),
                web.get("/v1/groups", self._groups),
                web.get("/v1/groups/{group}", self._group),
                web.get("/v1/groups/{group}/settings", self._settings),
                web.put("/v1/groups/{group}/settings", self._set_settings),
                *GroupRoutes(context).routes(),
                *QuorumRoutes(context).routes(),
                *RecoveryRoutes(context).routes(),
                web.post("/v1/elections", self._elect),
                web.post("/v1/sessions", self._open_session),
                web.get("/v1/heard/{group}/{replica}", self._heard),
                web.get("/metrics", self._metrics),
                web.get("/healthz", self._health),
                web.get("/readyz", self._ready),
            ]
        )

    @property
    def watches_count(self) -> int:
        return len(self._watches)

    def wake_watches(self) -> None:
        """The version moved, or the node stops."""
        for watch in self._watches:
            if not watch.done():
                watch.set_result(None)

    # -- the view -----------------------------------------------------------------------------

    async def _cluster(self, request: web.Request) -> web.Response:
        """The view, with who leads and who seems alive."""
        await self.context.read_point(request)
        node, is_alive = self.node, self.context.is_alive
        document = node.view_json()
        groups = [
            {
                **group,
                "replicas": [
                    {**replica, "is_alive": is_alive(group["group"], replica["replica_id"])}
                    for replica in group["replicas"]
                ],
            }
            for group in document["groups"]
        ]
        status = node.quorum.status()
        return json_answer(
            {
                **document,
                "groups": groups,
                "cluster_name": node.machine.cluster_name or None,
                "controller_id": node.config.controller_id,
                "leader": status.leader,
                "leader_address": node.leader_address(),
                "term": status.term,
            }
        )

    async def _routes(self, request: web.Request) -> web.Response:
        await self.context.read_point(request)
        self._ensure_founded()
        return web.Response(body=self.node.view_body(), content_type="application/json")

    async def _watch(self, request: web.Request) -> web.Response:
        """The view once its version is above `from`, or after `wait_ms` as it is."""
        known = query_integer(request, "from", default=-1, low=-1)
        wait_ms = query_integer(request, "wait_ms", default=0, high=WATCH_MS_MAX)
        deadline_ms = self.clock.monotonic_ms() + wait_ms
        node = self.node
        while node.machine.version <= known or not node.machine.cluster_id:
            left_ms = deadline_ms - self.clock.monotonic_ms()
            is_stopping = node.sessions.is_closing
            if left_ms <= 0 or is_stopping or len(self._watches) >= WATCHES_MAX:
                break
            await self._wait_for_news(left_ms)
            await next_turn(request)
        self._ensure_founded()
        return web.Response(body=node.view_body(), content_type="application/json")

    async def _wait_for_news(self, at_most_ms: int) -> None:
        news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watches.add(news)
        try:
            await asyncio.wait([news], timeout=at_most_ms / 1000)
        finally:
            self._watches.discard(news)

    # -- groups -------------------------------------------------------------------------------

    async def _groups(self, request: web.Request) -> web.Response:
        await self.context.read_point(request)
        machine = self.node.machine
        groups = [self._describe(machine.groups[name]) for name in sorted(machine.groups)]
        return json_answer({"version": machine.version, "groups": groups})

    async def _group(self, request: web.Request) -> web.Response:
        await self.context.read_point(request)
        return json_answer(self._describe(self.context.find_group(request)))

    def _describe(self, group: Group) -> dict[str, Any]:
        """The group's view and what only the controllers know of it."""
        now_ms = self.clock.monotonic_ms()
        liveness = self.node.supervisor.liveness
        standings = {}
        for replica_id in sorted(group.replicas):
            report = liveness.report(group.group, replica_id)
            standings[str(replica_id)] = {
                "standing": liveness.belief(group, replica_id, now_ms).standing.value,
                "role": None if report is None else report.role.value,
                "election_priority": group.replicas[replica_id].election_priority,
                "last_epoch": None if report is None else report.last_epoch,
                "end": None if report is None else report.end,
                "flushed": None if report is None else report.flushed,
                "confirm": None if report is None else report.confirm,
            }
        following = group.next_settings
        return {
            **group.view().to_json(),
            "confirm_floor": group.confirm_floor,
            "is_open": group.is_open,
            "is_lossy": group.unclean_elections_count > 0,
            "is_claimed": group.is_claimed,
            "next_settings": None if following is None else following.to_json(),
            "standings": standings,
            "history": group.history,
        }

    async def _settings(self, request: web.Request) -> web.Response:
        await self.context.read_point(request)
        group = self.context.find_group(request)
        following = group.next_settings
        pending = None if following is None else following.to_json()
        return json_answer({"settings": group.settings.to_json(), "next_settings": pending})

    async def _set_settings(self, request: web.Request) -> web.Response:
        """Members that are left out keep their value. In effect with the next epoch (R8)."""
        body = await json_body(request)
        earlier = self.context.earlier(request)
        group = self.context.find_group(request)
        present = (group.next_settings or group.settings).to_json()
        for key in body:
            if key not in present:
                raise BadRequestError("settings: unknown field", field=key[:64])
        settings = read_settings({**present, **body})
        command = SetGroupSettings(group=group.group, settings=settings)
        result = earlier or await self.context.write(request, command)
        return json_answer(
            {"settings": settings.to_json(), "version": result["version"]}, status=202
        )

    async def _elect(self, request: web.Request) -> web.Response:
        """{group, preferred?, unclean?}: another master, a named one, or one that loses records."""
        fields = Fields(await json_body(request), name="election")
        name = GroupName(fields.text("group", length_max=127))
        preferred = fields.integer("preferred", low=1) if fields.has("preferred") else None
        is_unclean = fields.flag("unclean") if fields.has("unclean") else False
        fields.done()
        earlier = self.context.earlier(request)
        if earlier is not None:
            return json_answer(earlier)
        group = self.node.machine.groups.get(name)
        if group is None:
            raise no_broker_group(name, self.node.machine.groups, field="group")
        if is_unclean and preferred is None:
            raise BadRequestError("an unclean election names its winner", field="preferred")
        self.context.ensure_leading()
        result = await self.context.leaders_word(
            self.node.supervisor.order_election(
                group,
                preferred=None if preferred is None else ReplicaId(preferred),
                is_unclean=is_unclean,
                once=once_of(request),
            )
        )
        # One that was refused before it came to the log settles nothing.
        return json_answer(settled(result, once_of(request) if "version" in result else None))

    async def _open_session(self, request: web.Request) -> web.Response:
        """For commands that are to be done once, however often they are asked for (R38)."""
        once, command = opening(request, self.node.machine)
        result = await self.context.write(request, command)
        return json_answer({"session": once.session, "version": result["version"]}, status=201)

    async def _heard(self, request: web.Request) -> web.Response:
        """What this controller itself has heard of a replica; another one asks (R15)."""
        replica_id = replica_of(request)
        liveness = self.node.supervisor.liveness
        group = GroupName(request.match_info["group"])
        return json_answer(
            heard_document(liveness.last_heard(group, replica_id, self.clock.monotonic_ms()))
        )

    # -- the node -----------------------------------------------------------------------------

    async def _metrics(self, request: web.Request) -> web.Response:
        body, content_type = self.node.metrics.metrics.exposition()
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _health(self, request: web.Request) -> web.Response:
        return json_answer({"ok": True})

    async def _ready(self, request: web.Request) -> web.Response:
        """Knows a leader and the cluster."""
        if self.node.leader_address() is None:
            raise NotYetAvailableError("no controller leads")
        self._ensure_founded()
        return json_answer({"ok": True})

    # -- small things -------------------------------------------------------------------------

    def _ensure_founded(self) -> None:
        if not self.node.machine.cluster_id:
            raise NotYetAvailableError("no controller has led this cluster yet")
