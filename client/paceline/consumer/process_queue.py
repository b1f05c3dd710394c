"""Pure: the messages of one queue between fetch and commit.

Messages are taken in order, may end in any order, and the commit offset is the lowest offset that
is not done: what lies below it was processed without a gap (RocketMQ's ProcessQueue).
"""

from collections import deque
from collections.abc import Sequence

from sortedcontainers import SortedDict

from paceline.message import ReceivedMessage
from paceline.routing import QueueKey


class ProcessQueue:
    """Owned by one `PushConsumer`. Offsets are queue offsets; ranges half-open."""

    def __init__(self, key: QueueKey, start: int, *, generation: int) -> None:
        """`start`: the committed offset to go on from; `generation`: its reset generation (R33)."""
        self.key = key
        self.generation = generation
        self.is_dropped = False
        """Given up: nothing more is taken, what was not taken is left to the next owner."""
        self.committed = start
        """What the brokers know."""
        self.bytes_held = 0
        self.in_process_count = 0
        """Messages that were taken and neither finished nor failed."""
        self._end = start
        self._waiting: deque[ReceivedMessage] = deque()
        self._open: SortedDict[int, ReceivedMessage] = SortedDict()  # fetched and not done

    def __len__(self) -> int:
        """Messages that are not done."""
        return len(self._open)

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def span(self) -> int:
        """Distance from the commit offset to the end of what was fetched."""
        return self._end - self.commit_offset

    @property
    def commit_offset(self) -> int:
        """The lowest offset that is not done; never falls."""
        return self._open.peekitem(0)[0] if self._open else self._end

    def put(self, messages: Sequence[ReceivedMessage], end: int) -> None:
        """Add fetched messages, in order; `end` is the offset after all that was looked at."""
        for message in messages:
            assert message.queue_offset >= self._end, (message.queue_offset, self._end)
            self._open[message.queue_offset] = message
            self.bytes_held += len(message.body)
        self._waiting.extend(messages)
        self._end = end

    def take(self) -> ReceivedMessage:
        """The next message to process; it ends with `finish` or `fail`."""
        message = self._waiting.popleft()
        self.in_process_count += 1
        return message

    def fail(self, message: ReceivedMessage) -> None:
        """A message could not be processed; `put_back` lets it be taken again."""
        assert message.queue_offset in self._open, message.queue_offset
        self.in_process_count -= 1

    def put_back(self, message: ReceivedMessage) -> None:
        """A message that failed is to be taken again, before the others."""
        assert message.queue_offset in self._open, message.queue_offset
        self._waiting.appendleft(message)

    def finish(self, message: ReceivedMessage) -> None:
        """A message is done."""
        before = self.commit_offset
        self.in_process_count -= 1
        del self._open[message.queue_offset]
        self.bytes_held -= len(message.body)
        assert self.commit_offset >= before, (self.commit_offset, before)

    def drop(self) -> None:
        """Give the queue up: forget what was not taken yet; it stays not done."""
        self.is_dropped = True
        self._waiting.clear()
