"""Pure: the receipts of one consumer group on one queue (see receipts.py)."""

from collections import deque
from collections.abc import Iterable
from enum import Enum
from heapq import heapify, heappop, heappush
from itertools import repeat
from typing import NamedTuple

DONE_MAX = 512
"""Acknowledgements of which is remembered by what receipt they came: others are told so."""


class Grant(NamedTuple):
    """Under which a message is out; one object for all messages given together."""

    until_unix_ms: int
    """Log time at which others may be given the message."""
    attempt: int
    position: int
    """Of the record of the grant."""
    client_id: str


class Run(NamedTuple):
    """Messages [first, end) that are out under one grant."""

    first: int
    end: int
    grant: Grant


class Done(NamedTuple):
    """Messages [first, end) were acknowledged under the grant at `position`."""

    first: int
    end: int
    position: int


class ReceiptState(Enum):
    """What a receipt is worth."""

    OPEN = "open"
    DONE = "done"
    """It was acknowledged, by this very receipt."""
    PAST = "past"
    """The message is done, and by which receipt is not remembered."""
    VOID = "void"
    """The message was given anew, is on its way to the dead letters, or is done by another
    receipt; or the group was reset since."""
    UNKNOWN = "unknown"
    """Nobody was ever given that message."""


class QueueReceipts:
    """Owned by `Receipts`. Offsets are queue offsets; ranges half-open."""

    __slots__ = (
        "_due",
        "_until_max",
        "done",
        "floor",
        "in_flight",
        "key",
        "next",
        "since",
        "start",
        "withdrawn",
    )

    def __init__(self, key: int, start: int, since: int) -> None:
        """The group begins at offset `start`, by the record at position `since`."""
        self.key = key
        self.start = start
        self.since = since
        self.floor = start
        """The lowest offset that is not done: the committed one. Everything below is done."""
        self.next = start
        """Nobody was given this offset or any above."""
        self.in_flight: dict[int, Grant] = {}
        self.done: deque[Done] = deque()
        self.withdrawn: set[int] = set()
        """In flight no more, and not done: on their way to the dead letters. Kept as `dying`."""
        self._due: list[tuple[int, int, int, int]] = []
        """Heap of (until, first, end, position); what is no longer so is skipped. Not state."""
        self._until_max = 0
        """Nothing in flight is invisible at this log time or later. Not state."""

    # -- the fold ----------------------------------------------------------------------------------

    def give(self, first: int, end: int, grant: Grant) -> None:
        """Messages are out under a new grant: all of them new ones, or all given before."""
        if first >= self.next:
            self.pass_to(first)
            self.next = end
        elif any(offset not in self.in_flight for offset in range(first, end)):
            raise ValueError(f"offsets {first} to {end} of queue {self.key} are not in flight")
        self.in_flight.update(zip(range(first, end), repeat(grant)))
        self._note_due(grant.until_unix_ms, first, end, grant.position)

    def pass_to(self, offset: int) -> None:
        """New messages below `offset` are done without being given to anybody."""
        if offset > self.next:
            self.next = offset
            self._advance()

    def acknowledge(self, first: int, end: int, position: int) -> None:
        """Messages that are out under the grant at `position` are done."""
        self.finish(first, end)
        last = self.done[-1] if self.done else None
        if last is not None and last.end == first and last.position == position:
            self.done[-1] = Done(last.first, end, position)
            return
        self.done.append(Done(first, end, position))
        if len(self.done) > DONE_MAX:
            self.done.popleft()

    def finish(self, first: int, end: int) -> None:
        """Messages are done."""
        for offset in range(first, end):
            if self.in_flight.pop(offset, None) is None:
                self.withdrawn.discard(offset)
        self._advance()

    def change(self, offset: int, until_unix_ms: int, attempt: int, position: int) -> None:
        """A message stays out until another time, under a new receipt."""
        grant = self.in_flight[offset]
        self.in_flight[offset] = Grant(until_unix_ms, attempt, position, grant.client_id)
        self._note_due(until_unix_ms, offset, offset + 1, position)

    def withdraw(self, offset: int) -> None:
        """No receipt of the message is worth anything now; it is not done either."""
        del self.in_flight[offset]
        self.withdrawn.add(offset)

    def commit(self, offset: int) -> None:
        """The group is done with everything below `offset`, however it came by it."""
        for at in [at for at in self.in_flight if at < offset]:
            del self.in_flight[at]
        self.next = max(self.next, offset)
        self._advance()

    def clamp(self, end: int) -> None:
        """The queue ends at `end` (R21)."""
        if self.next <= end:
            return
        self.in_flight = {at: grant for at, grant in self.in_flight.items() if at < end}
        self.withdrawn = {at for at in self.withdrawn if at < end}
        self.done.clear()
        self.next = end
        self.floor = min(self.floor, end)
        self.start = min(self.start, end)
        self._advance()

    def _note_due(self, until_unix_ms: int, first: int, end: int, position: int) -> None:
        heappush(self._due, (until_unix_ms, first, end, position))
        self._until_max = max(self._until_max, until_unix_ms)
        if len(self._due) > 2 * len(self.in_flight) + 64:  # what is done lies there till its time
            self._due = [
                (run.grant.until_unix_ms, run.first, run.end, run.grant.position)
                for run in self.runs()
            ]
            heapify(self._due)

    def _advance(self) -> None:
        floor, in_flight, withdrawn = self.floor, self.in_flight, self.withdrawn
        if not in_flight and not withdrawn:
            self.floor = self.next
            return
        while floor < self.next and floor not in in_flight and floor not in withdrawn:
            floor += 1
        self.floor = floor

    # -- questions ---------------------------------------------------------------------------------

    def standing(self, offset: int, position: int, attempt: int) -> ReceiptState:
        """What the receipt of that grant is worth now."""
        grant = self.in_flight.get(offset)
        if grant is not None:
            is_same = grant.position == position and grant.attempt == attempt
            return ReceiptState.OPEN if is_same else ReceiptState.VOID
        if offset >= self.next:
            return ReceiptState.UNKNOWN
        if offset < self.start or position < self.since or offset in self.withdrawn:
            return ReceiptState.VOID
        for done in reversed(self.done):
            if done.first <= offset < done.end:
                return ReceiptState.DONE if done.position == position else ReceiptState.VOID
        return ReceiptState.PAST

    def holds(self, now_unix_ms: int) -> bool:
        """Whether receivers have something that is not to be given to others at that log time."""
        if self.withdrawn:
            return True
        if not self.in_flight or now_unix_ms >= self._until_max:
            return False
        if any(grant.until_unix_ms > now_unix_ms for grant in self.in_flight.values()):
            return True
        self._until_max = now_unix_ms
        return False

    @property
    def due_unix_ms(self) -> int | None:
        """No message is due before this log time; None: nothing is in flight."""
        due = self._due
        while due and not self._is_live(due[0]):
            heappop(due)
        return due[0][0] if due else None

    def due(self, now_unix_ms: int, count_max: int) -> list[Run]:
        """Messages whose invisible time is over, the longest first; whoever asks may give them."""
        found: list[Run] = []
        looked: list[tuple[int, int, int, int]] = []
        heap = self._due
        while heap and heap[0][0] <= now_unix_ms and count_max > 0:
            entry = heappop(heap)
            runs = self._live_runs(entry, count_max)
            if runs:
                looked.append(entry)
            found += runs
            count_max -= sum(run.end - run.first for run in runs)
        for entry in looked:  # they stay due until they are given
            heappush(heap, entry)
        return found

    def _live_runs(self, entry: tuple[int, int, int, int], count_max: int) -> list[Run]:
        until, first, end, position = entry
        found: list[Run] = []
        get = self.in_flight.get
        for offset in range(first, end):
            grant = get(offset)
            if grant is None or grant.position != position or grant.until_unix_ms != until:
                continue
            if count_max == 0:
                break
            count_max -= 1
            if found and found[-1].end == offset and found[-1].grant is grant:
                found[-1] = Run(found[-1].first, offset + 1, grant)
            else:
                found.append(Run(offset, offset + 1, grant))
        return found

    def _is_live(self, entry: tuple[int, int, int, int]) -> bool:
        until, first, end, position = entry
        get = self.in_flight.get
        for offset in range(first, end):
            grant = get(offset)
            if grant and grant.position == position and grant.until_unix_ms == until:
                return True
        return False

    # -- snapshots ---------------------------------------------------------------------------------

    def runs(self) -> list[Run]:
        """Everything in flight, neighbours under equal grants together."""
        found: list[Run] = []
        for offset, grant in sorted(self.in_flight.items()):
            last = found[-1] if found else None
            if last is not None and last.end == offset and last.grant == grant:
                found[-1] = Run(last.first, offset + 1, grant)
            else:
                found.append(Run(offset, offset + 1, grant))
        return found

    def fill(self, floor: int, next_offset: int, runs: Iterable[Run], done: deque[Done]) -> None:
        """What a snapshot says beside the start; `withdrawn` is the owner's to fill in."""
        self.floor, self.next, self.done = floor, next_offset, done
        for first, end, grant in runs:
            self.in_flight.update(zip(range(first, end), repeat(grant)))
            self._due.append((grant.until_unix_ms, first, end, grant.position))
            self._until_max = max(self._until_max, grant.until_unix_ms)
        heapify(self._due)
