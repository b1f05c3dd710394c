"""The part of the admin client that searches the audit, and follows it."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from heapq import heappush, heappushpop
from typing import Any

import msgspec

from paceline.admin.audit_following import LOOK_MS, Following
from paceline.admin.audit_pages import EARLY_MS_MAX, PATIENCE_MS, UNREAD, AuditPages, Wanted
from paceline.admin.requests import AdminRequests
from paceline.platform.runtime import pause
from paceline.types import GroupName
from paceline.wire.calls.audit import AuditRecord, record_of
from paceline.wire.calls.messages import RESULTS_MAX, Search
from paceline.wire.names import AUDIT_TOPIC

Row = dict[str, Any]

LIMIT_DEFAULT = 1000


class AuditRows(list[Row]):
    """What a search has found, by time, and what it may lack."""

    missing: Mapping[str, str] = {}
    """Broker groups of which no broker answered, and why: what is stored there was not looked
    through."""
    maybe_stale: frozenset[str] = frozenset()
    """Broker groups of which another replica than the master answered: it may lack the latest."""


class Audit:
    """`AdminClient.audit`: who has done, or was refused, what, while rights were on.

    Records are rows with `unix_ms`, `node`, `user`, `access_key`, `source`, `door`, `call`,
    `about`, `action`, `resource`, `decision`, `rule`, `outcome`, `request_id`, `sequence` (of the
    node), `times` (of refused proofs of nodes, which are told together; else 1), and `dropped`:
    how many were left out before it.
    """

    def __init__(self, requests: AdminRequests) -> None:
        self._requests = requests
        self._pages = AuditPages(requests)

    async def search(
        self,
        *,
        user: str | None = None,
        action: str | None = None,
        resource: str | None = None,
        decision: str | None = None,
        source: str | None = None,
        request_id: str | None = None,
        since_unix_ms: int | None = None,
        until_unix_ms: int | None = None,
        limit: int = LIMIT_DEFAULT,
    ) -> AuditRows:
        """The latest `limit` records that match, by time. What cannot be read does not stop it:
        the answer says what it may lack.

        `action`: a right, like Pub, or the name of a call, like put_user; `resource`: like
        Topic:orders, or what a call names, like user=eve, with a * at the end how it begins.
        TopicNotFoundError: rights have never been on. NotAuthorizedError.
        """
        wanted = Wanted(
            user, action, resource, decision, source, request_id, since_unix_ms, until_unix_ms
        )
        found = _Latest(limit)
        groups = await self._pages.groups()
        answers = await asyncio.gather(*(self._search(each, wanted, found) for each in groups))
        rows = AuditRows(found.rows())
        of_groups = dict(zip(groups, answers, strict=True))
        rows.missing = {name: why for name, why in of_groups.items() if isinstance(why, str)}
        rows.maybe_stale = frozenset(name for name, stale in of_groups.items() if stale is True)
        return rows

    async def _search(self, group: GroupName, wanted: Wanted, found: "_Latest") -> bool | str:
        """Put what the group has to the rest; whether it may be stale, or why it is missing."""
        maybe_stale = False
        try:
            pages = self._pages.found(group, _request(wanted), patience_ms=PATIENCE_MS)
            async for page in pages:
                maybe_stale |= page.maybe_stale
                for row in page.answer["messages"]:
                    record = record_of(row.get("body", ""))
                    if record is not None and wanted.matches(record):
                        found.add(record)
        except UNREAD as error:
            return error.message
        return maybe_stale

    async def follow(
        self,
        *,
        user: str | None = None,
        action: str | None = None,
        resource: str | None = None,
        decision: str | None = None,
        source: str | None = None,
        request_id: str | None = None,
        since_unix_ms: int | None = None,
    ) -> AsyncIterator[Row]:
        """Records that match as they come, each once, from now on and for ever; with
        `since_unix_ms` first those that were told since then.

        While a broker group has no master another replica of it is read, and where nobody answers
        it goes on later with what came meanwhile. `search` has the meaning of the rest, and errors.
        """
        wanted = Wanted(user, action, resource, decision, source, request_id, since_unix_ms)
        following = Following(self._requests.cluster, self._pages, wanted)
        while True:
            for record in await following.look():
                yield msgspec.structs.asdict(record)
            await pause(LOOK_MS)


def _request(wanted: Wanted) -> Search:
    """Of what was asked, as far as a broker can judge it."""
    request = Search(topic=AUDIT_TOPIC, key=wanted.user, max=RESULTS_MAX)
    if wanted.since_unix_ms is not None:
        request.begin_unix_ms = max(0, wanted.since_unix_ms - EARLY_MS_MAX)
        request.born_begin_unix_ms = wanted.since_unix_ms
    if wanted.until_unix_ms is not None:
        request.born_end_unix_ms = wanted.until_unix_ms
    return request


class _Latest:
    """The latest records that were added, each once."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._heap: list[tuple[int, str, int]] = []
        self._records: dict[tuple[int, str, int], AuditRecord] = {}

    def add(self, record: AuditRecord) -> None:
        if record.identity in self._records:
            return  # it was sent more than once
        self._records[record.identity] = record
        if len(self._heap) < self._limit:
            heappush(self._heap, record.identity)
        else:
            del self._records[heappushpop(self._heap, record.identity)]

    def rows(self) -> Iterable[Row]:
        return (msgspec.structs.asdict(self._records[each]) for each in sorted(self._records))
