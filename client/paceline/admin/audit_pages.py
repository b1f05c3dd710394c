"""Reading the topic of the audit while things break: of each broker group, wherever it can be had.

Who knows all is the master. Without one the acting master answers (R36), or any other replica: with
what it has, which may lack the latest.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from paceline.admin.requests import AdminRequests
from paceline.errors import (
    DeadlineError,
    NoMasterError,
    NotFoundError,
    PacelineError,
    TopicNotFoundError,
)
from paceline.net.backoff import Backoff
from paceline.net.group_links import PASSING
from paceline.platform.runtime import pause
from paceline.types import GroupName, TopicName
from paceline.wire.calls import messages as wire
from paceline.wire.calls.audit import AuditRecord
from paceline.wire.calls.offsets import Ends, QueueOf
from paceline.wire.calls.request import Request
from paceline.wire.cluster import GroupView
from paceline.wire.names import AUDIT_TOPIC

PATIENCE_MS = 5_000
"""For so long a search waits for a master, where there was one a moment ago: a failover."""
EARLY_MS_MAX = 60 * 1000
"""Clocks of nodes may differ: the store time is the master's. How much later than told a record is
stored does not matter: all that was stored since then is looked through."""
_REQUEST_TIMEOUT_MS = 3_000
UNREAD = (*PASSING, NotFoundError)
"""Nobody of a group answers, or not yet. A replica may know of topics later than its master."""

Row = dict[str, Any]


class Wanted(NamedTuple):
    """Which records; what is None counts for nothing."""

    user: str | None = None
    action: str | None = None
    resource: str | None = None
    decision: str | None = None
    source: str | None = None
    request_id: str | None = None
    since_unix_ms: int | None = None
    until_unix_ms: int | None = None

    def matches(self, record: AuditRecord) -> bool:
        return (
            self.user in (None, record.user)
            and self.action in (None, record.call, *record.action.split(" or "))
            and self._is_about(record)
            and self.decision in (None, record.decision)
            and self.source in (None, record.source)
            and self.request_id in (None, record.request_id)
            and (self.since_unix_ms is None or record.unix_ms >= self.since_unix_ms)
            and (self.until_unix_ms is None or record.unix_ms <= self.until_unix_ms)
        )

    def _is_about(self, record: AuditRecord) -> bool:
        named = self.resource
        if named is None:
            return True
        texts = (record.resource, *record.about.split(" "))
        if named.endswith("*"):
            return any(text.startswith(named[:-1]) for text in texts)
        return named in texts


class Page(NamedTuple):
    """An answer, and whether it is not the master's."""

    answer: Mapping[str, Any]
    maybe_stale: bool


class AuditPages:
    """Of one admin client."""

    def __init__(self, requests: AdminRequests) -> None:
        self._requests = requests

    async def groups(self) -> list[GroupName]:
        """The broker groups with a queue of the topic, as controllers say, or, if none answers, as
        they said last. TopicNotFoundError."""
        try:
            view = await self._requests.view()
        except DeadlineError:
            found = self._requests.cluster.view
            if found is None:
                raise
            view = found
        topic = view.topics.get(TopicName(AUDIT_TOPIC))
        if topic is None:
            raise TopicNotFoundError(
                f"there is no audit: the topic {AUDIT_TOPIC} is made when rights are switched on"
                " for the first time, and seen by super users and whoever has Sub on it by name",
                topic=AUDIT_TOPIC,
            )
        return sorted(topic.queues)

    async def found(
        self, group: GroupName, request: wire.Search, *, patience_ms: int
    ) -> AsyncIterator[Page]:
        """What the group has (`messages`), in order of offsets. Errors as of `ask`."""
        while True:
            page = await self.ask(group, request, patience_ms=patience_ms)
            yield page
            if page.maybe_stale:
                patience_ms = 0  # it was waited for
            request.after = page.answer["after"]
            if request.after is None:
                return

    async def end(self, group: GroupName) -> int:
        """Offset of the next record there. NoMasterError, and as of `ask`: nobody knows it."""
        request = Ends(queues=[QueueOf(topic=AUDIT_TOPIC, queue=0)])
        page = await self.ask(group, request, patience_ms=0)
        end: int = page.answer["queues"][0]["end"]
        return end

    async def ask(self, group: GroupName, request: Request[Any], *, patience_ms: int) -> Page:
        """The answer of the group's master, or of another replica after `patience_ms`.

        What the last of them has said, one of `UNREAD`, if none answers; what else a broker
        says (NotAuthorizedError) at once.
        """
        cluster = self._requests.cluster
        backoff = Backoff(cluster.random, first_ms=20)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience_ms / 1000
        last: PacelineError = NoMasterError(f"broker group {group} is not there", group=group)
        while True:
            has_patience = loop.time() < deadline
            view = None if cluster.view is None else cluster.view.groups.get(group)
            for asked in [] if view is None else _asked(view):
                if asked.maybe_stale and has_patience:
                    break
                try:
                    page = await self._ask(asked, request)
                except UNREAD as error:
                    last = error
                    cluster.watch.doubt()
                    continue
                if not (page.maybe_stale and has_patience):
                    return page
                cluster.watch.doubt()  # it is not master any more
            if not has_patience:
                raise last
            await pause(backoff.next_ms())

    async def _ask(self, asked: "_Asked", request: Request[Any]) -> Page:
        cluster = self._requests.cluster
        if asked.maybe_stale and isinstance(request, wire.Search):
            request = msgspec.structs.replace(request, maybe_stale=True)
        document = cluster.namespace.request(request).to_json()
        answer = await cluster.http.send(
            "POST", asked.address, "/v1/call", document, timeout_ms=_REQUEST_TIMEOUT_MS
        )
        is_stale = asked.maybe_stale or bool(answer.get("maybe_stale"))
        return Page(cluster.namespace.answer(request, answer), is_stale)


class _Asked(NamedTuple):
    """Whom to ask, and whether for what he has in any case."""

    address: str
    maybe_stale: bool


def _asked(group: GroupView) -> Iterator[_Asked]:
    """The master; the acting one, the other replicas; and at last the master for what it has, if it
    cannot know whether that is all."""
    master, serving = group.master_view(), group.serving_view()
    if master is not None:
        yield _Asked(master.client_address, maybe_stale=False)
    elif serving is not None:
        yield _Asked(serving.client_address, maybe_stale=True)
    for number in sorted(group.replicas):
        replica = group.replicas[number]
        if serving is None or replica.replica_id != serving.replica_id:
            yield _Asked(replica.client_address, maybe_stale=True)
    if master is not None:
        yield _Asked(master.client_address, maybe_stale=True)
