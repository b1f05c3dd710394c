"""The HTTP endpoint of a broker: resources (DESIGN 8), and the upgrade to streams.

Handlers check what HTTP adds (content types, sizes, query parameters), call a use-case and write
its answer; errors become problem documents in one middleware. Nothing of the request is repeated in
an error body. docs/protocol/http.md is the contract.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from math import ceil
from typing import Any

import orjson
from aiohttp import web

from paceline.errors import (
    BadRequestError,
    NotYetAvailableError,
    PacelineError,
    TooLargeError,
    to_problem,
)
from paceline.http_api.calls import call_routes, check_parameters
from paceline.http_api.rights import (
    ASKER,
    add_safe_headers,
    register_access,
    rights_middleware,
    share,
)
from paceline.platform.telemetry import Metrics, register_budget, register_places
from paceline.security.listening import Listening, listen
from paceline.security.node_proof import NodeProofs
from paceline.security.node_tls import NodeTls
from paceline.security.visible import visible
from paceline.server.connections import Places
from paceline.server.http_guard import (
    OWN_HOSTS,
    check_request,
    counted_elsewhere,
    next_turn,
    place_of,
    problem_body,
)
from paceline.server.http_listener import Guard
from paceline.server.http_origin import own_hosts
from paceline.wire.calls.request import Request
from paceline.wire.calls.table import CALLS
from paceline.wire.cluster import ClusterView
from paceline.wire.stream import UPGRADE_TOKEN
from paceline.wire.views.scope import CONSUMER_GROUPS, TOPICS, Scope
from paceline_broker.metrics.features import (
    register_clients,
    register_delays,
    register_transactions,
)
from paceline_broker.metrics.reading import register_reading
from paceline_broker.metrics.replication import register_replication
from paceline_broker.ports import RoleState
from paceline_broker.server.http_messages import MessageRoutes
from paceline_broker.server.http_receipts import ReceiptRoutes
from paceline_broker.server.http_requests import (
    integer_parameter,
    json_answer,
    json_text,
    json_text_answer,
    read_json,
)
from paceline_broker.server.http_transactions import TransactionRoutes
from paceline_broker.server.openapi import OTHERS, broker_openapi
from paceline_broker.server.stream import StreamServer
from paceline_broker.service.counters import register
from paceline_broker.service.hooks import RequestWatch
from paceline_broker.service.service import Service

log = logging.getLogger("paceline.http")

PROBLEM_TYPE = "application/problem+json"
SHUTDOWN_S = 1.0
"""Handlers that are still at work after a stop so long are cancelled."""
ALWAYS_ANSWERED = ("/v1/status", "/v1/probe", "/metrics", "/healthz", "/readyz")
"""To people and peers who ask how this broker is, also where others take all connections."""
_SWITCHING = (
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n"
    b"Upgrade: " + UPGRADE_TOKEN.encode() + b"\r\n\r\n"
)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class BrokerHttp:
    """The client listener of one broker.

    `start` listens with all guards; `close` ends streams, then requests. A caller that runs `app`
    on a runner of its own calls `close` before the runner's clean-up.
    """

    def __init__(
        self,
        service: Service,
        *,
        metrics: Metrics,
        proofs: NodeProofs,
        hosts: frozenset[str] = own_hosts(allowed=()),
    ) -> None:
        """`hosts`: names of this node in `Host` (`own_hosts`), beside addresses; `proofs`: of
        nodes."""
        self._service = service
        self._metrics = metrics
        self._streams = StreamServer(service)
        register(metrics, service.counters, service.role, service.routes)
        self.places = Places(service.settings.connections_max)
        register_budget(metrics, service.budget)
        register_places(metrics, self.places)
        register_access(metrics, service.access)
        register_replication(metrics, service.role)
        metrics.sampled(
            "paceline_service_hook_errors_total",
            "Calls of the operator's hooks that raised what they should not; alert when it grows.",
            lambda: service.hooks.errors,
        )
        register_delays(metrics, service.delivery, service.role, service.routes)
        register_transactions(metrics, service)
        register_clients(metrics, service)
        register_reading(metrics, service)
        rights = rights_middleware(
            service.access, proofs=proofs, calls=CALLS.values(), others=OTHERS
        )
        self.app = web.Application(middlewares=[self._middleware(), rights])
        self.app[OWN_HOSTS] = hosts
        self.app.on_response_prepare.append(add_safe_headers)
        self.app.add_routes(self._routes_of())
        self._runner: web.AppRunner | None = None
        self._listening: Listening | None = None
        self._guard: Guard | None = None
        self._view: ClusterView | None = None
        self._view_text = b""
        """The JSON of that view: every client asks for each."""

    @property
    def connections_count(self) -> int:
        """Open connections, streams included."""
        return self.places.count

    async def start(self, host: str, port: int, *, tls: NodeTls | None = None) -> int:
        """Listen; returns the port (`port` 0 = any free one). Raises OSError."""
        # A handler whose client has gone is cancelled: a long poll must not wait for nobody.
        self._runner = web.AppRunner(
            self.app, access_log=None, handler_cancellation=True, shutdown_timeout=SHUTDOWN_S
        )
        await self._runner.setup()
        assert self._runner.server is not None
        self._guard = Guard(
            self._runner.server, self._service.budget, self.places, always=ALWAYS_ANSWERED
        )
        self._listening = await listen(self._guard, host, port, tls=tls)
        return self._listening.port

    def take_no_more(self) -> None:
        """Close the port; what is connected stays."""
        if self._listening is not None:
            self._listening.close()

    async def close(self) -> None:
        """Take no connection more, close the streams, then whatever else is open."""
        self.take_no_more()
        self._streams.close()
        if self._guard is not None:
            self._guard.close()
        if self._runner is not None:
            await self._runner.cleanup()

    def _routes_of(self) -> list[web.RouteDef]:
        service = self._service
        return [
            *MessageRoutes(service).routes(),
            *TransactionRoutes(service).routes(),
            *ReceiptRoutes(service).routes(),
            *call_routes(CALLS.values(), self._carry_out, read_json=read_json, answer=json_answer),
            web.get("/v1/stream", self._stream),
            web.post("/v1/call", self._call),
            web.get("/v1/pins", self._pins),
            web.put("/v1/pins/{owner}", self._put_pin),
            web.delete("/v1/pins/{owner}", self._remove_pin),
            web.get("/v1/routes", self._routes),
            web.get("/v1/watch", self._watch),
            web.get("/v1/probe", self._probe),
            web.get("/v1/openapi.json", self._openapi),
            web.get("/v1/status", self._status),
            web.get("/v1/epochs", self._epochs),
            web.get("/metrics", self._exposition),
            web.get("/healthz", self._healthz),
            web.get("/readyz", self._readyz),
        ]

    async def _carry_out(
        self, request: web.Request, type_: type[Request[Any]], document: Mapping[str, Any]
    ) -> dict[str, Any]:
        asker, name = request[ASKER], type_.call_name()
        counts = partial(share, request)
        return await self._service.calls.named(name, document, asker=asker, share=counts)

    # -- errors ------------------------------------------------------------------------------------

    def _middleware(self) -> Any:
        counters = self._service.counters
        watch = self._service.hooks.watch(self._service.clock)

        @web.middleware
        async def problems(request: web.Request, handler: Handler) -> web.StreamResponse:
            counters.http_requests += 1
            if watch is not None:
                handler = watched(watch, request, handler)
            try:
                if not request.raw_path.startswith("/"):
                    raise BadRequestError("the request target must be a path", field="path")
                check_request(request)
                return await handler(request)
            except PacelineError as error:
                counters.refused(error.code)
                return problem_answer(error)
            except ConnectionResetError:
                # The client left before its answer: no fault of ours, and nobody reads this one.
                return web.Response()
            except web.HTTPException as error:
                code = error.reason.upper().replace(" ", "_").replace("-", "_")
                body = problem_body(code, error.status, error.reason)
                response = web.Response(status=error.status, body=body, content_type=PROBLEM_TYPE)
                if "Allow" in error.headers:
                    response.headers["Allow"] = error.headers["Allow"]
                return response

        return problems

    # -- streams and calls -------------------------------------------------------------------------

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        """Turn the connection into a stream; the handler stays until that ends."""
        check_parameters(request)
        is_upgrade = "upgrade" in request.headers.get("Connection", "").lower()
        if not is_upgrade or request.headers.get("Upgrade", "").lower() != UPGRADE_TOKEN:
            body = problem_body("UPGRADE_REQUIRED", 426, f"ask for Upgrade: {UPGRADE_TOKEN}")
            headers = {"Upgrade": UPGRADE_TOKEN, "Connection": "Upgrade"}
            return web.Response(status=426, body=body, content_type=PROBLEM_TYPE, headers=headers)
        transport = request.transport
        if transport is None:
            raise BadRequestError("the connection has gone")
        counted_elsewhere(request)
        transport.write(_SWITCHING)
        place = place_of(request)
        before = transport.get_protocol()
        connection = self._streams.upgrade(transport, before, place, asker=request[ASKER])
        await connection.closed
        # aiohttp has heard of the end: this answer goes nowhere.
        return web.Response()

    async def _call(self, request: web.Request) -> web.Response:
        check_parameters(request)
        document = await read_json(request)
        asker, counts = request[ASKER], partial(share, request)
        return json_answer(await self._service.calls.call(document, asker=asker, share=counts))

    # -- pins (R26) --------------------------------------------------------------------------------

    async def _pins(self, request: web.Request) -> web.Response:
        check_parameters(request)
        return json_answer(await self._service.pins.all())

    async def _put_pin(self, request: web.Request) -> web.Response:
        check_parameters(request)
        owner = request.match_info["owner"]
        document = await read_json(request)
        return json_answer(await self._service.pins.put(owner, document, asker=request[ASKER]))

    async def _remove_pin(self, request: web.Request) -> web.Response:
        check_parameters(request)
        return json_answer(await self._service.pins.remove(request.match_info["owner"]))

    # -- the cluster and this broker ---------------------------------------------------------------

    async def _routes(self, request: web.Request) -> web.Response:
        version = integer_parameter(check_parameters(request, "version"), "version")
        timeout_ms = self._service.settings.view_wait_ms
        return await self._view_newer(request, version - 1, timeout_ms, None)

    async def _watch(self, request: web.Request) -> web.Response:
        """The view once it is newer than `from`, or after `wait_ms` as it is; with names of
        `topics` and `consumer_groups` these and no others."""
        parameters = check_parameters(request, "from", "wait_ms", TOPICS, CONSUMER_GROUPS)
        scope = Scope.from_parameters(parameters)
        limit = self._service.settings.fetch_wait_ms_max
        wait_ms = min(integer_parameter(parameters, "wait_ms", default=limit), limit)
        version = integer_parameter(parameters, "from")
        return await self._view_newer(request, version, wait_ms, scope)

    async def _view_newer(
        self, request: web.Request, version: int, timeout_ms: int, scope: Scope | None
    ) -> web.Response:
        routes = self._service.routes
        await routes.wait_newer(version, timeout_ms=timeout_ms)
        await next_turn(request)
        view = routes.view
        if view is None:
            raise NotYetAvailableError("no controller has told this broker the routes yet")
        asker = request[ASKER]
        if scope is not None:
            view = scope.view(view)
            shown = visible(asker, view) if asker.has_own_view else view
            return json_answer(shown.to_json())
        if asker.has_own_view:
            return json_answer(self._service.views.document(asker, view))
        if view is not self._view:
            self._view, self._view_text = view, json_text(view.to_json())
        return json_text_answer(self._view_text)

    async def _openapi(self, request: web.Request) -> web.Response:
        check_parameters(request)
        return json_answer(broker_openapi())

    async def _probe(self, request: web.Request) -> web.Response:
        """Who answers at this address (R19): controllers and masters ask."""
        role = self._service.role
        identity = role.identity
        return json_answer(
            {
                "cluster_id": identity.cluster_id,
                "group": identity.group,
                "replica_id": identity.replica_id,
                "incarnation": identity.incarnation,
                "role": role.state.value,
                "epoch": role.epoch,
                "is_stopped": role.status().get("stopped") is not None,  # R22
            }
        )

    async def _status(self, request: web.Request) -> web.Response:
        counters = self._service.counters
        service = {
            "streams_open": counters.streams_open,
            "batches_in": counters.batches_in,
            "requests": {"stream": counters.stream_requests, "http": counters.http_requests},
            "errors": counters.errors,
        }
        access = self._service.access.security
        security = {"mode": access.mode, "version": access.version}
        status = self._service.role.status()
        return json_answer({**status, "service": service, "security": security})

    async def _epochs(self, request: web.Request) -> web.Response:
        """The epoch table of this log; what RocketMQ's getBrokerEpoch shows."""
        check_parameters(request)
        role = self._service.role
        return json_answer(
            {
                "group": role.identity.group,
                "replica_id": role.identity.replica_id,
                "role": role.state.value,
                "epoch": role.epoch,
                "confirm": role.reader.confirm,
                "epochs": role.reader.epochs(),
            }
        )

    async def _exposition(self, request: web.Request) -> web.Response:
        body, content_type = self._metrics.exposition()
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _healthz(self, request: web.Request) -> web.Response:
        """A disk that is only slow is no reason to start anew: the next start would have it too."""
        is_fit = self._service.role.is_fit()
        return json_answer({"healthy": is_fit}, status=200 if is_fit else 503)

    async def _readyz(self, request: web.Request) -> web.Response:
        """Ready = can serve its part: an open master, or a replica that knows confirm."""
        role = self._service.role
        match role.state:
            case RoleState.MASTER:
                is_ready = role.writer().is_open
            case RoleState.REPLICA | RoleState.ACTING_MASTER:
                is_ready = role.reader.is_readable
            case _:
                is_ready = False
        is_ready = is_ready and role.is_fit() and self._service.routes.view is not None
        document = {"ready": is_ready, "role": role.state.value}
        return json_answer(document, status=200 if is_ready else 503)


def watched(watch: RequestWatch, request: web.Request, handler: Handler) -> Handler:
    """The handler, with the watchers told of the request and of its outcome."""

    async def handled(asked: web.Request) -> web.StreamResponse:
        resource = request.match_info.route.resource
        name = "unknown" if resource is None else resource.canonical
        context = watch.begin("http", f"{request.method} {name}", request.content_length or 0)
        code: str | None = "CONNECTION_LOST"
        try:
            response = await handler(asked)
            code = None
            return response
        except PacelineError as error:
            code = error.code
            raise
        except web.HTTPException as error:
            code = str(error.status)
            raise
        finally:
            watch.end(context, code)

    return handled


def problem_answer(error: PacelineError) -> web.Response:
    """The answer that an error becomes; the only place where its `status` is used."""
    body = orjson.dumps(to_problem(error))
    response = web.Response(status=error.status, body=body, content_type=PROBLEM_TYPE)
    retry_after_ms = error.details.get("retry_after_ms")
    if isinstance(retry_after_ms, int):
        response.headers["Retry-After"] = str(max(1, ceil(retry_after_ms / 1000)))
    if isinstance(error, TooLargeError):
        response.force_close()  # the rest of the body is not read
    return response
