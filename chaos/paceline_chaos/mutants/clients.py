"""Rules that clients keep, taken out (R32)."""

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from paceline.consumer.group import segment_member
from paceline.consumer.locks.leases import Leases
from paceline.consumer.locks.queue_locks import QueueLocks
from paceline.consumer.offsets.group_offsets import GroupOffsets
from paceline.consumer.process.assignment import Assignment
from paceline.consumer.queues.process_queue import ProcessQueue
from paceline.consumer.queues.segments import GroupPosition
from paceline.errors import BadRequestError
from paceline.message import LockToken
from paceline.platform.ports import Clock
from paceline.producer import dispatcher
from paceline.producer.dispatcher import Dispatcher
from paceline.producer.queue_buffer import QueueBuffer
from paceline.queues import QueueKey
from paceline.wire.static_topics import Segment
from paceline_broker.service.groups.lock_calls import LockCalls
from paceline_chaos.mutants.mutant import Mutant, Patch, of_moment


def _unknown_forgotten() -> list[Patch]:
    """A batch with an unknown attempt is made anew like any other: its sequence serves twice."""
    resolve = QueueBuffer._resolve_when_quiet

    def resolve_without(box: QueueBuffer) -> None:
        if box._is_rewinding and not box._in_flight_count:
            for batch in box.pending:
                batch.is_unknown = False
        resolve(box)

    return [(QueueBuffer, "_resolve_when_quiet", resolve_without)]


def _unknown_reported_as_failed() -> list[Patch]:
    """What may be stored is reported as not stored."""
    settle = QueueBuffer._settle

    def settle_as_failed(box: QueueBuffer, batch: Any, error: Any) -> None:
        from paceline.errors import NotMasterError

        if not error.is_definite:
            batch.is_unknown = False
            error = NotMasterError("not stored", master=None)
        settle(box, batch, error)

    return [(QueueBuffer, "_settle", settle_as_failed)]


def _lease_for_ever() -> list[Patch]:
    """Who was granted a lock relies on it until it hears otherwise."""

    def is_valid(leases: Leases, key: QueueKey, token: LockToken | None, *, now_ms: int) -> bool:
        return token is not None and leases.token_of(key) == token

    return [(Leases, "is_valid", is_valid)]


def _lease_as_wished() -> list[Patch]:
    """A member relies on the lease that it asked for, not on the one that it was granted."""
    granted, renewed = Leases.granted, Leases.renewed

    def granted_all(leases: Leases, *key: Any, asked_ms: int, lease_ms: int) -> None:
        granted(leases, *key, asked_ms=asked_ms, lease_ms=leases._lease_ms)

    def renewed_all(leases: Leases, *key: Any, asked_ms: int, lease_ms: int) -> None:
        renewed(leases, *key, asked_ms=asked_ms, lease_ms=leases._lease_ms)

    return [(Leases, "granted", granted_all), (Leases, "renewed", renewed_all)]


def _more_lease_refused() -> list[Patch]:
    """A broker refuses who asks for a longer lease than it grants."""

    async def lock_unless_long(calls: LockCalls, asked: Any) -> Any:
        asked_ms = asked.lease_ms or 0
        if asked_ms > calls._settings.lock_lease_ms:
            raise BadRequestError(f"{asked_ms} ms are longer than any lease of this broker")
        return await lock(calls, asked)

    lock = LockCalls.lock
    return [(LockCalls, "lock", lock_unless_long)]


def _lease_from_answer() -> list[Patch]:
    """A lease counts from when its answer came, however long that had been under way."""
    init = QueueLocks.__init__

    class FromAnswer(Leases):
        """Leases that look at a clock themselves."""

        clock: Clock

        def granted(self, key: QueueKey, token: LockToken, *, asked_ms: int, lease_ms: int) -> None:
            now_ms = self.clock.monotonic_ms()
            super().granted(key, token, asked_ms=now_ms, lease_ms=lease_ms)

        def renewed(self, key: QueueKey, token: LockToken, *, asked_ms: int, lease_ms: int) -> None:
            now_ms = self.clock.monotonic_ms()
            super().renewed(key, token, asked_ms=now_ms, lease_ms=lease_ms)

    def init_with(locks: QueueLocks, links: Any, clock: Clock, *rest: Any, **settings: Any) -> None:
        init(locks, links, clock, *rest, **settings)
        locks._leases = FromAnswer(lease_ms=settings["lease_ms"], renew_ms=settings["renew_ms"])
        locks._leases.clock = clock

    return [(QueueLocks, "__init__", init_with)]


def _commits_end() -> list[Patch]:
    """What a loop does that has ended, and of which nobody hears: the member goes on consuming."""
    commit = GroupOffsets.commit
    counts: WeakKeyDictionary[GroupOffsets, int] = WeakKeyDictionary()

    async def commit_twice(offsets: GroupOffsets, *arguments: Any) -> None:
        counts[offsets] = counts.get(offsets, 0) + 1
        if counts[offsets] <= 2:
            await commit(offsets, *arguments)

    return [(GroupOffsets, "commit", commit_twice)]


def _moved_while_unknown() -> list[Patch]:
    """What is certainly not stored goes to the next segment at once, whatever comes before it."""

    def hand_on_at_once(outbox: QueueBuffer) -> QueueBuffer | None:
        new = outbox.successor
        if new is None or not (outbox.unsent or outbox.is_idle):
            return None
        for batch in reversed(outbox.take_unsent()):
            batch.queue = new.queue
            new.unsent.appendleft(batch)
        if outbox.is_idle:
            outbox.successor = None
        new.is_behind = new.is_closed = False
        return new

    return [(dispatcher, "hand_on", hand_on_at_once)]


def _chosen_queue_left() -> list[Patch]:
    """A message for one queue goes elsewhere like any other, also after an unknown attempt."""
    pinned = Dispatcher._pinned_batch

    def not_pinned(dispatcher: Dispatcher, *arguments: Any, **more: Any) -> Any:
        batch = pinned(dispatcher, *arguments, **more)
        batch.is_movable = True
        return batch

    return [(Dispatcher, "_pinned_batch", not_pinned), *_unknown_forgotten()]


def _newest_segment_first() -> list[Patch]:
    """A group that has begun goes on in the segment that is written to."""

    def newest(segments: Sequence[Segment], stood: Sequence[GroupPosition]) -> int | None:
        is_new = all(one.offset is None for one in stood)
        return None if is_new else len(segments) - 1

    return [(segment_member, "next_segment", newest)]


def _first_commit_anyway() -> list[Patch]:
    """The first commit of a member names no reset generation, so that any will do."""
    commit_rows = GroupOffsets._commit_rows

    async def without(offsets: GroupOffsets, group: Any, queues: Any, rows: Any) -> Any:
        for row in rows:
            row.generation = row.generation or None
        return await commit_rows(offsets, group, queues, rows)

    return [(GroupOffsets, "_commit_rows", without)]


def _resets_unnoted() -> list[Patch]:
    """A member starts its queue as a reset says, and again at each look, for it notes nothing."""
    obey = Assignment._obey_reset

    def obey_again(owner: Assignment, queue: ProcessQueue, offset: int, generation: int) -> None:
        obey(owner, queue, offset, queue.generation)

    return [(Assignment, "_obey_reset", obey_again)]


CLIENTS = (
    Mutant(
        rule="L10",
        meaning="a member starts its queue again at each look after a reset",
        caught_by=frozenset({"L10"}),
        patches=_resets_unnoted,
        bed="world",
    ),
    Mutant(
        rule="R33-first",
        meaning="a member's first commit undoes a reset that came before it",
        patches=_first_commit_anyway,
        **of_moment("first-commit"),
    ),
    Mutant(
        rule="R32-moved",
        meaning="batches move to the next segment before those before them are answered",
        patches=_moved_while_unknown,
        **of_moment("moving", "S37"),
    ),
    Mutant(
        rule="R32-chosen",
        meaning="a message for a chosen queue goes to another one after an unknown attempt",
        patches=_chosen_queue_left,
        **of_moment("permits", "S1"),
    ),
    Mutant(
        rule="R33-segments",
        meaning="a group begins with the newest segment of a logical queue before it is done",
        patches=_newest_segment_first,
        **of_moment("moving", "S37"),
    ),
    Mutant(
        rule="R33-lease",
        meaning="a member relies on its lease after it has run out by its own clock",
        patches=_lease_for_ever,
        **of_moment("frozen", "S26", "moments:frozen"),
    ),
    Mutant(
        rule="R33-answer",
        meaning="a member counts a lease from its answer, not from its question",
        patches=_lease_from_answer,
        **of_moment("late-answer", "S26", "moments:late-answer"),
    ),
    Mutant(
        rule="R33-wished",
        meaning="a member relies on the lease that it asked for, not on what it was granted",
        patches=_lease_as_wished,
        **of_moment("late-answer", "S26"),
    ),
    Mutant(
        rule="L5-lease",
        meaning="a broker refuses who asks for a longer lease than it grants",
        patches=_more_lease_refused,
        **of_moment("frozen", "L5", "moments:frozen"),
    ),
    Mutant(
        rule="L9",
        meaning="a member stops committing, and goes on consuming",
        caught_by=frozenset({"L9"}),
        patches=_commits_end,
        bed="world",
    ),
    Mutant(
        rule="R32",
        meaning="an unknown attempt is forgotten",
        caught_by=frozenset({"S1", "S2", "S4", "S5"}),
        patches=_unknown_forgotten,
    ),
    Mutant(
        rule="R32-failed",
        meaning="unknown is reported as not stored",
        caught_by=frozenset({"S4"}),
        patches=_unknown_reported_as_failed,
    ),
)
