"""Shell: a follower relays to the leader what only the leader can answer, once.

That is writes, and reads with `linearizable=true`. The answer is the leader's, as it is. What was
relayed is never relayed again: nobody may send it in circles while leadership moves. What cannot be
known is told as unknown (R32, R38): only a leader that was never reached is a definite refusal.
"""

import logging
from collections.abc import Awaitable, Callable

import aiohttp
from aiohttp import web

from paceline.errors import (
    NotLeaderError,
    OutcomeUnknownError,
    OverloadedError,
    PeerError,
    UnauthenticatedError,
    in_words,
)
from paceline.http_api.rights import ASKER, REQUEST_ID
from paceline.security.audit import REQUEST_ID_HEADER
from paceline.security.node_proof import NodeProofs
from paceline.security.node_tls import Dial
from paceline.server.http_bodies import BODY_DIGEST, receive_body
from paceline.wire.commands import NOT_RELAYED_HEADER, SEQUENCE_HEADER, SESSION_HEADER
from paceline.wire.controller_calls.base import Read
from paceline.wire.controller_calls.table import CALLS
from paceline.wire.proof import NODE_HEADER
from paceline.wire.users import ANONYMOUS, NODE
from paceline_controller.server.http_answers import JSON_BYTES_MAX
from paceline_controller.server.http_errors import query_flag

log = logging.getLogger("paceline.controller")

RELAYED = "Paceline-Relayed"
"""Header of a relayed request: the id of the controller that was asked."""
PASSED_ON = ("Content-Type", "Authorization", SESSION_HEADER, SEQUENCE_HEADER)
HANDED_BACK = ("Content-Type", "Retry-After")
_NEVER_RELAYED = (RELAYED, NODE_HEADER, NOT_RELAYED_HEADER)
METHODS = frozenset({"POST", "PUT", "DELETE"})
READS = frozenset(
    route.path for call in CALLS.values() if issubclass(call, Read) for route in call.routes
) | {"/v1/routes"}
"""Of the replicated state: with `linearizable=true` the leader's word counts."""
CONNECT_TIMEOUT_S = 1.0
MARGIN_MS = 3_000
"""Beside the time of a command: an ordered transfer waits for its master, and for reports."""
RELAYS_MAX = 256
ANSWER_BYTES_MAX = 1024 * 1024

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Relay:
    """One per controller. Keeps no connections: a stale one must not make an outcome unknown."""

    def __init__(
        self,
        leader: Callable[[], str | None],
        *,
        is_leading: Callable[[], bool],
        controller_id: str,
        timeout_ms: int,
        source_host: str,
        proofs: NodeProofs,
        dial: Dial,
    ) -> None:
        """`leader`: client address of another controller that leads; None: there is none."""
        self._leader = leader
        self._is_leading = is_leading
        self._controller_id = controller_id
        self._proofs = proofs
        self._dial = dial
        self._timeout_s = timeout_ms / 1000
        self._source = (source_host, 0) if source_host else None
        self._http: aiohttp.ClientSession | None = None
        self._relays_count = 0

    async def start(self) -> None:
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(local_addr=self._source, force_close=True, limit=0),
            timeout=aiohttp.ClientTimeout(total=self._timeout_s, connect=CONNECT_TIMEOUT_S),
            auto_decompress=False,
        )
        # aiohttp sends a broken-off PUT or DELETE a second time, unseen: the answer would be the
        # second one's ("there is no such topic"), and wrong of the first.
        self._http._retry_connection = False

    async def stop(self) -> None:
        if self._http is not None:
            await self._http.close()

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Inside the one that makes problem documents of errors."""
        if RELAYED in request.headers and BODY_DIGEST not in request:
            raise UnauthenticatedError("only a node of this cluster relays, and it proves that")
        if not _is_leaders(request) or self._is_leading():
            return await handler(request)
        leader = self._leader()
        if leader is None or any(header in request.headers for header in _NEVER_RELAYED):
            # Nor does the handler look: what a follower lacks is no proof that it is not there.
            raise NotLeaderError("this controller does not lead", leader=leader)
        # Before it counts: whoever sends a body slowly keeps nobody else from the leader.
        body = await receive_body(request, content_type=request.content_type, limit=JSON_BYTES_MAX)
        if self._relays_count >= RELAYS_MAX:
            raise OverloadedError("too many requests wait for the leader", retry_after_ms=100)
        self._relays_count += 1
        try:
            return await self._relay(request, body, leader)
        finally:
            self._relays_count -= 1

    async def _relay(self, request: web.Request, body: bytes, leader: str) -> web.Response:
        assert self._http is not None, "started before it serves"
        given = request.headers
        headers = {key: given[key] for key in PASSED_ON if key in given and given[key].isascii()}
        headers[RELAYED] = self._controller_id
        if REQUEST_ID in request:
            headers[REQUEST_ID_HEADER] = request[REQUEST_ID]
        what = f"{request.method} {request.path}"
        try:
            async with self._proofs.request(
                self._http,
                request.method,
                leader,
                request.raw_path,
                body=body,
                headers=headers,
                source=_source(request),
                allow_redirects=False,
                **self._dial.http(leader, request.raw_path),
            ) as answer:
                content = await _bounded(answer)
                return web.Response(
                    status=answer.status,
                    body=content,
                    headers={
                        key: answer.headers[key] for key in HANDED_BACK if key in answer.headers
                    },
                )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            log.warning("relay_unreached", extra={"leader": leader, "why": in_words(error)})
            raise NotLeaderError(
                f"this controller does not lead, and {leader}, which seems to, cannot be reached",
                leader=leader,
            ) from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            log.warning("relay_unknown", extra={"leader": leader, "why": in_words(error)})
            sentence = f"{what} was sent on to {leader}, which leads, and its answer did not come"
            if request.method in METHODS:
                raise OutcomeUnknownError(sentence) from error
            raise PeerError(sentence) from error


def _source(request: web.Request) -> str:
    """Where it came from, and the user if a certificate said so: the leader cannot see that."""
    asker = request.get(ASKER)
    has_header = "Authorization" in request.headers  # which goes along
    if asker is None or has_header or asker.principal.user in (ANONYMOUS, NODE):
        return request.remote or ""
    return f"{request.remote or ''} {asker.principal.user}"


def _is_leaders(request: web.Request) -> bool:
    """Whether only a leader can answer it."""
    if request.match_info.http_exception is not None:
        return False
    if request.method in METHODS:
        return True
    resource = request.match_info.route.resource
    is_read = request.method == "GET" and resource is not None and resource.canonical in READS
    return is_read and query_flag(request, "linearizable")


async def _bounded(answer: aiohttp.ClientResponse) -> bytes:
    """The whole body. Raises aiohttp.ClientPayloadError if it is longer than any of ours."""
    content = bytearray()
    async for part in answer.content.iter_any():
        content += part
        if len(content) > ANSWER_BYTES_MAX:
            raise aiohttp.ClientPayloadError("an answer without end")
    return bytes(content)
