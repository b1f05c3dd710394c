"""Listener calls that take too long (RocketMQ's consumeTimeout).

A call that never ends would hold back its queue's offset for ever. Its messages are sent back after
`consume_timeout_ms`: the group gets them again later, and the queue goes on without them. The call
itself goes on; what it says in the end counts only for messages that could not be sent back.
"""

import asyncio
from collections.abc import Callable, Sequence

from paceline.consumer.process.assignment import HeldQueue
from paceline.message import ReceivedMessage

TIMEOUT_LEVEL = 3
"""RocketMQ's: 10 s later."""
_CHECK_S_MAX = 60.0


class Worker:
    """One listener and the call that it is in."""

    __slots__ = ("began", "call", "held", "is_timed_out", "messages", "passed_over")

    def __init__(self) -> None:
        self.call = 0
        """Counts calls, so that late answers are not taken for another one's."""
        self.began = 0.0
        """When it was first seen to be in this call; 0.0 until then."""
        self.held: HeldQueue | None = None
        self.messages: Sequence[ReceivedMessage] = ()
        self.is_timed_out = False
        self.passed_over: set[int] = set()
        """Offsets of messages that were sent back while the call goes on."""

    def begin(self, held: HeldQueue, messages: Sequence[ReceivedMessage]) -> None:
        self.call += 1
        self.began = 0.0
        self.held, self.messages = held, messages
        self.is_timed_out = False
        if self.passed_over:
            self.passed_over = set()

    def end(self) -> bool:
        """The call has ended; whether something of it was sent back meanwhile."""
        self.held, self.messages = None, ()
        self.call += 1
        return bool(self.passed_over)

    def is_in(self, call: int) -> bool:
        """Whether it still is in that call."""
        return self.call == call and self.held is not None

    def try_again(self, call: int) -> None:
        """Sending back failed: the next look takes what is left."""
        if self.is_in(call):
            self.is_timed_out = False


class ConsumeTimeouts:
    """Looks at the workers now and then: it costs a call nothing while calls are short."""

    def __init__(
        self,
        workers: Sequence[Worker],
        timeout_s: Callable[[], float],
        on_timeout: Callable[[Worker, int, ReceivedMessage], None],
    ) -> None:
        """`timeout_s()`: how long a call may take, as of now. `on_timeout(worker, call, message)`,
        for each message of a call that takes longer."""
        self._workers = workers
        self._timeout_s = timeout_s
        self._on_timeout = on_timeout
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        check_s = min(_CHECK_S_MAX, self._timeout_s() / 4)
        self._timer = asyncio.get_running_loop().call_later(check_s, self._look)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self.start()
        now = asyncio.get_running_loop().time()
        timeout_s = self._timeout_s()
        for worker in self._workers:
            if worker.held is None or worker.is_timed_out:
                continue
            if not worker.began:
                worker.began = now  # the clock is not read for each call
            elif now - worker.began >= timeout_s:
                worker.is_timed_out = True
                for message in worker.messages:
                    if message.queue_offset not in worker.passed_over:
                        self._on_timeout(worker, worker.call, message)
