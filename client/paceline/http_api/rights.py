"""Who asks over HTTP, and whether he may: the same for brokers and controllers.

What is a request of the tables of calls is checked where it is carried out, by its fields, and here
only whether it comes from a user. What is none (`Resource`) is checked here, by the address. A
route that declares no rights is refused: it was forgotten.
"""

from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeAlias

from aiohttp import web

from paceline.errors import (
    ForbiddenError,
    PacelineError,
    QuotaExceededError,
    UnauthenticatedError,
)
from paceline.http_api.openapi import Resource
from paceline.platform.telemetry import Metrics
from paceline.security.access import ASKING, Access, Asker
from paceline.security.audit import REFUSALS, REQUEST_ID_HEADER
from paceline.security.audit_telling import using
from paceline.security.certificates import CLIENT_URI, uris_of
from paceline.security.delegation import is_delegated
from paceline.security.identity import Principal
from paceline.security.node_proof import NodeProofs
from paceline.security.quotas import UserQuota
from paceline.server.http_bodies import BODY_DIGEST
from paceline.server.http_guard import place_of
from paceline.wire.calls.request import Request
from paceline.wire.proof import CHALLENGE_HEADER, DIGEST_HEADER, NODE_HEADER, SOURCE_HEADER
from paceline.wire.rights import ANYBODY, KNOWN_USER, Needs
from paceline.wire.users import ANONYMOUS, NODE

ASKER = web.RequestKey("asker", Asker)
"""Who asks: set on each request before its handler runs."""
REQUEST_ID = web.RequestKey("request_id", str)
"""What the request is called, while rights are on."""

QUOTAS = web.RequestKey("quotas", list[UserQuota])
"""What the request counts for; `share` adds to them."""
NODE_CHALLENGE = web.RequestKey("node_challenge", str)
"""What the next proof of the node that asks is to cover."""

_READS = ("GET", "HEAD")
Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


def rights_middleware(
    access: Access,
    *,
    proofs: NodeProofs,
    calls: Iterable[type[Request[Any]]],
    others: Iterable[Resource],
) -> Any:
    """Inside the one that makes problem documents of errors. It raises UnauthenticatedError and
    NotAuthorizedError."""
    return _Rights(access, proofs=proofs, calls=calls, others=others).check


class _Rights:
    """Of the requests to one listener."""

    def __init__(
        self,
        access: Access,
        *,
        proofs: NodeProofs,
        calls: Iterable[type[Request[Any]]],
        others: Iterable[Resource],
    ) -> None:
        self._access = access
        self._proofs = proofs
        self._calls: dict[tuple[str, str], Needs] = {
            (route.method, route.path): KNOWN_USER if call.needs else ANYBODY
            for call in calls
            for route in call.routes
        }
        self._declared = self._calls | {(each.method, each.path): each.needs for each in others}

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        access, resource = self._access, request.match_info.route.resource
        is_route = request.match_info.http_exception is None and resource is not None
        method = "GET" if request.method == "HEAD" else request.method
        route = (method, "" if resource is None else resource.canonical)
        request_id = _name_request(access, request)
        principal: Principal | None = None
        try:
            principal = _principal(access, self._proofs, request)
            if request_id:
                principal = principal._replace(request_id=request_id)
            asker = request[ASKER] = Asker(access, principal)
            if not is_route:
                return await handler(request)
            return await self._judged(asker, request, handler, route)
        except REFUSALS as error:
            if access.is_on and "ask_again" not in error.details:  # no refusal: a node's first try
                if principal is None:
                    principal = Principal(ANONYMOUS, request.remote or "", request_id=request_id)
                access.audit.refused(principal.caller(), error, " ".join(route).strip())
            raise

    async def _judged(
        self, asker: Asker, request: web.Request, handler: Handler, route: tuple[str, str]
    ) -> web.StreamResponse:
        if route not in self._declared:
            raise ForbiddenError(f"{' '.join(route)} declares no rights")
        access, needs, field = self._access, self._declared[route], request.match_info.get
        asker.check(needs, field)
        _hold_connection(asker, request)
        ASKING.set(asker.bounded_user)
        version, quotas = access.version, _quotas(asker, request)
        request[QUOTAS] = []
        for quota in quotas:
            share(request, quota)
        response: web.StreamResponse | None = None
        with self._telling(asker, request, route):
            try:
                response = await handler(request)
            except PacelineError as error:
                asker.throttled(error)
                raise
            finally:
                for quota in request[QUOTAS]:
                    quota.pay(
                        bytes_in=max(0, request.content.total_bytes - _announced(request)),
                        bytes_out=(response and response.content_length) or 0,
                    )
        if version != access.version and route[0] in _READS:
            # Rights have changed while it waited: what it found may not be his any more.
            access.check_valid(asker.principal)
            asker.check(needs, field)
        return response

    def _telling(
        self, asker: Asker, request: web.Request, route: tuple[str, str]
    ) -> AbstractContextManager[None]:
        """Calls are told in the audit where they are carried out, all else here."""
        needs = self._declared[route]
        if route in self._calls or needs in (ANYBODY, KNOWN_USER):
            return nullcontext()
        field = request.match_info.get
        return using(asker, needs, field, " ".join(route))


def _name_request(access: Access, request: web.Request) -> str:
    """What the audit and the answer call it, while rights are on."""
    if not access.is_on:
        return ""
    found = access.audit.request_id(request.headers.get(REQUEST_ID_HEADER))
    request[REQUEST_ID] = found
    return found


def _quotas(asker: Asker, request: web.Request) -> list[UserQuota]:
    """Those that a request counts for: of its user, and of the namespace of its topic."""
    found = (asker.quota, asker.namespace_quota(request.match_info.get("topic", "")))
    return [quota for quota in found if quota is not None]


def share(request: web.Request, quota: UserQuota) -> None:
    """Have a request count for a quota too. QuotaExceededError while that is used up."""
    if quota in request[QUOTAS]:
        return
    quota.check()
    quota.pay(bytes_in=_announced(request), requests=1)
    request[QUOTAS].append(quota)


def _announced(request: web.Request) -> int:
    """Bytes of the body that are paid for before it is read, so that of many at once each pays."""
    return request.content_length or 0


def _hold_connection(asker: Asker, request: web.Request) -> None:
    """Count the connection for its user, as long as it is open. QuotaExceededError."""
    user, place = asker.bounded_user, place_of(request)
    if place is None or user is None or BODY_DIGEST in request:
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
    if REQUEST_ID in request:
        response.headers[REQUEST_ID_HEADER] = request[REQUEST_ID]
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
    metrics.sampled(
        "paceline_audit_records_total",
        "Records of the audit that this node has written.",
        lambda: access.audit.written_count,
    )
    metrics.sampled(
        "paceline_audit_dropped_total",
        "Refusals and samples that came too fast for the audit, and records that the disk did not"
        " take; alert when it grows.",
        lambda: access.audit.dropped_count,
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
    shown = headers.get("Authorization")
    if shown is None and (users := _certified(request)):
        return access.authenticate_certificate(users, source=source)
    if shown is not None and is_delegated(shown):
        read = partial(
            proofs.delegated,
            shown,
            cluster_id=access.security.cluster_id,
            is_relayed=BODY_DIGEST in request,
        )
        return access.authenticate_delegated(read, source=source)
    return access.authenticate(shown, source=source)
