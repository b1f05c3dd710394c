"""How the admin client asks: controllers for what is on record, masters for what is in their logs.

Writes go to the leading controller, which others name, and are repeated until they are answered;
one that cannot be reached from here is asked by another controller.
They happen once (R38): a session and a number name what is one command for the controllers; what is
more than one (transfers, members) names the epoch, term or generation that it starts from, so that
it moves things away from there or not at all. Reads of topics and groups show every write that was
answered before; views and status are what a controller has.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from paceline.errors import (
    ConfigError,
    DeadlineError,
    LoginFailedError,
    NotFoundError,
    NotLeaderError,
    NotYetAvailableError,
    OutcomeUnknownError,
    PacelineError,
    PeerError,
)
from paceline.net.backoff import Backoff
from paceline.net.cluster import Cluster
from paceline.net.connect import check_loopback
from paceline.net.master_http import MasterRequests
from paceline.platform.runtime import pause
from paceline.types import GroupName
from paceline.wire.calls.request import Request, http_form
from paceline.wire.cluster import ClusterView
from paceline.wire.commands import NOT_ADMITTED, NOT_RELAYED_HEADER, Once
from paceline.wire.controller_calls.quorum import OpenSession

_REQUEST_TIMEOUT_MS = 3_000
_STATUS_TIMEOUT_MS = 1_000
_SESSION_BYTES = 16


_READ_ELSEWHERE = (PeerError, DeadlineError, NotYetAvailableError, NotLeaderError)
_ASK_ANOTHER = (*_READ_ELSEWHERE, NotFoundError)
_UNDER_WAY = ("TRANSFER_UNDER_WAY", "NOT_YET")
"""Reasons of refusals that are over in a moment."""
Row = dict[str, Any]


class AdminRequests:
    """Requests of one admin client; `timeout_ms` is for each call."""

    def __init__(self, cluster: Cluster, *, timeout_ms: int) -> None:
        self.cluster = cluster
        cluster.see_all()
        self.timeout_ms = timeout_ms
        self._leader: str | None = None
        self._unreached = ""
        """A leader that this client could not reach: others relay to it."""
        self._answering = ""
        """The controller that answered a question last."""
        self._sessions: list[Once] = []
        """The last command of each session in which none is under way."""

    async def view(self) -> ClusterView:
        """The cluster as its controllers publish it, asked now."""
        return self._view(await self.read_path("/v1/routes"))

    async def latest(self) -> ClusterView:
        """The view with every write that was answered before."""
        return self._view(await self.read_path("/v1/routes?linearizable=true"))

    def _view(self, document: Mapping[str, Any]) -> ClusterView:
        return self.cluster.own_view(ClusterView.from_json(document))

    async def shown(self, answer: Mapping[str, Any]) -> None:
        """Wait until the own view is as new as the answer: what was made can be used at once."""
        version: int = answer["version"]
        await self.cluster.watch.wait_for(
            lambda view: view.version >= version, timeout_ms=self.timeout_ms
        )

    async def of_master(self, group: GroupName, request: Request[Any]) -> Row:
        """The answer of the master of a broker group; the call may safely be carried out twice."""
        await self.find_cluster()
        masters = MasterRequests(self.cluster, timeout_ms=self.timeout_ms)
        return await masters.call(group, request)

    async def of_masters(self, requests: Mapping[GroupName, Request[Any]]) -> dict[GroupName, Row]:
        """Each broker group is asked its own."""
        names = sorted(requests)
        answers = await asyncio.gather(*(self.of_master(name, requests[name]) for name in names))
        return dict(zip(names, answers, strict=True))

    async def ask(self, address: str, path: str) -> dict[str, Any] | None:
        """As `HttpClient.get_if_answered`."""
        http = self.cluster.http
        return await http.get_if_answered(address, path, timeout_ms=_STATUS_TIMEOUT_MS)

    async def asked(self, address: str, request: Request[Any]) -> dict[str, Any] | None:
        """As `ask`, of a request of the table."""
        namespace = self.cluster.namespace
        answer = await self.ask(address, http_form(namespace.request(request)).path)
        own: dict[str, Any] | None = namespace.answer(request, answer)
        return own

    async def find_cluster(self) -> None:
        """PeerError when no bootstrap address answers in time."""
        self.cluster.start()
        await self.cluster.watch.wait_for(lambda view: True, timeout_ms=self.timeout_ms)

    def controllers(self) -> list[str]:
        """At least one. ConfigError."""
        view = self.cluster.view
        assert view is not None
        if not view.controllers:
            raise ConfigError(
                "the brokers of the bootstrap addresses know no controllers, which keep what is"
                " asked for: give addresses of a cluster that has them"
            )
        return list(view.controllers)

    async def read(self, request: Request[Any]) -> dict[str, Any]:
        """From the first controller that answers; what is linearizable waits for a leader."""
        await self.find_cluster()
        namespace = self.cluster.namespace
        answer = await self.read_path(http_form(namespace.request(request)).path)
        own: dict[str, Any] = namespace.answer(request, answer)
        return own

    async def read_path(self, path: str) -> dict[str, Any]:
        """As `read`, of what is no request of the table."""
        backoff = Backoff(self.cluster.random, first_ms=50)
        last: PacelineError | None = None
        await self.find_cluster()
        try:
            async with asyncio.timeout(self.timeout_ms / 1000):
                while True:
                    # Who answered last is asked first: another one may cost a timeout each time.
                    for address in sorted(self.controllers(), key=self._answering.__ne__):
                        try:
                            answer = await self.cluster.http.get(
                                address, path, timeout_ms=_REQUEST_TIMEOUT_MS
                            )
                        except _READ_ELSEWHERE as error:
                            last = error
                        else:
                            self._answering = address
                            return answer
                    await pause(backoff.next_ms())
        except TimeoutError:
            raise self._gave_up(last) from last

    async def once(self, request: Request[Any]) -> dict[str, Any]:
        """A write that happens once, however often and wherever it is asked for (R38).

        OutcomeUnknownError if an attempt may have done it and the controllers know no more.
        """
        while True:
            command = await self._next_command()
            try:
                answer = await self.write(request, once=command)
            except PacelineError as error:
                was_idle = command.sequence > 1
                if was_idle and error.details.get("reason") in NOT_ADMITTED:
                    continue  # it was unused for long and has expired: certainly nothing was done
                if error.is_definite:
                    self._sessions.append(command)
                raise
            self._sessions.append(command)
            return answer

    async def _next_command(self) -> Once:
        """Of a session of this client in which nothing is under way, or of a new one."""
        if self._sessions:
            return self._sessions.pop().next()
        opening = Once(self.cluster.random.token(_SESSION_BYTES).hex(), 0)
        await self.write(OpenSession(), once=opening)
        return opening.next()

    async def write(self, request: Request[Any], *, once: Once | None = None) -> dict[str, Any]:
        """A write at the leader, or relayed to it; repeated, so it must be safe to repeat (R38).

        OutcomeUnknownError if it is refused at last and an earlier try may have done it.
        """
        backoff = Backoff(self.cluster.random, first_ms=20)
        headers = {} if once is None else once.headers()
        not_relayed = {NOT_RELAYED_HEADER: "true"}
        last: PacelineError | None = None
        is_unknown = is_relayed = False
        turn = 0
        await self.find_cluster()
        namespace = self.cluster.namespace
        form = http_form(namespace.request(request))
        try:
            async with asyncio.timeout(self.timeout_ms / 1000):
                while True:
                    addresses = self.controllers()
                    address = self._leader or addresses[turn % len(addresses)]
                    try:
                        answer = await self.cluster.http.send(
                            form.method,
                            address,
                            form.path,
                            form.body,
                            headers=headers if is_relayed else headers | not_relayed,
                            timeout_ms=_REQUEST_TIMEOUT_MS,
                        )
                        own: dict[str, Any] = namespace.answer(request, answer)
                        return own
                    except NotLeaderError as error:
                        last = error
                        named = error.details.get("leader")
                        self._leader = named if isinstance(named, str) and named else None
                        if self._leader == self._unreached and not is_relayed:
                            self._leader, is_relayed = None, True
                            continue
                        if self._leader not in (None, address):
                            continue  # ask the one it names, at once
                    except (PeerError, NotYetAvailableError) as error:
                        if isinstance(error, PeerError) and self._leader is not None:
                            self._unreached = self._leader
                        last, self._leader = error, None
                    except (DeadlineError, OutcomeUnknownError) as error:
                        last, self._leader, is_unknown = error, None, True
                    except PacelineError as error:
                        if not is_unknown:
                            raise
                        if error.details.get("reason") not in _UNDER_WAY:
                            raise _repeated(error, once) from error
                        last = error  # it may be our own earlier try: ask how that ends
                    turn += 1
                    await pause(backoff.next_ms())
        except TimeoutError:
            raise self._gave_up(last) from last

    async def ask_as_stranger(
        self, request: Request[Any], *, allow_plaintext: bool
    ) -> dict[str, Any]:
        """What whoever has no credentials yet may ask, of the controllers among the bootstrap
        addresses. The request has a password: ConfigError where others could read it on the way,
        unless that is allowed."""
        form = http_form(request)
        backoff = Backoff(self.cluster.random, first_ms=50)
        last: PacelineError | None = None
        is_unknown = False
        try:
            async with asyncio.timeout(self.timeout_ms / 1000):
                while True:
                    for address in self.cluster.bootstrap:
                        if not (allow_plaintext or self.cluster.http.is_encrypted):
                            check_loopback(address, "the password")
                        try:
                            return await self.cluster.http.send(
                                form.method,
                                address,
                                form.path,
                                form.body,
                                timeout_ms=_REQUEST_TIMEOUT_MS,
                            )
                        except LoginFailedError as error:
                            if is_unknown:  # perhaps it was this very request that changed it
                                raise _repeated(error, None) from error
                            raise
                        except (DeadlineError, OutcomeUnknownError) as error:
                            last, is_unknown = error, True
                        except _ASK_ANOTHER as error:
                            last = error
                    if isinstance(last, NotFoundError) and last.code == NotFoundError.code:
                        raise ConfigError(
                            "no controller is among the bootstrap addresses, and brokers check no"
                            " passwords: give the address of a controller"
                        )
                    await pause(backoff.next_ms())
        except TimeoutError:
            raise self._gave_up(last) from last

    def _gave_up(self, last: PacelineError | None) -> PacelineError:
        why = "no controller answered" if last is None else last.message
        if isinstance(last, NotLeaderError):
            why = "no controller leads; a majority of them must run and reach each other"
        return DeadlineError(f"no result within {self.timeout_ms} ms: {why}")


def _repeated(error: PacelineError, once: Once | None) -> PacelineError:
    """What an error after a try of unknown outcome says of all tries together."""
    if once is not None and error.details.get("sequence") == once.sequence:
        return error  # the log has it: so was the first try, and every other, answered
    return OutcomeUnknownError(f"an earlier try may have done it; the last: {error.message}")
