"""Between a member of a group and what it owns: logical queues are claimed, segments are worked on.

The members of a group share the logical queues of a static topic. Who has the claim of one works on
one of its segments at a time; the next begins when that one is consumed and committed up to its
sealed end. What is committed is asked of the brokers each time: an answer that was lost, or a reset
of the group, is then no special case. Queues of other topics pass through untouched.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from paceline.consumer.offsets.group_offsets import OffsetStore
from paceline.consumer.queues.segments import SegmentBook, next_segment, queue_of
from paceline.errors import PacelineError, QueueNotFoundError
from paceline.net.cluster import Cluster
from paceline.platform.runtime import cancel_and_wait, spawn
from paceline.queues import LOGICAL, QueueKey
from paceline.wire.static_topics import Segment

log = logging.getLogger("paceline.client")


class GroupMember(Protocol):
    """Our part in the group: says which queues are ours (`Membership`, `BroadcastMembership`)."""

    def start(self) -> None: ...

    async def close(self) -> None:
        """Leave, when every queue is released."""
        ...

    def stop_claiming(self) -> None: ...

    def release(self, key: QueueKey) -> None:
        """A queue is committed and given up, or could not be started."""
        ...


Join: TypeAlias = Callable[
    [Callable[[set[QueueKey]], None], Callable[[QueueKey], None], Callable[[], None]], GroupMember
]
"""(on_targets, on_owned, on_lost) -> the member; `Membership` has what they mean."""


class _Claim:
    """A logical queue that we have the claim of."""

    __slots__ = ("at", "is_ending", "key", "queue")

    def __init__(self, key: QueueKey) -> None:
        self.key = key
        self.queue: QueueKey | None = None
        """The segment's queue that the owner has, or is about to open."""
        self.at: int | None = None
        """Generation of the segment that we are in: those before it are done; None: look at all."""
        self.is_ending = False
        """Its queue is being released, and another segment follows."""


class SegmentMember:
    """What a `Assignment` is a member by. Its callbacks name queues that can be fetched."""

    def __init__(
        self,
        cluster: Cluster,
        offsets: OffsetStore,
        book: SegmentBook,
        join: Join,
        *,
        on_targets: Callable[[set[QueueKey]], None],
        on_owned: Callable[[QueueKey], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._offsets = offsets
        self._book = book
        self._tell_targets = on_targets
        self._tell_owned = on_owned
        self._tell_lost = on_lost
        self._targets: set[QueueKey] = set()
        self._claims: dict[QueueKey, _Claim] = {}
        self._by_queue: dict[QueueKey, _Claim] = {}
        self._looking: set[asyncio.Task[None]] = set()
        self._is_leaving = False
        self._member = join(self._on_targets, self._on_owned, self._on_lost)

    def start(self) -> None:
        self._member.start()

    async def close(self) -> None:
        """Leave, when every queue is released."""
        await self.end()
        await self._member.close()

    async def end(self) -> None:
        """Look for nothing any more."""
        await cancel_and_wait(*self._looking)

    def stop_claiming(self) -> None:
        self._is_leaving = True
        self._member.stop_claiming()

    def release(self, key: QueueKey) -> None:
        """A queue is committed and given up, or could not be started."""
        claim = self._by_queue.pop(key, None)
        if claim is None:
            self._member.release(key)
        elif claim.is_ending:
            claim.queue, claim.is_ending = None, False
            self._look(claim)
        else:
            self._give_up(claim)

    def reached_end(self, key: QueueKey) -> None:
        """Everything of a sealed segment is processed: the owner is to commit and release it."""
        claim = self._by_queue.get(key)
        if claim is not None and not claim.is_ending:
            claim.is_ending = True
            self._aim()

    def start_over(self, key: QueueKey) -> bool:
        """The group was reset: look again which segment it stands in; False where that is plain."""
        claim = self._by_queue.get(key)
        if claim is None or claim.is_ending or len(self._book.segments_of(claim.key)) == 1:
            return False
        claim.is_ending, claim.at = True, None
        self._aim()
        return True

    # -- what the group says ----------------------------------------------------------------------

    def _on_targets(self, targets: set[QueueKey]) -> None:
        self._targets = targets
        self._aim()

    def _on_owned(self, key: QueueKey) -> None:
        if key.group != LOGICAL:
            self._tell_owned(key)
            return
        claim = self._claims[key] = _Claim(key)
        self._look(claim)

    def _on_lost(self) -> None:
        self._claims.clear()
        self._by_queue.clear()
        self._tell_lost()

    def _aim(self) -> None:
        targets = {key for key in self._targets if key.group != LOGICAL}
        targets.update(
            claim.queue
            for key, claim in self._claims.items()
            if key in self._targets and claim.queue is not None and not claim.is_ending
        )
        self._tell_targets(targets)

    def _give_up(self, claim: _Claim) -> None:
        """Let others have the logical queue, or ask for it anew."""
        if self._is_claimed(claim):
            del self._claims[claim.key]
            self._member.release(claim.key)

    def _is_claimed(self, claim: _Claim) -> bool:
        """Not so when all was lost meanwhile: the key may be claimed anew."""
        return self._claims.get(claim.key) is claim

    # -- which segment ----------------------------------------------------------------------------

    def _look(self, claim: _Claim) -> None:
        task = spawn(self._begin(claim), name=f"segment-{claim.key.topic_id}-{claim.key.queue_id}")
        self._looking.add(task)
        task.add_done_callback(self._looking.discard)

    async def _begin(self, claim: _Claim) -> None:
        """Have the owner open the segment that is next."""
        queue: QueueKey | None = None
        try:
            queue = await self._next_queue(claim)
        except PacelineError as error:
            log.warning(
                "segment_not_found", extra={"queue": str(claim.key), "error": error.message}
            )
        if not self._is_claimed(claim):
            return
        if queue is None or claim.key not in self._targets or self._is_leaving:
            self._give_up(claim)
            return
        claim.queue = queue
        self._by_queue[queue] = claim
        self._aim()
        self._tell_owned(queue)

    async def _next_queue(self, claim: _Claim) -> QueueKey:
        known, at = self._book.segments_of(claim.key), claim.at
        segments = [one for one in known if at is None or one.generation >= at]
        if not segments:
            raise QueueNotFoundError(f"there is no logical queue {claim.key.queue_id} any more")
        keys = [queue_of(claim.key, segment) for segment in segments]
        if len(known) == 1:
            number = 0
        else:
            stood = await self._offsets.standing(keys)
            found = next_segment(segments, stood)
            if found is None and at is None:
                number = await self._first(keys, segments)
            else:
                number = found or 0
                # Else the group began after some of it: where it starts, the store knows.
                is_behind = found is None or any(one.offset is not None for one in stood[:number])
                if stood[number].offset is None and is_behind:
                    self._offsets.goes_on_in(keys[number])
        claim.at = segments[number].generation
        return keys[number]

    async def _first(self, keys: Sequence[QueueKey], segments: Sequence[Segment]) -> int:
        """The segment that a group begins in: the first that has something for it, or the last."""
        for number, (key, segment) in enumerate(zip(keys[:-1], segments[:-1], strict=True)):
            end = segment.sealed_end
            if end is None or await self._offsets.start_of(key) < end:
                return number
        return len(keys) - 1
