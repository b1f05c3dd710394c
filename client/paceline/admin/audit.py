"""The part of the admin client that searches the audit."""

from heapq import heappush, heappushpop
from typing import Any, NamedTuple

import msgspec

from paceline.admin.messages import Messages
from paceline.errors import TopicNotFoundError
from paceline.wire.calls.audit import AuditRecord, record_of
from paceline.wire.names import AUDIT_TOPIC

Row = dict[str, Any]

LIMIT_DEFAULT = 1000
LATE_MS_MAX = 24 * 3600 * 1000
"""A record is stored when its node has sent it, which may be later than what it tells: as long as
no broker took records. So later messages are looked through too, up to this."""
EARLY_MS_MAX = 60 * 1000
"""Clocks of nodes may differ: the store time is the master's."""


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


class Audit:
    """`AdminClient.audit`: who has done, or was refused, what, while rights were on.

    Records are rows with `unix_ms`, `node`, `user`, `access_key`, `source`, `door`, `call`,
    `about`, `action`, `resource`, `decision`, `rule`, `outcome`, `request_id`, `sequence` (of the
    node), `times` (of refused proofs of nodes, which are told together; else 1), and `dropped`:
    how many were left out before it.
    """

    def __init__(self, messages: Messages) -> None:
        self._messages = messages

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
    ) -> list[Row]:
        """The latest `limit` records that match, by time.

        `action`: a right, like Pub, or the name of a call, like put_user; `resource`: like
        Topic:orders, or what a call names, like user=eve, with a * at the end how it begins.
        TopicNotFoundError: rights have never been on. NotAuthorizedError.
        """
        wanted = Wanted(
            user, action, resource, decision, source, request_id, since_unix_ms, until_unix_ms
        )
        latest: list[tuple[int, str, int]] = []
        found: dict[tuple[int, str, int], AuditRecord] = {}
        begin_ms = None if since_unix_ms is None else max(0, since_unix_ms - EARLY_MS_MAX)
        end_ms = None if until_unix_ms is None else until_unix_ms + LATE_MS_MAX
        rows = self._messages.find(
            AUDIT_TOPIC, key=user, begin_unix_ms=begin_ms, end_unix_ms=end_ms
        )
        try:
            async for row in rows:
                record = record_of(row.get("body", ""))
                if record is None or not wanted.matches(record):
                    continue
                place = (record.unix_ms, record.node, record.sequence)
                if place in found:
                    continue  # it was sent more than once
                found[place] = record
                if len(latest) < limit:
                    heappush(latest, place)
                else:
                    del found[heappushpop(latest, place)]
        except TopicNotFoundError as error:
            raise TopicNotFoundError(
                f"there is no audit: the topic {AUDIT_TOPIC} is made when rights are switched on"
                " for the first time, and seen by super users and whoever has Sub on it by name",
                topic=AUDIT_TOPIC,
            ) from error
        return [msgspec.structs.asdict(found[place]) for place in sorted(found)]
