"""Concurrent processing: listeners run side by side, over all queues of a member.

What becomes of a message whose call failed, a policy decides (`failure.py`). A call that takes
longer than the consume timeout has its messages sent back as well (`consume_timeouts.py`).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from paceline.consumer.hooks import Run
from paceline.consumer.process.assignment import HeldQueue
from paceline.consumer.process.consume_timeouts import TIMEOUT_LEVEL, ConsumeTimeouts, Worker
from paceline.consumer.process.failure import (
    SEND_BACK_AGAIN_MS,
    Action,
    FailurePolicy,
    NotProcessedError,
    SendBacker,
    SentBack,
    as_first_sent,
    log_failed,
    tell_given_up,
)
from paceline.consumer.settings.push import OnGivenUp, PushSettings
from paceline.errors import OffsetOutOfRangeError, PacelineError
from paceline.message import ReceivedMessage
from paceline.net.cluster import Cluster
from paceline.platform.runtime import cancel_and_wait, spawn
from paceline.wire.names import RETRY_PREFIX

log = logging.getLogger("paceline.client")


class ConcurrentProcessing:
    """The `Processing` of an unordered push consumer."""

    def __init__(
        self,
        run: Run,
        settings: PushSettings,
        on_given_up: OnGivenUp | None,
        *,
        batch_max: int,
        cluster: Cluster,
        consume_timeout_s: Callable[[], float],
        policy: FailurePolicy,
        send_backer: SendBacker,
        settled: Callable[[HeldQueue], None],
    ) -> None:
        """`settled` is told of each queue whose listener call has ended."""
        self._settled = settled
        self._cluster = cluster
        self._policy = policy
        self._send_backer = send_backer
        self._run = run
        self._settings = settings
        self._on_given_up = on_given_up
        self._batch_max = batch_max
        self._ready: deque[HeldQueue] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._tasks: list[asyncio.Task[None]] = []
        self._workers = [Worker() for _ in range(settings.concurrency)]
        self._timeouts = ConsumeTimeouts(self._workers, consume_timeout_s, self._timed_out)

    def start(self) -> None:
        """Start the listeners' tasks."""
        self._tasks = [
            spawn(self._work(worker), name=f"listener-{number}")
            for number, worker in enumerate(self._workers)
        ]
        self._timeouts.start()

    async def close(self) -> None:
        """Stop; listeners that still run are cancelled."""
        self._timeouts.close()
        await cancel_and_wait(*self._tasks)
        await self._send_backer.close()

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

    async def _work(self, worker: Worker) -> None:
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
            worker.begin(held, messages)
            await self._process(held, messages, worker)

    async def _process(
        self, held: HeldQueue, messages: Sequence[ReceivedMessage], worker: Worker
    ) -> None:
        queue = held.queue
        failure: Exception | None = None
        try:
            shown = messages
            if held.topic.startswith(RETRY_PREFIX):
                shown = [as_first_sent(message, self._cluster.namespace) for message in messages]
            answer = await self._run(shown)
            done_count = len(messages) if answer is None else max(0, min(answer, len(messages)))
        except Exception as error:  # the application's code: what it raises is its answer
            done_count, failure = 0, error
        if worker.end():
            passed_over = worker.passed_over
            for _ in passed_over:
                queue.ended()
            kept = [m.queue_offset not in passed_over for m in messages]
            done_count = sum(kept[:done_count])
            messages = [m for m, is_kept in zip(messages, kept, strict=True) if is_kept]
        if done_count < len(messages):
            for message in messages[done_count:]:
                self._failed(held, message, failure or NotProcessedError(message.queue_offset))
            messages = messages[:done_count]
        attempts = held.attempts
        for message in messages:
            if attempts:
                attempts.pop(message.queue_offset, None)
            queue.finish(message)
        self._settled(held)

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
            return
        decision = self._policy.decide(message, error, attempts)
        match decision.action:
            case Action.AGAIN:
                log_failed(message, error, attempts)
                self._again_in(decision.wait_ms, held, message)
            case Action.SEND_BACK:
                log_failed(message, error, attempts)
                self._send_backer.send_back(
                    held.queue.key,
                    message,
                    lambda answer: self._sent_back(held, message, error, answer),
                    delay_level=decision.delay_level,
                )
            case Action.GIVE_UP:
                log.error("message_given_up", extra=fields)
                self._give_up(held, message, error)

    def _timed_out(self, worker: Worker, call: int, message: ReceivedMessage) -> None:
        """A call takes too long: its message goes back, and the queue goes on without it."""
        held = worker.held
        assert held is not None
        at = {"queue": str(held.queue.key), "offset": message.queue_offset}
        log.warning("consume_timeout", extra=at)
        if not self._settings.sends_back:
            return

        def answered(answer: SentBack | PacelineError) -> None:
            if not isinstance(answer, SentBack):
                log.warning("send_back_failed", extra={**at, "error": answer.message})
                worker.try_again(call)
            elif worker.is_in(call):
                worker.passed_over.add(message.queue_offset)
                held.queue.pass_over(message)
                self._settled(held)

        self._send_backer.send_back(held.queue.key, message, answered, delay_level=TIMEOUT_LEVEL)

    def _sent_back(
        self,
        held: HeldQueue,
        message: ReceivedMessage,
        failure: Exception,
        answer: SentBack | PacelineError,
    ) -> None:
        """The broker has the message, or could not take it: then the listener has it again."""
        at = {"queue": str(held.queue.key), "offset": message.queue_offset}
        attempts = held.attempts.get(message.queue_offset, 1)
        if isinstance(answer, SentBack):
            if answer.outcome == "dead":
                log.error("message_dead", extra={**at, "error": repr(failure)})
                self._give_up(held, message, failure)
            else:
                held.attempts.pop(message.queue_offset, None)
                held.queue.finish(message)
        elif held.queue.is_dropped:
            held.queue.fail(message)
        elif isinstance(answer, OffsetOutOfRangeError) and attempts >= self._settings.attempts_max:
            # Deleted by retention meanwhile: no broker can take it back any more.
            log.error("message_given_up", extra={**at, "error": repr(failure)})
            self._give_up(held, message, failure)
        else:
            log.warning("send_back_failed", extra={**at, "error": answer.message})
            self._again_in(SEND_BACK_AGAIN_MS, held, message)
        self._settled(held)

    def _give_up(self, held: HeldQueue, message: ReceivedMessage, error: Exception) -> None:
        held.attempts.pop(message.queue_offset, None)
        held.queue.finish(message)
        tell_given_up(self._on_given_up, message, error)

    def _again_in(self, wait_ms: float, held: HeldQueue, message: ReceivedMessage) -> None:
        held.queue.fail(message)
        asyncio.get_running_loop().call_later(wait_ms / 1000, self._try_again, held, message)

    def _try_again(self, held: HeldQueue, message: ReceivedMessage) -> None:
        if not held.queue.is_dropped:
            held.queue.put_back(message)
            self.arrived(held)
