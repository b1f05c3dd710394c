"""Who asks over HTTP, and whether he may: the same for brokers and controllers.

What is a request of the tables of calls is checked where it is carried out, by its fields, and here
only whether it comes from a user. What is none (`Resource`) is checked here, by the address. A
route that declares no rights is refused: it was forgotten.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from aiohttp import web

from paceline.errors import (
    ForbiddenError,
    PacelineError,
    QuotaExceededError,
    UnauthenticatedError,
)
from paceline.http_api.openapi import Resource
from paceline.platform.telemetry import Metrics
from paceline.security.access import ASKING, NODE, Access, Asker, Principal
from paceline.security.certificates import CLIENT_URI, uris_of
from paceline.security.node_proof import NodeProofs
from paceline.security.quotas import UserQuota
from paceline.server.http_guard import BODY_DIGEST, place_of
from paceline.wire.calls.request import Request
from paceline.wire.proof import CHALLENGE_HEADER, DIGEST_HEADER, NODE_HEADER, SOURCE_HEADER
from paceline.wire.rights import ANYBODY, KNOWN_USER, Needs

ASKER = web.RequestKey("asker", Asker)
"""Who asks: set on each request before its handler runs."""

NODE_CHALLENGE = web.RequestKey("node_challenge", str)
"""What the next proof of the node that asks is to cover."""

_READS = ("GET", "HEAD")


def rights_middleware(
    access: Access,
    *,
    proofs: NodeProofs,
    calls: Iterable[type[Request[Any]]],
    others: Iterable[Resource],
) -> Any:
    """Inside the one that makes problem documents of errors. It raises UnauthenticatedError and
    NotAuthorizedError."""
    declared: dict[tuple[str, str], Needs] = {
        (route.method, route.path): KNOWN_USER if call.needs else ANYBODY
        for call in calls
        for route in call.routes
    }
    declared |= {(other.method, other.path): other.needs for other in others}

    @web.middleware
    async def check(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        principal = _principal(access, proofs, request)
        asker = request[ASKER] = Asker(access, principal)
        resource = request.match_info.route.resource
        if request.match_info.http_exception is not None or resource is None:
            return await handler(request)  # there is no such route
        method = "GET" if request.method == "HEAD" else request.method
        route = (method, resource.canonical)
        if route not in declared:
            raise ForbiddenError(f"{method} {resource.canonical} declares no rights")
        asker.check(declared[route], request.match_info.get)
        _hold_connection(asker, request)
        ASKING.set(asker.bounded_user)
        version, quotas = access.version, _quotas(asker, request)
        for quota in quotas:
            quota.check()
            quota.spend(requests=1)
        response: web.StreamResponse | None = None
        try:
            response = await handler(request)
        except PacelineError as error:
            asker.throttled(error)
            raise
        finally:
            for quota in quotas:
                quota.spend(
                    bytes_in=request.content.total_bytes,
                    bytes_out=(response and response.content_length) or 0,
                )
        if version != access.version and method in _READS:
            # Rights have changed while it waited: what it found may not be his any more.
            access.check_valid(principal)
            asker.check(declared[route], request.match_info.get)
        return response

    return check


def _quotas(asker: Asker, request: web.Request) -> list[UserQuota]:
    """Those that a request counts for: of its user, and of the namespace of its topic."""
    found = (asker.quota, asker.namespace_quota(request.match_info.get("topic", "")))
    return [quota for quota in found if quota is not None]


def _hold_connection(asker: Asker, request: web.Request) -> None:
    """Count the connection for its user, as long as it is open. QuotaExceededError."""
    user, place = asker.bounded_user, place_of(request)
    if place is None or user is None or NODE_HEADER in request.headers:
        return  # of a node, also where it relays
    try:
        place.hold(user, asker.access.quotas.connect)
    except QuotaExceededError as error:
        asker.throttled(error)
        raise


def _certified(request: web.Request) -> frozenset[str]:
    """The users that the client's certificate is for, if it has shown one."""
    transport = request.transport
    certificate = None if transport is None else transport.get_extra_info("peercert")
    return uris_of(certificate, CLIENT_URI) if certificate else frozenset()


SAFE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""Of every answer: to a browser it is no page, belongs into no frame, and is not kept."""


async def add_safe_headers(request: web.Request, response: web.StreamResponse) -> None:
    """A signal of an application, `on_response_prepare`."""
    response.headers.update(SAFE_HEADERS)
    if response.status == UnauthenticatedError.status:
        response.headers["WWW-Authenticate"] = "Bearer"
    if NODE_CHALLENGE in request:
        response.headers[CHALLENGE_HEADER] = request[NODE_CHALLENGE]


def register_access(metrics: Metrics, access: Access) -> None:
    """Metrics of users and rights at a node."""
    metrics.sampled(
        "paceline_security_version_count",
        "Version of users and rights here; alert when it differs between nodes for long.",
        lambda: access.version,
    )
    metrics.sampled(
        "paceline_security_refused_total",
        "Requests that no policy allows, answered 401 or 403; alert when it grows.",
        lambda: access.refused_count,
    )
    metrics.sampled(
        "paceline_security_would_refuse_total",
        "Requests that would be refused if rights were enforced; enable them when it stands still.",
        lambda: access.would_refuse_count,
    )
    metrics.sampled(
        "paceline_quota_throttled_total",
        "How often a user had to wait or was refused for its quota, by what was used up (kind);"
        " alert when it grows, and raise it or ask why.",
        access.quotas.throttled,
        labels=("user", "kind"),
    )
    metrics.sampled(
        "paceline_quota_connections_count",
        "Open connections of users to this node, where rights are on; alert near their quota.",
        access.quotas.connections,
        labels=("user",),
    )
    metrics.sampled(
        "paceline_security_unauthenticated_total",
        "Requests with a key that is unknown, wrong, revoked or expired; alert when it grows.",
        lambda: access.unauthenticated_count,
    )


def _is_node(proofs: NodeProofs, request: web.Request) -> bool:
    """See `NodeProofs.is_node`. A node that shows an old challenge is told the present one."""
    request[NODE_CHALLENGE] = proofs.challenge
    if not proofs.is_node(request.method, request.raw_path, request.headers):
        del request[NODE_CHALLENGE]
        return False
    return True


def _principal(access: Access, proofs: NodeProofs, request: web.Request) -> Principal:
    source, headers = request.remote or "", request.headers
    if not source and access.is_on:
        # Its peer has gone already. Without an address no denial of addresses would match.
        raise UnauthenticatedError("the connection has ended: nobody knows where it came from")
    if NODE_HEADER in headers and _is_node(proofs, request):
        request[BODY_DIGEST] = headers.get(DIGEST_HEADER, "")
        if SOURCE_HEADER not in headers:
            return Principal(NODE, source, is_node=True)
        # A follower relays it, and says whose certificate it has seen.
        source, _, user = headers[SOURCE_HEADER].partition(" ")
        if user:
            return access.authenticate_certificate({user}, source=source)
    if "Authorization" not in headers and (users := _certified(request)):
        return access.authenticate_certificate(users, source=source)
    return access.authenticate(headers.get("Authorization"), source=source)
