"""Which messages a receiver is given now: synchronous, decided on the state at `end`.

Those whose invisible time is over come first, but fill at most half of an answer while there are
new ones: messages that fail for ever must not starve the others. A queue's new messages follow in
order; queues take turns. An ordered receiver is given nothing of a queue while something of it is
out, and after an expiry the lowest first.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from paceline.filters import Filter
from paceline_broker.ports import LogReader
from paceline_broker.projections.consume_queues import ConsumeQueue, queue_of, topic_of
from paceline_broker.projections.projections import Projections
from paceline_broker.projections.receipt_queue import QueueReceipts, Run
from paceline_broker.service.pop.filtering import TurnLook, sift

FIRST = "first"
LAST = "last"
_SPENT_MAX = 4096
"""So many messages without an attempt left are looked past in one queue."""
BYTES_MAX = 4 * 1024 * 1024
"""Of the batches that hold one queue's part of an answer, or one message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PopRequest:
    """What a receiver wants."""

    group: str
    client_id: str
    keys: tuple[int, ...]
    """The queues; answers begin with another one each time."""
    has_priorities: frozenset[int] = frozenset()
    """Ids of topics whose queues have priorities: these come first, the highest before all."""
    messages_max: int
    invisible_ms: int
    start: str = FIRST
    """Where the group begins on a queue it has never consumed."""
    from_first: frozenset[int] = frozenset()
    """Ids of topics on whose queues it begins with the first message, whatever `start` says."""
    is_from_min: bool = True
    """Unless the group says otherwise, on one that came since it began to read the topic: first."""
    is_ordered: bool = False
    filters: Mapping[int, Filter] = field(default_factory=dict)
    """By queue key, where not everything is wanted."""
    attempts_max: int = 17
    """Deliveries of one message: the first and the group's `retry_max_times`."""


class PopGrantRow(NamedTuple):
    """Messages [first, end) of a queue."""

    key: int
    first: int
    end: int
    attempt: int


@dataclass(slots=True)
class PopGrant:
    """What a receiver was given, under the record at `position`."""

    position: int
    until_unix_ms: int
    rows: list[PopGrantRow] = field(default_factory=list)
    exhausted: list[tuple[int, Run]] = field(default_factory=list)
    """(queue key, messages): no attempt is left of them."""
    cold: list[memoryview] = field(default_factory=list)
    """A filter has to see these, and they are not in memory."""
    has_more: bool = False
    """More remains to be read or skipped: the next batch goes on with it."""


class Turn(Protocol):
    """What to decide on, and the record that is being made."""

    @property
    def projections(self) -> Projections: ...

    @property
    def now_unix_ms(self) -> int: ...

    @property
    def position(self) -> int: ...

    @property
    def may_expire(self) -> bool: ...

    @property
    def reader(self) -> LogReader: ...

    @property
    def look(self) -> TurnLook: ...

    @property
    def rows_left(self) -> int: ...

    def fold(self, item: list[Any]) -> None: ...


def hand_out(asked: PopRequest, turn: Turn, *, inflight_max: int, begin_with: int) -> PopGrant:
    """Decide and fold; `rows` are empty if there is nothing now.

    `begin_with` says with which queue, so that none is starved by those before it.
    """
    until = turn.now_unix_ms + asked.invisible_ms
    given = PopGrant(turn.position, until)
    work = _HandingOut(asked, turn, given, inflight_max, begin_with)
    given.has_more = not work.begin()
    if given.has_more:
        return given
    if asked.is_ordered:
        work.ordered()
    else:
        has_new = work.has_new()
        work.again(-(-asked.messages_max // 2) if has_new else asked.messages_max)
        if has_new:
            work.new()
            work.again(work.room)
    return given


class _HandingOut:
    """One answer in the making. Each step folds what it gives, so the next step sees it."""

    def __init__(
        self, asked: PopRequest, turn: Turn, given: PopGrant, inflight_max: int, begin_with: int
    ) -> None:
        self._asked = asked
        self._turn = turn
        self._given = given
        self._inflight_max = inflight_max
        self.room = asked.messages_max
        projections = turn.projections
        self._locks = projections.locks
        self._receipts = projections.receipts
        self._queues = projections.consume_queues
        at = begin_with % len(asked.keys)
        self._keys = asked.keys[at:] + asked.keys[:at]
        if asked.has_priorities:
            self._keys = _by_priority(self._keys, asked.has_priorities)

    def begin(self) -> bool:
        """Queues of which the group was never given anything: from its committed offset on.

        False if more remains: the next turn goes on.
        """
        asked, offsets = self._asked, self._turn.projections.offsets
        known = self._receipts.of_group(asked.group)
        rows: list[list[int]] = []
        for key in asked.keys:
            if key in known:
                continue
            if len(rows) >= self._turn.rows_left:
                break
            committed = offsets.get(asked.group, key)
            rows.append([key, self._start(key) if committed is None else committed.offset])
        if rows:
            self._turn.fold(["start", asked.group, rows])
        known = self._receipts.of_group(asked.group)
        return all(key in known for key in asked.keys) and self._pass_deleted()

    def _start(self, key: int) -> int:
        """Where the group begins on a queue in which it never stood; "last" skips nothing that was
        stored since it began to read the topic."""
        queue = self._queues.get(key)
        if queue is None:
            return 0
        if self._asked.start == FIRST or topic_of(key) in self._asked.from_first:
            return queue.start
        joined = self._turn.projections.joined_at(self._asked.group, key)
        return joined if joined is not None and self._asked.is_from_min else queue.end

    def _pass_deleted(self) -> bool:
        """What retention has deleted is nobody's any more (R26). False: there is more of it."""
        group = self._asked.group
        passed: list[list[int]] = []
        dropped: list[list[int]] = []
        room = self._turn.rows_left
        for key in self._asked.keys:
            if len(passed) + len(dropped) >= room:
                break
            queue, receipts = self._queues.get(key), self._receipts.get(group, key)
            if queue is None or receipts is None or receipts.floor >= queue.start:
                continue
            if receipts.next < queue.start:
                passed.append([key, int(queue.start)])
            gone = [offset for offset in receipts.in_flight if offset < queue.start]
            dropped += [[key, first, end] for first, end in _ranges(gone)]
        is_all = len(passed) + len(dropped) < room
        if passed:
            self._turn.fold(["pass", group, passed])
        if dropped:
            self._turn.fold(["drop", group, dropped[: max(1, room - len(passed))]])
        return is_all

    def has_new(self) -> bool:
        return any(self._new_count(key) > 0 for key in self._keys)

    def again(self, count_max: int) -> None:
        """Messages whose invisible time is over."""
        if not self._turn.may_expire:
            return
        rows: list[PopGrantRow] = []
        left = min(count_max, self.room)
        for key in self._keys:
            if left <= 0:
                break
            receipts = self._receipts.get(self._asked.group, key)
            if receipts is None or not receipts.in_flight or self._is_locked(key):
                continue
            for run in self._due(receipts, left):
                if run.grant.attempt >= self._asked.attempts_max:
                    self._given.exhausted.append((key, run))
                    continue
                count = min(run.end - run.first, left)
                if count:
                    rows.append(
                        PopGrantRow(key, run.first, run.first + count, run.grant.attempt + 1)
                    )
                left -= count
        self._give(rows)

    def _due(self, receipts: QueueReceipts, count: int) -> list[Run]:
        """`count` messages that are due with an attempt left, and those without one before them:
        they stay due until they are buried, which may be long (R24)."""
        room = count
        while True:
            found = receipts.due(self._turn.now_unix_ms, room)
            total = sum(run.end - run.first for run in found)
            spent = sum(
                run.end - run.first
                for run in found
                if run.grant.attempt >= self._asked.attempts_max
            )
            if total < room or total - spent >= count or room >= _SPENT_MAX:
                return found
            room = 2 * (count + spent)

    def new(self) -> None:
        """Messages that nobody was given before."""
        rows: list[PopGrantRow] = []
        left = self.room
        for key in self._keys:
            if left <= 0 or self._is_full():
                break
            found = self._new_of(key, left)
            rows += found
            left -= sum(row.end - row.first for row in found)
        self._give(rows)

    def _new_of(self, key: int, count_max: int) -> list[PopGrantRow]:
        """New messages of one queue; what its filter does not want before them is passed over."""
        count = min(count_max, self._new_count(key))
        receipts = self._receipts.get(self._asked.group, key)
        if count <= 0 or receipts is None:
            return []
        first, queue = receipts.next, self._queues.get_or_make(key)
        count = _within_bytes(queue, first, count)
        wanted = self._asked.filters.get(key)
        if wanted is None:
            return [PopGrantRow(key, first, first + count, 1)]
        sifted = sift(queue, first, count, wanted, self._turn.reader, self._turn.look)
        self._given.has_more |= sifted.has_more
        if sifted.cold is not None:
            self._given.cold.append(sifted.cold)
        if not sifted.rows and sifted.end > first:
            self._turn.fold(["pass", self._asked.group, [[key, sifted.end]]])
        return [PopGrantRow(key, low, high, 1) for low, high in sifted.rows]

    def ordered(self) -> None:
        """Of each queue either what is out and due, the lowest first, or else new ones."""
        rows: list[PopGrantRow] = []
        left = self.room
        for key in self._keys:
            receipts = self._receipts.get(self._asked.group, key)
            if left <= 0 or self._is_full():
                break
            if receipts is None or self._is_locked(key):
                continue
            if receipts.in_flight or receipts.withdrawn:
                found = self._lowest_due(receipts, left)
            else:
                found = self._new_of(key, left)
            rows += found
            left -= sum(row.end - row.first for row in found)
        self._give(rows)

    def _lowest_due(self, receipts: QueueReceipts, count_max: int) -> list[PopGrantRow]:
        rows: list[PopGrantRow] = []
        if not self._turn.may_expire or receipts.withdrawn:
            return rows
        for run in receipts.runs():
            count = min(run.end - run.first, count_max)
            if run.grant.until_unix_ms > self._turn.now_unix_ms or count <= 0:
                break
            if run.grant.attempt >= self._asked.attempts_max:
                self._given.exhausted.append((receipts.key, run))
                break
            rows.append(
                PopGrantRow(receipts.key, run.first, run.first + count, run.grant.attempt + 1)
            )
            count_max -= count
        return rows

    def _is_full(self) -> bool:
        is_full = self._turn.rows_left == 0
        self._given.has_more |= is_full
        return is_full

    def _give(self, rows: list[PopGrantRow]) -> None:
        if not rows:
            return
        asked = self._asked
        until = self._given.until_unix_ms
        self._turn.fold(["give", asked.group, asked.client_id, until, [list(row) for row in rows]])
        self._given.rows += rows
        self.room -= sum(row.end - row.first for row in rows)

    def _new_count(self, key: int) -> int:
        queue = self._queues.get(key)
        receipts = self._receipts.get(self._asked.group, key)
        if queue is None or receipts is None or queue.end <= receipts.next or self._is_locked(key):
            return 0
        return min(queue.end - receipts.next, self._inflight_max - len(receipts.in_flight))

    def _is_locked(self, key: int) -> bool:
        """A member of the group consumes the queue in order, under a lock: it alone may (R33). Or
        may do so by an acting master's lock, of which nothing is known here (R36)."""
        now = self._turn.now_unix_ms
        return self._locks.barred_until(self._asked.group, key, now_unix_ms=now) is not None


def _by_priority(keys: Iterable[int], has_priorities: Collection[int]) -> tuple[int, ...]:
    """Queues of these topics by falling number, then all others as they stand."""
    first = [key for key in keys if topic_of(key) in has_priorities]
    others = [key for key in keys if topic_of(key) not in has_priorities]
    return (*sorted(first, key=queue_of, reverse=True), *others)


def _ranges(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """Neighbours together, rising."""
    found: list[tuple[int, int]] = []
    for offset in sorted(offsets):
        if found and found[-1][1] == offset:
            found[-1] = (found[-1][0], offset + 1)
        else:
            found.append((offset, offset + 1))
    return found


def _within_bytes(queue: ConsumeQueue, first: int, count: int) -> int:
    """So many of `count` messages that their batches are not much over `BYTES_MAX`."""
    sizes = queue.sizes(*queue.entries(first, first + count))
    total = sum(sizes)
    return count if total <= BYTES_MAX or len(sizes) == 1 else max(1, count * BYTES_MAX // total)
