"""The HTTP listener of a gateway: metrics and health. Clients have doors of their own."""

from collections.abc import Awaitable, Callable
from math import ceil

import orjson
from aiohttp import web

from paceline.errors import PacelineError, to_problem
from paceline.http_api.openapi import Resource
from paceline.http_api.rights import add_safe_headers, register_access, rights_middleware
from paceline.platform.telemetry import Metrics, register_places
from paceline.security.access import Access
from paceline.security.listening import Listening, listen
from paceline.security.node_proof import NodeProofs
from paceline.security.node_tls import NodeTls
from paceline.server.byte_budget import ByteBudget
from paceline.server.connections import Places
from paceline.server.http_guard import OWN_HOSTS, check_request, problem_body
from paceline.server.http_listener import Guard
from paceline.server.http_origin import own_hosts
from paceline.wire.rights import ANYBODY, SEE_CLUSTER
from paceline_gateway.config import GatewayConfig

ALWAYS_ANSWERED = ("/metrics", "/healthz", "/readyz")
RESOURCES = (
    Resource("GET", "/metrics", "Metrics for Prometheus.", SEE_CLUSTER, answer="text/plain"),
    Resource("GET", "/healthz", "Whether the process works.", ANYBODY),
    Resource("GET", "/readyz", "Whether its doors are open and it knows the cluster.", ANYBODY),
)
_PROBLEM_TYPE = "application/problem+json"
_SHUTDOWN_S = 1.0

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class GatewayHttp:
    """Of one gateway. `start`, `close`."""

    def __init__(
        self,
        config: GatewayConfig,
        access: Access,
        *,
        proofs: NodeProofs,
        metrics: Metrics,
        budget: ByteBudget,
        on_refused: Callable[[str, PacelineError], None],
        why_not_ready: Callable[[], str],
    ) -> None:
        """`on_refused`: of `listen`. `why_not_ready`: empty once it is ready."""
        self._config, self._metrics, self._budget = config, metrics, budget
        self._on_refused, self._why_not_ready = on_refused, why_not_ready
        self._places = Places(config.connections_max)
        register_access(metrics, access)
        register_places(metrics, self._places)
        rights = rights_middleware(access, proofs=proofs, calls=(), others=RESOURCES)
        self.app = web.Application(middlewares=[_problems, rights])
        self.app[OWN_HOSTS] = own_hosts(config.listen.host, allowed=config.allowed_hosts)
        self.app.on_response_prepare.append(add_safe_headers)
        self.app.add_routes(
            [
                web.get("/metrics", self._exposition),
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
            ]
        )
        self._runner = web.AppRunner(self.app, access_log=None, shutdown_timeout=_SHUTDOWN_S)
        self._listening: Listening | None = None
        self._guard: Guard | None = None

    async def start(self, tls: NodeTls | None) -> int:
        """Listen; the port. OSError."""
        await self._runner.setup()
        assert self._runner.server is not None
        self._guard = Guard(self._runner.server, self._budget, self._places, always=ALWAYS_ANSWERED)
        self._listening = await listen(
            self._guard, *self._config.listen, tls=tls, on_refused=self._on_refused
        )
        return self._listening.port

    async def close(self) -> None:
        """Idempotent."""
        if self._listening is not None:
            self._listening.close()
        if self._guard is not None:
            self._guard.close()
        await self._runner.cleanup()

    async def _exposition(self, request: web.Request) -> web.Response:
        body, content_type = self._metrics.exposition()
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _healthz(self, request: web.Request) -> web.Response:
        return _json({"healthy": True})

    async def _readyz(self, request: web.Request) -> web.Response:
        why = self._why_not_ready()
        return _json({"ready": not why, "why": why}, status=503 if why else 200)


@web.middleware
async def _problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The one place where an error becomes an answer."""
    try:
        check_request(request)
        return await handler(request)
    except PacelineError as error:
        body = orjson.dumps(to_problem(error))
        answer = web.Response(status=error.status, body=body, content_type=_PROBLEM_TYPE)
        retry_after_ms = error.details.get("retry_after_ms")
        if isinstance(retry_after_ms, int):
            answer.headers["Retry-After"] = str(max(1, ceil(retry_after_ms / 1000)))
        return answer
    except web.HTTPException as error:
        code = error.reason.upper().replace(" ", "_").replace("-", "_")
        body = problem_body(code, error.status, error.reason)
        return web.Response(status=error.status, body=body, content_type=_PROBLEM_TYPE)


def _json(document: object, *, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(document), status=status, content_type="application/json")
