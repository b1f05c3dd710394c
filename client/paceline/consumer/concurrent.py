"""Concurrent processing: listeners run side by side, over all queues of a member.

A failed message is tried again with back-off and, after the last attempt, reported and counted as
done.
"""

import asyncio
import logging
from collections import deque
from typing import Protocol

from paceline.consumer.push_settings import Listener, OnGivenUp, PushSettings
from paceline.consumer.queue_owner import HeldQueue
from paceline.message import ReceivedMessage
from paceline.runtime import cancel_and_wait, spawn

log = logging.getLogger("paceline.client")


class Settled(Protocol):
    """`QueueOwner.settled`."""

    def __call__(self, held: HeldQueue) -> None: ...


class ConcurrentProcessing:
    """The `Processing` of an unordered push consumer."""

    def __init__(
        self, listener: Listener, settings: PushSettings, on_given_up: OnGivenUp | None
    ) -> None:
        self._listener = listener
        self._settings = settings
        self._on_given_up = on_given_up
        self.settled: Settled = lambda held: None
        """Set by the consumer: to be told of each listener call that ended."""
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
        if held.queue.has_waiting and held not in self._ready:
            self._ready.append(held)
        for _ in range(min(len(self._idle), max(1, len(held.queue)))):
            if not self._idle:
                break
            waiter = self._idle.popleft()
            if not waiter.done():
                waiter.set_result(None)

    def dropped(self, held: HeldQueue) -> None:
        """Nothing to do: nothing waits in it any more, and running listeners end unseen."""

    # -- inside -----------------------------------------------------------------------------------

    async def _work(self) -> None:
        """One listener: takes messages of the queues in turn."""
        while True:
            while not self._ready:
                waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._idle.append(waiter)
                await waiter
            held = self._ready.popleft()
            if not held.queue.has_waiting:
                continue
            message = held.queue.take()
            if held.queue.has_waiting:
                self._ready.append(held)
            await self._process(held, message)

    async def _process(self, held: HeldQueue, message: ReceivedMessage) -> None:
        try:
            await self._listener(message)
        except Exception as error:  # the application's code: what it raises is its answer
            if not self._is_given_up(held, message, error):
                return
        held.attempts.pop(message.queue_offset, None)
        held.queue.finish(message)
        self.settled(held)

    def _is_given_up(self, held: HeldQueue, message: ReceivedMessage, error: Exception) -> bool:
        """Note a failed call; False if the message is tried again, here or by the next owner."""
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
            self.settled(held)
            return False
        if attempts < self._settings.attempts_max:
            log.info("message_failed", extra=fields)
            held.queue.fail(message)
            wait_ms = min(
                self._settings.retry_max_ms, self._settings.retry_first_ms * 2 ** (attempts - 1)
            )
            asyncio.get_running_loop().call_later(wait_ms / 1000, self._try_again, held, message)
            return False
        log.error("message_given_up", extra=fields)
        if self._on_given_up is not None:
            self._on_given_up(message, error)
        return True

    def _try_again(self, held: HeldQueue, message: ReceivedMessage) -> None:
        if not held.queue.is_dropped:
            held.queue.put_back(message)
            self.arrived(held)
