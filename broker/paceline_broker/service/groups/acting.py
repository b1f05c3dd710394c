"""What an acting master takes: provisional group offsets, and queue locks for the time (R36).

Everything else that a master would store is refused by `Role.writer`. Offsets outlive the
appointment, and the process, in a file of their own until a master has decided them.
"""

from paceline.errors import NoMasterError, OutcomeUnknownError, OverloadedError
from paceline.platform.ports import Clock
from paceline_broker.acting.offsets import ENTRIES_MAX
from paceline_broker.acting.offsets_file import OffsetsFile
from paceline_broker.ports import Acting, Role
from paceline_broker.projections.locks import LockOutcome, LockRequest
from paceline_broker.projections.offsets import (
    CommitEntry,
    CommitOutcome,
    CommitRequest,
    Committed,
)
from paceline_broker.service.routes import Routes
from paceline_broker.service.topic_records import standing

Committeds = dict[int, Committed]


class ActingUse:
    """The use-cases; one per broker, outlives every appointment."""

    def __init__(self, role: Role, routes: Routes, clock: Clock, kept: OffsetsFile) -> None:
        self._role = role
        self._routes = routes
        self._clock = clock
        self._kept = kept

    def merged(self, group: str, committed: Committeds) -> Committeds:
        """What a group has committed, with what it did here while no master was (R36).

        Elsewhere than on an acting master it is what the projections know: a master's word counts.
        """
        if self._role.acting is None:
            return committed
        group_id = self._routes.group_id(group)
        return self._kept.offsets.merged(group, committed, group_id=group_id)

    async def commit(self, acting: Acting, request: CommitRequest) -> list[CommitOutcome]:
        """Take offsets provisionally; returns when they are on this disk.

        Raises NoMasterError for a reset (which only a master can order against commits under way),
        OverloadedError, StorageError, OutcomeUnknownError: the appointment ended meanwhile.
        """
        if request.is_reset:
            raise NoMasterError(
                "offsets are reset by a master; this group has none, only an acting one",
                group=self._role.identity.group,
            )
        offsets = self._kept.offsets
        if not offsets.has_room_for(request.group, [entry.key for entry in request.entries]):
            raise OverloadedError(
                f"an acting master keeps {ENTRIES_MAX} provisional offsets at most",
                retry_after_ms=1000,
            )
        known = standing(self._role.projections, self._routes, request.group)
        now_unix_ms = self._clock.unix_ms()
        outcomes = [
            self._commit_one(acting, request, entry, known.get(entry.key), now_unix_ms)
            for entry in request.entries
        ]
        await self._kept.save()
        if acting.has_ended:
            raise OutcomeUnknownError(
                "the acting master's time ended meanwhile; what was kept is handed to the master"
            )
        return outcomes

    async def change_locks(self, acting: Acting, request: LockRequest) -> list[LockOutcome]:
        """Raises NotYetAvailableError while nothing may be granted; StorageError."""
        if not acting.locks.is_prepared and acting.locks.is_due(self._clock.monotonic_ms()):
            # First, durably: once locks are opened the next master fences all older tokens, and
            # would refuse what was committed under them.
            while self._kept.offsets.strip_tokens():
                await self._kept.save()  # meanwhile others may come
            acting.locks.is_prepared = True
        if acting.has_ended:
            raise NoMasterError("the acting master's time has ended", group=request.group)
        now_ms = self._clock.monotonic_ms()
        outcomes = acting.locks.change(request, now_ms=now_ms)
        # Leases are counted on the monotonic clock; who reads an answer has the other one.
        to_unix_ms = self._clock.unix_ms() - now_ms
        return [_shifted(outcome, to_unix_ms) for outcome in outcomes]

    def _commit_one(
        self,
        acting: Acting,
        request: CommitRequest,
        entry: CommitEntry,
        committed: Committed | None,
        now_unix_ms: int,
    ) -> CommitOutcome:
        group = request.group
        expired_unix_ms = now_unix_ms if request.may_expire else 0
        if self._role.projections.has_open_receipts(group, entry.key, expired_unix_ms):
            return CommitOutcome(entry.key, "RECEIPTS_OPEN", committed)
        granted = acting.locks.token_of(group, entry.key)
        if granted is not None and entry.token != granted:  # INV-11: the lock is another's by now
            return CommitOutcome(entry.key, "LOCK_FENCED", committed)
        if acting.locks.is_prepared:
            # The next master knows neither this token nor an older one any more.
            entry = entry._replace(token=None)
        return self._kept.offsets.commit(
            group,
            entry,
            committed,
            now_unix_ms=now_unix_ms,
            group_id=self._routes.group_id(group),
        )


def _shifted(outcome: LockOutcome, to_unix_ms: int) -> LockOutcome:
    lock = outcome.lock
    if lock is None:
        return outcome
    moved = lock._replace(expires_unix_ms=lock.expires_unix_ms + to_unix_ms)
    return outcome._replace(lock=moved)
