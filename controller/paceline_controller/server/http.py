"""Shell: the HTTP interface of a controller.

Reads answer what this node has applied, or with `?linearizable=true` what the leader has after a
read barrier. Those and all writes a follower relays to the leader (`relay.py`). Errors are problem
documents (RFC 9457). `paceline.wire.controller_calls` has the requests; what is none of them (views
as they are published, sessions, metrics) stands here and in openapi.py.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import orjson
from aiohttp import web

from paceline.errors import ForbiddenError, NotYetAvailableError
from paceline.http_api.calls import call_routes, check_parameters
from paceline.http_api.rights import ASKER, add_safe_headers, rights_middleware
from paceline.platform.address import parse_address
from paceline.platform.ports import Clock
from paceline.security.audit_telling import carrying_out
from paceline.security.visible import VisibleViews, visible
from paceline.server.http_guard import OWN_HOSTS, next_turn
from paceline.server.http_origin import own_hosts
from paceline.wire import session as wire
from paceline.wire.calls.request import Request, read_request
from paceline.wire.controller_calls.quorum import OpenSession
from paceline.wire.controller_calls.table import CALLS
from paceline.wire.views.scope import Scope
from paceline_controller.server.call_context import CallContext, Handlers, Node
from paceline_controller.server.consumer_group_calls import ConsumerGroupCalls
from paceline_controller.server.group_calls import GroupCalls
from paceline_controller.server.http_answers import JSON_BYTES_MAX, json_answer, json_body
from paceline_controller.server.http_errors import problem_middleware, query_flag, query_integer
from paceline_controller.server.http_once import SessionsOfUsers, once_of
from paceline_controller.server.logins import Logins
from paceline_controller.server.openapi import OTHERS, controller_openapi
from paceline_controller.server.quorum_calls import QuorumCalls
from paceline_controller.server.recovery_calls import RecoveryCalls
from paceline_controller.server.security_calls import SecurityCalls
from paceline_controller.server.topic_calls import TopicCalls
from paceline_controller.server.visible import visible_answer, visible_changes, whoami
from paceline_controller.server.watches import Watches

WATCH_MS_MAX = 60_000
WATCHES_MAX = 10_000
ALWAYS_ANSWERED = (wire.PATH, "/v1/heard/", "/metrics", "/healthz", "/readyz")
"""To people and peers, also where others take all connections."""


class ControllerHttp:
    """Resources of one controller."""

    def __init__(self, node: Node, *, clock: Clock) -> None:
        self.context = context = CallContext(node, clock=clock)
        self.node = node
        self.clock = clock
        self.watches = Watches(node.views, self._shown_version, clock=clock)
        self._logins = Logins(context, secrets=node.secrets)
        self._handlers: Handlers = {
            **QuorumCalls(context).handlers(),
            **GroupCalls(context).handlers(),
            **RecoveryCalls(context).handlers(),
            **TopicCalls(context).handlers(),
            **ConsumerGroupCalls(context).handlers(),
            **SecurityCalls(context, self._logins.passwords).handlers(),
        }
        self._views = VisibleViews()
        self._sessions = SessionsOfUsers(node.machine)
        self.app = web.Application(
            middlewares=[
                problem_middleware,
                rights_middleware(
                    node.access, proofs=node.proofs, calls=CALLS.values(), others=OTHERS
                ),
                node.relay.middleware,
            ],
            client_max_size=JSON_BYTES_MAX,
        )
        self.app.on_response_prepare.append(add_safe_headers)
        config = node.config
        self.app[OWN_HOSTS] = own_hosts(
            config.listen.host,
            *(parse_address(address).host for address in config.controllers),
            allowed=config.allowed_hosts,
        )
        self.app.add_routes(
            [
                *call_routes(
                    CALLS.values(), self._carry_out, read_json=json_body, answer=json_answer
                ),
                web.get(wire.PATH, node.sessions.serve),
                web.get("/v1/routes", self._routes),
                web.get("/v1/watch", self._watch),
                web.get("/v1/security/watch", self._watch_security),
                web.get("/v1/whoami", self._whoami),
                web.get("/v1/openapi.json", self._openapi),
                web.get("/metrics", self._metrics),
                web.get("/healthz", self._health),
                web.get("/readyz", self._ready),
            ]
        )

    async def _carry_out(
        self, request: web.Request, type_: type[Request[Any]], document: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        call, once = read_request(type_, document), once_of(request)
        asker = request[ASKER]
        with carrying_out(asker, call, tells_nodes=True):
            if type_ in self._logins.handlers:
                return await self._logins.handlers[type_](call, once, asker.principal.source)
            if isinstance(call, OpenSession) and once is not None:
                with self._sessions.opening(asker, once.session):
                    return await self._handlers[type_](call, once)
            return visible_answer(call, await self._handlers[type_](call, once), asker)

    # -- the view -----------------------------------------------------------------------------

    async def _routes(self, request: web.Request) -> web.Response:
        check_parameters(request, "linearizable")
        if query_flag(request, "linearizable"):
            await self.context.read_barrier()
        self._ensure_founded()
        return self._view_answer(request)

    async def _watch(self, request: web.Request) -> web.Response:
        """The view once its version is above `from`, or after `wait_ms` as it is; with `changes`
        only what leads there from the version `from`, if that is known. With names of `topics` and
        `consumer_groups` the view has these and no others, and changes are those of them."""
        since, scope = None, Scope.from_parameters(request.query)
        known = query_integer(request, "from", default=-1, low=-1)
        news_of = None  # who asks for no changes may lack more than what changes next
        if query_flag(request, "changes"):
            since, news_of = known, scope
        await self._news(request, lambda: self.watches.has_news(known, news_of), news_of)
        self._ensure_founded()
        return self._view_answer(request, since=since, scope=scope)

    async def _watch_security(self, request: web.Request) -> web.Response:
        """Users and rights, as brokers are told, once their version is above `from`, or after
        `wait_ms` as they are. It goes into no log: digests, and keys that are encrypted."""
        if not request[ASKER].principal.is_node:
            raise ForbiddenError("only nodes of this cluster are told all users and rights")
        known = query_integer(request, "from", default=-1, low=-1)
        await self._news(request, lambda: self.node.machine.security.version > known)
        self.node.access.check_current()
        security = self.node.machine.security
        return web.Response(
            body=msgspec.json.encode(security.without_passwords()), content_type="application/json"
        )

    async def _news(
        self, request: web.Request, are_there: Callable[[], bool], scope: Scope | None = None
    ) -> None:
        """Wait until there are news, for `wait_ms` at most."""
        wait_ms = query_integer(request, "wait_ms", default=0, high=WATCH_MS_MAX)
        deadline_ms = self.clock.monotonic_ms() + wait_ms
        while not are_there():
            left_ms = deadline_ms - self.clock.monotonic_ms()
            is_stopping = self.node.sessions.is_closing
            if left_ms <= 0 or is_stopping or len(self.watches) >= WATCHES_MAX:
                break
            await self.watches.wait(left_ms, scope)
            await next_turn(request)

    def _view_answer(
        self, request: web.Request, *, since: int | None = None, scope: Scope | None = None
    ) -> web.Response:
        asker, views = request[ASKER], self.node.views
        if asker.has_own_view:
            changes = None if since is None else views.changes(since, scope)
            changes = visible_changes(asker, changes)
            if changes is not None:
                body = orjson.dumps(changes.to_json())
            elif scope is not None:
                body = orjson.dumps(visible(asker, scope.view(views.view())).to_json())
            else:
                body = orjson.dumps(self._views.document(asker, views.view()))
        elif scope is not None:
            body = views.body_in(scope, since)
        else:
            body = views.body(since)
        return web.Response(body=body, content_type="application/json")

    # -- the node -----------------------------------------------------------------------------

    async def _metrics(self, request: web.Request) -> web.Response:
        body, content_type = self.node.metrics.metrics.exposition()
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _whoami(self, request: web.Request) -> web.Response:
        check_parameters(request)
        return json_answer(whoami(request[ASKER]))

    async def _openapi(self, request: web.Request) -> web.Response:
        return json_answer(controller_openapi())

    async def _health(self, request: web.Request) -> web.Response:
        return json_answer({"ok": True})

    async def _ready(self, request: web.Request) -> web.Response:
        """Knows a leader and the cluster."""
        if self.node.leader_address() is None:
            raise NotYetAvailableError("no controller leads")
        self._ensure_founded()
        return json_answer({"ok": True})

    # -- small things -------------------------------------------------------------------------

    def _shown_version(self) -> int:
        machine = self.node.machine
        return machine.version if machine.cluster_id else -1

    def _ensure_founded(self) -> None:
        if not self.node.machine.cluster_id:
            raise NotYetAvailableError("no controller has led this cluster yet")
