"""Retention at work: what this broker lets go of its log, and whether its disk has room (R26).

On an open master it decides (policy.py) and writes the result as a record; on every broker it
lets the segments go that a confirmed record gave up, and looks how full the disk is. What hangs on
a deleted topic goes by a record too (R35). Owned by the broker's event loop; `run` ends only by
cancellation.
"""

import logging
from collections.abc import Sequence
from typing import Any

from paceline.errors import PacelineError, StorageError
from paceline.platform.ports import Clock, Space
from paceline.platform.runtime import pause
from paceline.records.header import Kind
from paceline.types import PhysicalOffset
from paceline_broker.config import BrokerConfig
from paceline_broker.controllers.clock_skew import ClockSkew, ClockTrust
from paceline_broker.log.flusher import Flusher
from paceline_broker.projections.projections import retention_document
from paceline_broker.retention.policy import (
    Aged,
    Decision,
    Needs,
    RetentionSettings,
    Situation,
    decide,
)
from paceline_broker.role.mastership import Mastership
from paceline_broker.role.role import BrokerRole
from paceline_broker.service.routes import Routes
from paceline_broker.service.settings import ServiceSettings
from paceline_broker.service.topic_records import log_deletion, log_group
from paceline_broker.storage.store import Store

log = logging.getLogger("paceline.cleaner")

SPACE_INTERVAL_MS = 500
"""At 500 MB/s a disk fills by 250 MB between two looks; what is kept free is more."""
PRODUCERS_INTERVAL_MS = 60_000
CROWDED_EXPIRY_MS = 10 * 60_000
"""Of producers once half of those that may be remembered are: far longer than clients go on with
one batch (`delivery_timeout_ms`, 30 s). Names made up without end are gone soon."""
DELETIONS_MAX = 8
"""Topics forgotten in one turn of the loop: each goes through the state of every other."""
DELETIONS_INTERVAL_MS = 10
"""Between two such turns."""
ROOM_SEGMENTS = 2
"""Kept free for what frees the disk: one segment to roll into, and one made ahead."""


class Cleaner:
    """Made once per process, with its role."""

    def __init__(
        self,
        *,
        role: BrokerRole,
        store: Store,
        flusher: Flusher,
        clock: Clock,
        clocks: ClockSkew,
        config: BrokerConfig,
        service: ServiceSettings,
        routes: Routes,
        needs: Sequence[Needs] = (),
    ) -> None:
        self._role = role
        self._store = store
        self._flusher = flusher
        self._clock = clock
        self._clocks = clocks
        self._config = config
        self._producer_expiry_ms = service.producer_expiry_ms
        self._producers_crowded = service.producer_states_max // 2
        self._routes = routes
        self._needs = needs
        self._settings = RetentionSettings(
            reserved_ms=config.file_reserved_time_ms,
            size_bytes_max=config.log_size_bytes_max,
            clean_forcibly_ratio=config.disk_space_clean_forcibly_ratio,
            warning_ratio=config.disk_space_warning_level_ratio,
        )
        self._newest_ms: dict[PhysicalOffset, int] = {}
        """By the end of a sealed segment: the store time of the batch that follows it."""
        self._trust = ClockTrust.AGREES
        self._topics_looked_at = (0, 0)
        """(version of the view, epoch) for which nothing of deleted topics is left."""
        self.space = Space(1, 1)

    async def run(self) -> None:
        now_ms = self._clock.monotonic_ms()
        clean_ms = producers_ms = now_ms
        while True:
            self.look_at_disk()
            has_more = self.forget_deleted_topics()
            now_ms = self._clock.monotonic_ms()
            if now_ms - producers_ms >= PRODUCERS_INTERVAL_MS:
                producers_ms = now_ms
                self.forget_silent_producers()
            if now_ms - clean_ms >= self._config.clean_resource_interval_ms:
                clean_ms = now_ms
                self.clean()
            wait_ms = DELETIONS_INTERVAL_MS if has_more else SPACE_INTERVAL_MS
            await pause(min(wait_ms, self._config.clean_resource_interval_ms))

    # -- the disk ----------------------------------------------------------------------------------

    def look_at_disk(self) -> None:
        """Whether there is room: the log, the master and the controllers hear of it."""
        try:
            self.space = self._store.disk.space(self._config.data_dir)
        except StorageError as error:
            log.warning("disk_not_seen", extra={"fault": error.message})
            return
        has_room = self._has_room()
        commit_log = self._store.log
        if has_room != commit_log.has_room:
            log.warning(
                "disk_has_room" if has_room else "disk_full",
                extra={"free_bytes": self.space.free_bytes, "used_ratio": self.space.used_ratio},
            )
            commit_log.has_room = has_room
            self._role.tell_health()

    def _has_room(self) -> bool:
        reserve = ROOM_SEGMENTS * self._config.segment_size_bytes
        is_warning = self.used_ratio >= self._settings.warning_ratio
        return self.space.free_bytes >= reserve and not is_warning

    @property
    def used_ratio(self) -> int:
        """Percent; 0 while so much is free that a share of the disk says nothing."""
        is_enough = self.space.free_bytes >= self._config.disk_free_bytes_enough
        return 0 if is_enough else self.space.used_ratio

    # -- giving up ---------------------------------------------------------------------------------

    def clean(self) -> None:
        """Decide, on an open master; let go of what confirmed records gave up, on every broker."""
        writer = self._writer()
        if writer is not None:
            self._decide(writer)
        try:
            self._store.let_segments_go()
        except StorageError as error:
            log.warning("cleaning_failed", extra={"fault": error.message})
            return
        self._flusher.keep_up()

    def forget_silent_producers(self) -> bool:
        """Log a retention record if a producer has been silent for too long (R29, R31)."""
        writer = self._writer()
        if writer is None or self._trusted() is not ClockTrust.AGREES:
            return False
        producers = self._role.projections.producers
        expiry_ms = self._producer_expiry_ms
        if len(producers) > self._producers_crowded:
            expiry_ms = min(expiry_ms, CROWDED_EXPIRY_MS)
        # The present, not log time: that may be ahead, left by a master whose clock was (R29).
        before_ms = self._clock.unix_ms() - expiry_ms
        oldest_ms = producers.oldest_unix_ms()
        if oldest_ms is None or oldest_ms >= before_ms:
            return False
        document = retention_document(producers_before_unix_ms=before_ms)
        return self._append(writer, Kind.RETENTION, document)

    def forget_deleted_topics(self) -> bool:
        """Log the deletion of topics that the controllers have none of any more, once each (R35).

        With the topic of its retries goes what a consumer group has, so the log is told of those.
        Sends to them are refused since this broker has the view. Only with a view of the own epoch:
        a later master's is then as new, and takes nothing for them after the record.
        True: there are more.
        """
        group = self._role.group_view
        writer = self._writer()
        if writer is None or group is None or group.master_epoch != writer.epoch:
            return False
        looked_at = (self._routes.version, int(writer.epoch))
        if looked_at == self._topics_looked_at:
            return False
        projections = self._role.projections
        now_ms = writer.appender.log_time_ms()
        try:
            deleted = list(filter(self._routes.is_deleted, projections.topic_ids()))
            for topic_id in deleted[:DELETIONS_MAX]:
                record = log_deletion(writer, projections, topic_id, store_unix_ms=now_ms)
                log.info("topic_forgotten", extra={"topic": record.topic, "topic_id": topic_id})
            if len(deleted) > DELETIONS_MAX:
                return True
            for name in sorted(projections.groups()):
                log_group(writer, projections, self._routes, name, store_unix_ms=now_ms)
        except StorageError as error:
            log.warning("cleaning_failed", extra={"fault": error.message})
            return False
        self._topics_looked_at = looked_at
        return False

    def _writer(self) -> Mastership | None:
        try:
            writer = self._role.writer()
            writer.ensure_can_append(is_freeing=True)
        except PacelineError:
            return None
        return writer if writer.is_open else None

    def _trusted(self) -> ClockTrust:
        trust = self._clocks.trust(
            own_unix_ms=self._clock.unix_ms(), now_ms=self._clock.monotonic_ms()
        )
        if trust is not self._trust:
            log.warning("clock_trust_changed", extra={"controllers": trust.value})
        self._trust = trust
        return trust

    def _decide(self, writer: Mastership) -> None:
        projections, commit_log = self._role.projections, self._store.log
        try:
            situation = Situation(
                segments=self._aged(projections.log_start),
                log_start=projections.log_start,
                end=commit_log.end,
                ceiling=PhysicalOffset(min(self._store.checkpointed, commit_log.confirm)),
                pins=projections.pins.all(),
                needed_from=min(
                    (oldest for need in self._needs if (oldest := need.oldest()) is not None),
                    default=None,
                ),
                used_ratio=self._pressing_ratio(writer),
                now_unix_ms=self._clock.unix_ms(),
                trust=self._trusted(),
            )
        except StorageError as error:
            log.warning("cleaning_failed", extra={"fault": error.message})
            return
        self._carry_out(writer, decide(situation, self._settings))

    def _carry_out(self, writer: Mastership, decision: Decision) -> None:
        if decision.append_again_below is not None:
            for need in self._needs:
                need.append_again(decision.append_again_below)
        if decision.log_start is None and not decision.dropped_pins:
            return
        log.info(
            "retention_decided",
            extra={"log_start": decision.log_start, "pins": list(decision.dropped_pins)},
        )
        document = retention_document(
            log_start=decision.log_start, dropped_pins=decision.dropped_pins
        )
        self._append(writer, Kind.RETENTION, document)

    def _pressing_ratio(self, writer: Mastership) -> int:
        """Of the own disk; or as if it were full, while a member that is needed has no room.

        0 while what was given up is still there: the disk is looked at again once it is gone.
        """
        bounds = self._store.log.segment_bounds()
        if bounds and bounds[0][1] <= self._role.projections.log_start:
            return 0
        return 100 if writer.is_member_full else self.used_ratio

    def _append(self, writer: Mastership, kind: Kind, document: dict[str, Any]) -> bool:
        """False: the disk refused it, which ends the mastership (R22)."""
        log_time_ms = writer.appender.log_time_ms()
        try:
            writer.appender.record(kind, document, store_unix_ms=log_time_ms)
        except StorageError as error:
            log.warning("cleaning_failed", extra={"fault": error.message})
            return False
        return True

    def _aged(self, log_start: PhysicalOffset) -> list[Aged]:
        commit_log = self._store.log
        ends = [end for _, end in commit_log.segment_bounds() if end > log_start]
        known = self._newest_ms
        self._newest_ms = {
            end: known[end] if end in known else commit_log.store_time_at(end) for end in ends
        }
        return [Aged(end, self._newest_ms[end]) for end in ends]
