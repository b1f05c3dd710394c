"""What has come into the audit since the last look, of each broker group from where it was read to.

Offsets stay what they are when a group gets another master, so nothing is left out or read twice.
"""

import asyncio
import logging

from paceline.admin.audit_pages import EARLY_MS_MAX, UNREAD, AuditPages, Wanted
from paceline.net.backoff import Backoff
from paceline.net.cluster import Cluster
from paceline.types import GroupName
from paceline.wire.calls.audit import AuditRecord, record_of
from paceline.wire.calls.messages import RESULTS_MAX, Search
from paceline.wire.names import AUDIT_TOPIC

log = logging.getLogger("paceline.admin")

LOOK_MS = 1_000
"""Between two looks."""
LOOK_AGAIN_MS_MAX = 10_000
"""At a broker group of which nobody answers."""
SEEN_MAX = 100_000
"""Records that are known again: a node sends one twice if it was not answered."""


class Following:
    """Of one follower."""

    def __init__(self, cluster: Cluster, pages: AuditPages, wanted: Wanted) -> None:
        self._cluster, self._pages, self._wanted = cluster, pages, wanted
        self._began_unix_ms = cluster.clock.unix_ms()
        self._places: dict[GroupName, _Place] | None = None
        self._seen: dict[tuple[int, str, int], None] = {}

    async def look(self) -> list[AuditRecord]:
        """Those that match and were not given before, by time. TopicNotFoundError: there is no
        audit. NotAuthorizedError."""
        if self._places is None:
            groups = await self._pages.groups()
            self._places = {group: _Place(self._backoff()) for group in groups}
            await asyncio.gather(*map(self._begin, self._places, self._places.values()))
        else:
            self._meet_groups(self._places)
        found = await asyncio.gather(*map(self._news, self._places, self._places.values()))
        records = [record for news in found for record in news if self._is_new(record)]
        return sorted(records, key=lambda record: record.identity)

    def _meet_groups(self, places: "dict[GroupName, _Place]") -> None:
        """A broker group that has come since is read from its beginning."""
        topic = self._cluster.topic(AUDIT_TOPIC)
        for group in [] if topic is None else topic.queues:
            if group not in places:
                places[group] = _Place(self._backoff(), after="0:0")

    async def _begin(self, group: GroupName, place: "_Place") -> None:
        """What is wanted since some time is found by that. Else at the end, or where no master can
        tell it, by the time at which this began."""
        if self._wanted.since_unix_ms is not None:
            return
        try:
            place.after = f"0:{await self._pages.end(group)}"
        except UNREAD as error:
            log.info("audit_end_unknown", extra={"group": group, "why": error.message})

    async def _news(self, group: GroupName, place: "_Place") -> list[AuditRecord]:
        now_ms = self._cluster.clock.monotonic_ms()
        if now_ms < place.rests_until_ms:
            return []
        since = self._wanted.since_unix_ms
        begin_ms = self._began_unix_ms if since is None else max(0, since - EARLY_MS_MAX)
        request = Search(topic=AUDIT_TOPIC, max=RESULTS_MAX, after=place.after)
        if place.after is None:
            request.begin_unix_ms = begin_ms
        records: list[AuditRecord] = []
        try:
            async for page in self._pages.found(group, request, patience_ms=0):
                for row in page.answer["messages"]:
                    place.after = f"{row['queue']}:{row['offset'] + 1}"
                    record = record_of(row.get("body", ""))
                    if record is not None and self._wanted.matches(record):
                        records.append(record)
        except UNREAD as error:
            if not place.rests_until_ms:
                log.warning("audit_not_read", extra={"group": group, "why": error.message})
            place.rests_until_ms = now_ms + int(place.backoff.next_ms())
        else:
            place.rests_until_ms = 0
            place.backoff = self._backoff()
        return records

    def _is_new(self, record: AuditRecord) -> bool:
        if record.identity in self._seen:
            return False
        self._seen[record.identity] = None
        if len(self._seen) > SEEN_MAX:
            del self._seen[next(iter(self._seen))]
        return True

    def _backoff(self) -> Backoff:
        return Backoff(self._cluster.random, first_ms=LOOK_MS, max_ms=LOOK_AGAIN_MS_MAX)


class _Place:
    """Where a broker group is read on."""

    def __init__(self, backoff: Backoff, *, after: str | None = None) -> None:
        self.after = after
        """As `Search.after`; None: by time."""
        self.backoff = backoff
        self.rests_until_ms = 0
        """After nobody has answered; 0: somebody does."""
