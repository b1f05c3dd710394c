"""Ordered processing: the messages of a queue one after another, only under its lock (R33).

A failed message, or batch of messages, stays in place: its queue is suspended for a moment and
tried again. The lease is checked by our own clock before each listener call and after it: what
ended past the lease is not done, and is told; its queue goes on, here or elsewhere, from there.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from paceline.consumer.hooks import Run
from paceline.consumer.locks.queue_locks import QueueLocks
from paceline.consumer.process.assignment import HeldQueue
from paceline.consumer.process.failure import (
    DEAD_AT_ONCE,
    NotProcessedError,
    SendBacker,
    SentBack,
    log_failed,
    tell_given_up,
)
from paceline.consumer.settings.ordered import OnLate, OrderedSettings, SuspendQueueError
from paceline.consumer.settings.push import ConsumeLater, OnGivenUp
from paceline.errors import PacelineError
from paceline.message import ReceivedMessage
from paceline.platform.ports import Clock
from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline.queues import QueueKey
from paceline.wire import properties as names

log = logging.getLogger("paceline.client")

_YIELD_MS = 20
"""A listener that never waits lets the others, renewals first of all, have the loop so often."""

Messages: TypeAlias = Sequence[ReceivedMessage]


class OrderedProcessing:
    """The `Processing` of an ordered consumer."""

    def __init__(
        self,
        run: Run,
        settings: OrderedSettings,
        locks: QueueLocks,
        clock: Clock,
        *,
        batch_max: int,
        send_backer: SendBacker,
        on_late: OnLate | None,
        on_given_up: OnGivenUp | None,
        settled: Callable[[HeldQueue], None],
    ) -> None:
        """`settled` is told of each listener call that ended."""
        self._settled = settled
        self._run = run
        self._settings = settings
        self._batch_max = batch_max
        self._locks = locks
        self._clock = clock
        self._send_backer = send_backer
        self._on_late = on_late
        self._on_given_up = on_given_up
        self.late_count = 0
        """Messages whose listener call ended after the lease."""
        self._line: deque[HeldQueue] = deque()
        """Queues that wait for their turn; each once."""
        self._in_line: set[HeldQueue] = set()
        self._busy: set[QueueKey] = set()
        """Queues that somebody works on. By name: what was ours before may still run (R33)."""
        self._after: dict[QueueKey, HeldQueue] = {}
        """Goes into the line when the present turn of that queue ends."""
        self._suspended: dict[HeldQueue, asyncio.TimerHandle] = {}
        self._unlocked: dict[QueueKey, HeldQueue] = {}
        """Wait until their lease is renewed, or the lock lost."""
        self._idle: deque[asyncio.Future[None]] = deque()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start the tasks that call the listener."""
        self._tasks = [
            spawn(self._work(), name=f"listener-{number}")
            for number in range(self._settings.concurrency)
        ]

    async def close(self) -> None:
        """Stop; listeners that still run are cancelled."""
        for timer in self._suspended.values():
            timer.cancel()
        self._suspended.clear()
        await cancel_and_wait(*self._tasks)
        await self._send_backer.close()

    def regained(self, keys: Iterable[QueueKey]) -> None:
        """Leases that had run out go on: nobody else had those locks."""
        for key in keys:
            held = self._unlocked.pop(key, None)
            if held is not None:
                self.arrived(held)

    # -- Processing -------------------------------------------------------------------------------

    def arrived(self, held: HeldQueue) -> None:
        """Messages wait in the queue: give it a turn."""
        key = held.queue.key
        if not held.queue.has_waiting or held.is_paused or self._unlocked.get(key) is held:
            return
        if key in self._busy:
            self._after[key] = held
        elif held not in self._in_line and held not in self._suspended:
            self._in_line.add(held)
            self._line.append(held)
            self._wake_one()

    def dropped(self, held: HeldQueue) -> None:
        """Nothing waits in it any more; a call that runs ends by itself."""
        timer = self._suspended.pop(held, None)
        if timer is not None:
            timer.cancel()
        if self._unlocked.get(held.queue.key) is held:
            del self._unlocked[held.queue.key]

    # -- inside -----------------------------------------------------------------------------------

    def _wake_one(self) -> None:
        while self._idle:
            waiter = self._idle.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    async def _work(self) -> None:
        """Takes queues in turn, one at a time."""
        while True:
            while not self._line:
                waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._idle.append(waiter)
                await waiter
            held = self._line.popleft()
            self._in_line.discard(held)
            key = held.queue.key
            if key in self._busy:  # it was taken anew while a call of before still runs
                self._after[key] = held
                continue
            self._busy.add(key)
            try:
                await self._turn(held)
            finally:
                self._busy.discard(key)
            self.arrived(self._after.pop(key, held))

    async def _turn(self, held: HeldQueue) -> None:
        """Process what waits, until there is no more, it must wait, or it had its share."""
        queue, key, token = held.queue, held.queue.key, held.queue.lock_token
        now_ms = yielded_ms = self._clock.monotonic_ms()
        end_ms = now_ms + self._settings.max_time_consume_continuously_ms
        while queue.has_waiting and not held.is_paused and now_ms < end_ms:
            if not self._locks.is_valid(key, token, now_ms=now_ms):
                self._unlocked[key] = held
                return
            messages: Messages = queue.take_many(self._batch_max)
            if held.attempts:
                messages = [_counted(message, held) for message in messages]
            done_count, failure = await self._call(messages)
            now_ms = self._clock.monotonic_ms()
            if not self._locks.is_valid(key, token, now_ms=now_ms):
                self._late(held, messages)
                return
            for message in messages[:done_count]:
                queue.finish(message)
            if held.attempts:
                self._forget_attempts(held, messages[:done_count])
            if done_count < len(messages):
                await self._failed(held, messages[done_count:], failure)
                return
            self._settled(held)
            if now_ms - yielded_ms >= _YIELD_MS:
                await pause(0)
                now_ms = yielded_ms = self._clock.monotonic_ms()

    async def _call(self, messages: Messages) -> tuple[int, Exception]:
        """The listener's answer: how many are done, and what is wrong with the next one."""
        try:
            done_count = await self._run(messages)
        except Exception as error:  # the application's code: what it raises is its answer
            return 0, error
        if done_count is None:
            done_count = len(messages)
        done_count = max(0, min(done_count, len(messages)))
        return done_count, NotProcessedError(messages[0].queue_offset + done_count)

    def _late(self, held: HeldQueue, messages: Messages) -> None:
        """The lock may be another's since: whatever the listener did counts for nothing here."""
        self.late_count += len(messages)
        log.warning(
            "listener_late",
            extra={
                "queue": str(held.queue.key),
                "offset": messages[0].queue_offset,
                "count": len(messages),
            },
        )
        self._put_back(held, messages)
        if held.queue.is_dropped:
            self._settled(held)
        else:
            self._unlocked[held.queue.key] = held
        if self._on_late is not None:
            for message in messages:
                self._on_late(message)

    async def _failed(self, held: HeldQueue, messages: Messages, error: Exception) -> None:
        """The first that is not done is tried again in place, or becomes a dead letter."""
        queue, first = held.queue, messages[0]
        failures = held.attempts[first.queue_offset] = held.attempts.get(first.queue_offset, 0) + 1
        fields = {"queue": str(queue.key), "offset": first.queue_offset, "failures": failures}
        wait_ms = self._settings.suspend_current_queue_time_ms
        if isinstance(error, SuspendQueueError):  # asked for: no news to anybody
            wait_ms = error.suspend_ms
            log.info("queue_suspended", extra={**fields, "suspend_ms": wait_ms})
        else:
            log_failed(first, error, failures)
        if self._is_dead(error, failures) and await self._bury(held, first, error):
            messages, wait_ms = messages[1:], 0
        self._put_back(held, messages)
        self._settled(held)
        if wait_ms and not queue.is_dropped:
            loop = asyncio.get_running_loop()
            self._suspended[held] = loop.call_later(wait_ms / 1000, self._resume, held)

    def _is_dead(self, error: Exception, failures: int) -> bool:
        if isinstance(error, ConsumeLater) and error.delay_level < 0:
            return True  # the listener says that there is no use
        return 0 <= self._settings.max_reconsume_times < failures

    async def _bury(self, held: HeldQueue, message: ReceivedMessage, error: Exception) -> bool:
        """Have the broker make it a dead letter, under our token (R33); False if it could not."""
        queue = held.queue
        answered: asyncio.Future[SentBack | PacelineError]
        answered = asyncio.get_running_loop().create_future()

        def tell(answer: SentBack | PacelineError) -> None:
            if not answered.done():
                answered.set_result(answer)

        self._send_backer.send_back(
            queue.key, message, tell, delay_level=DEAD_AT_ONCE, token=queue.lock_token
        )
        answer = await answered
        fields = {"queue": str(queue.key), "offset": message.queue_offset}
        if isinstance(answer, PacelineError):
            log.warning("dead_letter_failed", extra={**fields, "error": answer.message})
            return False
        log.error("message_dead", extra=fields)
        held.attempts.pop(message.queue_offset)
        queue.finish(message)
        tell_given_up(self._on_given_up, message, error)
        return True

    def _put_back(self, held: HeldQueue, messages: Messages) -> None:
        for message in reversed(messages):
            held.queue.fail(message)
            if not held.queue.is_dropped:
                held.queue.put_back(message)

    def _resume(self, held: HeldQueue) -> None:
        self._suspended.pop(held, None)
        self.arrived(held)

    def _forget_attempts(self, held: HeldQueue, messages: Messages) -> None:
        for message in messages:
            held.attempts.pop(message.queue_offset, None)


def _counted(message: ReceivedMessage, held: HeldQueue) -> ReceivedMessage:
    """The message as its listener is to see it: with the failed calls that it has behind it."""
    failures = held.attempts.get(message.queue_offset)
    if failures is None:
        return message
    return message._replace(properties={**message.properties, names.RECONSUME_TIMES: str(failures)})
