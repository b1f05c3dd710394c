"""Who a client of a gateway is.

A gateway is told users and rights by the controllers, as brokers are, and finds out by itself whose
signature a request has. What the user may then do, the nodes decide that he reaches through it.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from http import HTTPStatus

import aiohttp
import msgspec

from paceline.errors import PacelineError, PeerError, UnauthenticatedError, from_problem, in_words
from paceline.net.backoff import Backoff
from paceline.platform.address import Address
from paceline.platform.ports import Clock, Random
from paceline.platform.runtime import pause
from paceline.security.access import Access
from paceline.security.audit_peers import OnRefused
from paceline.security.delegation import Door
from paceline.security.identity import Principal, Signed
from paceline.security.node_proof import NodeProofs
from paceline.security.node_tls import Dial
from paceline.wire.users import ANONYMOUS, Security
from paceline_gateway.signatures import ACCESS_KEY, NO_KEY, grpc_signature, remoting_signature

log = logging.getLogger("paceline.gateway")

WATCH_MS = 10_000
"""A controller without news answers after that, and the next one is asked: one that has lost the
others tells nothing new for no longer."""
_SLACK_S = 3.0
_LATE = 5
"""Rounds of all controllers, over a second and a half, after which somebody should look why."""
_NEWEST = 2**31 - 1
NOT_TOLD = (
    "this gateway has not heard from a controller yet who may do what: ask again, or another"
    " gateway; its log and /readyz say why"
)


class ToldSecurity:
    """Keeps the users and rights of an `Access` as the controllers have them, while `run` runs."""

    def __init__(
        self,
        access: Access,
        *,
        controllers: Sequence[str],
        proofs: NodeProofs,
        dial: Dial,
        random: Random,
        source_host: str = "",
    ) -> None:
        """`controllers`: their client addresses, as the cluster knows them."""
        self._access, self._controllers = access, controllers
        self._proofs, self._dial, self._random = proofs, dial, random
        self._local = (source_host, 0) if source_host else None
        self._warned: dict[str, str] = {}
        """Controller -> the reason that was warned of last."""
        self.known = asyncio.Event()
        """A controller has told them."""
        self.why_not = ""
        """The reason of the last one that was asked and did not; empty: it did."""

    async def run(self) -> None:
        """Until cancelled."""
        backoff = Backoff(self._random, first_ms=50, max_ms=2_000)
        connector = aiohttp.TCPConnector(local_addr=self._local)
        timeout = aiohttp.ClientTimeout(total=WATCH_MS / 1000 + _SLACK_S, connect=_SLACK_S)
        turn = 0
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
            while True:
                address = self._controllers[turn % len(self._controllers)]
                turn += 1
                try:
                    await self._ask(http, address)
                except (PacelineError, aiohttp.ClientError, OSError, TimeoutError) as error:
                    self._failed(address, error, turn)
                    if turn % len(self._controllers) == 0:
                        await pause(backoff.next_ms())
                else:
                    self.why_not = ""
                    self._warned.clear()
                    backoff.reset()

    def _failed(self, address: str, error: Exception, turn: int) -> None:
        """A reason that lasts is warned of once for each controller."""
        if isinstance(error, aiohttp.ClientConnectorError):
            why = f"{address} cannot be reached: {error.os_error}"
        elif isinstance(error, PacelineError):
            why = error.message
        else:
            why = f"{address}: {in_words(error)}"
        self.why_not = why
        is_late = not self.known.is_set() and turn >= _LATE * len(self._controllers)
        level = logging.INFO
        if is_late:
            is_new = self._warned.get(address) != why
            self._warned[address] = why
            level = logging.WARNING if is_new else logging.DEBUG
        log.log(level, "security_not_told", extra={"controller": address, "why": why})

    async def _ask(self, http: aiohttp.ClientSession, address: str) -> None:
        wait_ms = WATCH_MS if self.known.is_set() else 0
        path = f"/v1/security/watch?from={self._access.version}&wait_ms={wait_ms}"
        async with self._proofs.request(
            http, "GET", address, path, allow_redirects=False, **self._dial.http(address, path)
        ) as answer:
            content = await answer.read()
            if answer.status != 200:
                raise _problem(address, answer.status, content)
        try:
            security = msgspec.json.decode(content, type=Security)
        except msgspec.MsgspecError as error:
            # The error names a field, never what is in it.
            raise PeerError(f"{address} tells no users and rights: {error}") from error
        if self._access.apply(security):
            log.info("security_told", extra={"version": security.version, "mode": security.mode})
        elif self.known.is_set():
            await pause(self._random.uniform(5, 20))  # a node that does not wait is not asked on
        self.known.set()


def _problem(address: str, status: int, content: bytes) -> PacelineError:
    if status == HTTPStatus.NOT_FOUND:
        return PeerError(f"{address} is no controller: see the setting controllers")
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return PeerError(
            f"{address} does not accept that this gateway is a node of its cluster: see the setting"
            " secret_file, and whether the clocks of both agree"
        )
    try:
        return from_problem(msgspec.json.decode(content))
    except (msgspec.MsgspecError, PacelineError, AttributeError, TypeError):
        return PeerError(f"{address} answered with status {status}")


class Authenticator:
    """Finds the user of each request. Constant in time where secrets are compared."""

    def __init__(
        self,
        access: Access,
        *,
        clock: Clock,
        allow_plaintext: bool,
        on_refused: OnRefused = lambda door, source, error: None,
    ) -> None:
        """`allow_plaintext`: take signatures also over connections without TLS from elsewhere.
        `on_refused`: told of everybody who is, as no node will hear of him."""
        self._access, self._clock = access, clock
        self._allow_plaintext = allow_plaintext
        self._on_refused = on_refused

    def grpc(
        self,
        authorization: str | None,
        date_time: str | None,
        source: str,
        *,
        is_encrypted: bool = False,
        certified: Collection[str] = (),
    ) -> Principal:
        """Whose call it is with these headers (`authorization`, `x-mq-date-time`).

        `source`: the client's address; `certified`: the users that its certificate is for. Nobody,
        `anonymous`, if it shows nothing, or while rights are off. NotYetAvailableError: the gateway
        has just started; UnauthenticatedError.
        """
        signed = None
        if authorization:
            shown = authorization

            def signed() -> Signed:
                self.check_encrypted(source, is_encrypted=is_encrypted)
                return grpc_signature(shown, date_time, now_unix_ms=self._clock.unix_ms())

        return self._found(signed, source, certified, door="grpc")

    def remoting(
        self,
        ext_fields: Mapping[str, str] | None,
        body: bytes,
        source: str,
        *,
        version: int = _NEWEST,
        is_encrypted: bool = False,
        certified: Collection[str] = (),
    ) -> Principal:
        """As `grpc`, of a request with this header and body; `version`: the header's."""
        signed = None
        if ext_fields and ACCESS_KEY in ext_fields:
            fields = ext_fields

            def signed() -> Signed:
                self.check_encrypted(source, is_encrypted=is_encrypted)
                return remoting_signature(fields, body, version=version)

        return self._found(signed, source, certified, door="remoting")

    def check_valid(self, principal: Principal) -> None:
        """For what stays open: UnauthenticatedError once the user or the key counts no more."""
        self._access.check_valid(principal)

    def _found(
        self,
        signed: Callable[[], Signed] | None,
        source: str,
        certified: Collection[str],
        *,
        door: Door,
    ) -> Principal:
        self._access.check_current()
        try:
            return self._asking(signed, source, certified)._replace(door=door)
        except UnauthenticatedError as error:
            self._on_refused(door, source, error)
            raise

    def _asking(
        self, signed: Callable[[], Signed] | None, source: str, certified: Collection[str]
    ) -> Principal:
        access = self._access
        if signed is not None:
            found = access.authenticate_signature(signed, source=source)
        else:
            found = access.authenticate_certificate(certified, source=source)
        is_nobody = found.user == ANONYMOUS and ANONYMOUS not in access.security.policies
        if is_nobody and access.is_enforced:
            raise UnauthenticatedError(NO_KEY)
        return found

    def check_encrypted(
        self, source: str, *, is_encrypted: bool, what: str = "a signature"
    ) -> None:
        """Whether a client may show what others could use. UnauthenticatedError."""
        if is_encrypted or self._allow_plaintext or Address(source, 0).is_loopback:
            return
        raise UnauthenticatedError(
            f"{what} that is not encrypted can be read on the way, and used by others: use TLS,"
            " or set allow_plaintext = true at the gateway if the network is trusted"
        )
