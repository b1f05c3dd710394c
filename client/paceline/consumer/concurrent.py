"""Concurrent processing: listeners run side by side, over all queues of a member.

A failed message is tried again with back-off and, after the last attempt, reported and counted as
done. A call that takes longer than the consume timeout is reported as well.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from paceline.consumer.push_settings import OnGivenUp, PushSettings
from paceline.consumer.queue_owner import HeldQueue
from paceline.message import ReceivedMessage
from paceline.runtime import cancel_and_wait, spawn

log = logging.getLogger("paceline.client")

Run: TypeAlias = Callable[[Sequence[ReceivedMessage]], Awaitable[int | None]]
"""Calls the application's listener: how many of the messages, from the first on, are done; None =
all. An exception: none."""


class ConcurrentProcessing:
    """The `Processing` of an unordered push consumer."""

    def __init__(
        self, run: Run, settings: PushSettings, on_given_up: OnGivenUp | None, *, batch_max: int
    ) -> None:
        self._run = run
        self._settings = settings
        self._on_given_up = on_given_up
        self._batch_max = batch_max
        self.settled: Callable[[HeldQueue], None] = lambda held: None
        """Set by the consumer: to be told of each queue whose listener call has ended."""
        self._ready: deque[HeldQueue] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start the listeners' tasks."""
        self._tasks = [
            spawn(self._work(), name=f"listener-{number}")
            for number in range(self._settings.concurrency)
        ]

    async def close(self) -> None:
        """Stop; listeners that still run are cancelled."""
        await cancel_and_wait(*self._tasks)

    # -- Processing -------------------------------------------------------------------------------

    def arrived(self, held: HeldQueue) -> None:
        """Let idle workers have what waits in a queue."""
        if not held.queue.has_waiting or held.is_paused:
            return
        if not held.is_ready:
            held.is_ready = True
            self._ready.append(held)
        for _ in range(min(len(self._idle), -(-held.queue.waiting_count // self._batch_max))):
            waiter = self._idle.popleft()
            if not waiter.done():
                waiter.set_result(None)

    def dropped(self, held: HeldQueue) -> None:
        """Nothing to do: nothing waits in it any more, and running listeners end unseen."""

    # -- inside -----------------------------------------------------------------------------------

    async def _work(self) -> None:
        """One listener: takes messages of the queues in turn."""
        ready, batch_max = self._ready, self._batch_max
        while True:
            while not ready:
                waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._idle.append(waiter)
                await waiter
            held = ready.popleft()
            queue = held.queue
            if not queue.has_waiting or held.is_paused:
                held.is_ready = False
                continue
            messages = queue.take_many(batch_max)
            if queue.has_waiting:
                ready.append(held)
            else:
                held.is_ready = False
            await self._process(held, messages)

    async def _process(self, held: HeldQueue, messages: Sequence[ReceivedMessage]) -> None:
        queue = held.queue
        failure: Exception | None = None
        try:
            answer = await self._run(messages)
            done_count = len(messages) if answer is None else max(0, min(answer, len(messages)))
        except Exception as error:  # the application's code: what it raises is its answer
            done_count, failure = 0, error
        if done_count < len(messages):
            for message in messages[done_count:]:
                self._failed(held, message, failure or NotProcessedError(message.queue_offset))
            messages = messages[:done_count]
        attempts = held.attempts
        for message in messages:
            if attempts:
                attempts.pop(message.queue_offset, None)
            queue.finish(message)
        self.settled(held)

    def _failed(self, held: HeldQueue, message: ReceivedMessage, error: Exception) -> None:
        """Note a failed call: the message is tried again, left to the next owner, or given up."""
        attempts = held.attempts[message.queue_offset] = (
            held.attempts.get(message.queue_offset, 0) + 1
        )
        fields = {
            "queue": str(held.queue.key),
            "offset": message.queue_offset,
            "attempts": attempts,
            "error": repr(error),
        }
        if held.queue.is_dropped:
            held.queue.fail(message)
        elif attempts < self._settings.attempts_max:
            log.info("message_failed", extra=fields)
            held.queue.fail(message)
            wait_ms = min(
                self._settings.retry_max_ms, self._settings.retry_first_ms * 2 ** (attempts - 1)
            )
            asyncio.get_running_loop().call_later(wait_ms / 1000, self._try_again, held, message)
        else:
            log.error("message_given_up", extra=fields)
            if self._on_given_up is not None:
                self._on_given_up(message, error)
            held.attempts.pop(message.queue_offset)
            held.queue.finish(message)

    def _try_again(self, held: HeldQueue, message: ReceivedMessage) -> None:
        if not held.queue.is_dropped:
            held.queue.put_back(message)
            self.arrived(held)


class NotProcessedError(Exception):
    """A batch listener has said that it did not get so far."""
