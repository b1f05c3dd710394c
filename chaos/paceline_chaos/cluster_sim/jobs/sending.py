"""The sender: keyed and keyless messages, alone and many at a time, through idempotent producers.

Each worker has a key of its own and waits for an outcome before it sends the next message of it, so
that order per key is a promise (S8); bursts are sent in one loop turn and ride in one batch. From
time to time the producer is closed and another one takes over: a new session. A hasty sender gives
up before a failover is over: much of what it sends fails for certain, and must never show (S4).
"""

import asyncio
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any

from paceline.errors import PacelineError
from paceline.message import Message
from paceline.platform.runtime import cancel_and_wait, spawn
from paceline.producer.producer import Producer
from paceline.producer.results import Sending, SendResult
from paceline.producer.settings import ProducerSettings
from paceline.queues import QueueName
from paceline_chaos.cluster_sim.bodies import crc_of, make_body
from paceline_chaos.cluster_sim.jobs.around import Around
from paceline_chaos.history.model import Queue, Send
from paceline_chaos.history.recorder import Asking

_WORKERS = 3
_BURST_MAX = 8
SETTINGS = ProducerSettings(delivery_timeout_ms=12_000, request_timeout_ms=3_500)
"""Covers a failover; short enough that a run ends with outcomes, not with waiting."""
_HASTY = ProducerSettings(delivery_timeout_ms=500, request_timeout_ms=300)
OUTCOME_MS_MAX = SETTINGS.delivery_timeout_ms + SETTINGS.request_timeout_ms
"""No sender waits longer: the last attempt may begin as the delivery timeout ends."""
_SESSION_MESSAGES = 400


class Sender:
    """One client that sends."""

    def __init__(
        self,
        around: Around,
        *,
        settings: ProducerSettings = SETTINGS,
        workers: int = _WORKERS,
        label: str = "",
    ) -> None:
        """`label`: tells its messages from those of another sender of the same client."""
        self._around = around
        self._settings = settings
        self._workers = workers
        self._label = label
        self._numbers = 0
        self._sessions = 0

    async def run(self) -> None:
        """Send until it is over; returns when every message has its outcome."""
        while not self._around.is_over():
            await self._session()

    async def _session(self) -> None:
        around = self._around
        self._sessions += 1
        name = f"{around.alias}/{self._label}{self._sessions}"
        cluster = around.cluster()
        producer = Producer(cluster, settings=self._settings)
        workers: list[asyncio.Task[None]] = []
        async with around.session(
            lambda: cancel_and_wait(*workers), partial(producer.close, timeout_ms=0), cluster.close
        ):
            await producer.start()
            end = self._numbers + _SESSION_MESSAGES
            workers += [
                spawn(self._work(producer, name, number, end), name=f"sender-{number}")
                for number in range(self._workers)
            ]
            await asyncio.wait(workers)

    async def _work(self, producer: Producer, session: str, number: int, end: int) -> None:
        around = self._around
        key = f"{around.client}-{self._label}{number}"
        while not around.is_over() and self._numbers < end:
            if around.happens(0.7):
                await self._send(producer, session, [key])
            elif around.happens(0.5):
                await self._send(producer, session, [None] * around.whole(1, _BURST_MAX))
            else:
                await self._send(producer, session, [key] * around.whole(2, _BURST_MAX))
            await around.think()

    async def _send(self, producer: Producer, session: str, keys: Sequence[str | None]) -> None:
        """Send one message for each key in one turn; wait for all outcomes."""
        asked = [self._begin(producer, session, key) for key in keys]
        for asking, sending in asked:
            if isinstance(sending, PacelineError):
                asking.raised(sending)
            else:
                await enter_outcome(asking, sending)

    def _begin(
        self, producer: Producer, session: str, key: str | None
    ) -> "tuple[Asking[Send], Sending | PacelineError]":
        around = self._around
        self._numbers += 1
        value = f"{around.alias}-{self._label}{self._numbers}"
        body = make_body(value, around.whole(8, around.body_bytes_max))
        asking = asking_to_send(around, value, body, session, key=key)
        try:
            return asking, producer.send(Message(around.topic, body, key=key))
        except PacelineError as error:
            return asking, error


def hasty_sender(around: Around) -> Sender:
    """A sender that gives up early."""
    return Sender(around, settings=_HASTY, workers=1, label="hasty-")


def asking_to_send(
    around: Around,
    value: str,
    body: bytes,
    session: str,
    *,
    key: str | None = None,
    **more: Any,
) -> Asking[Send]:
    """The entry of a message that is about to be sent; `more` members of it."""
    return around.recorder.asking(
        Send,
        client=around.client,
        topic=around.topic,
        key=key,
        value=value,
        crc=crc_of(body),
        session=session,
        **more,
    )


async def enter_outcome(asking: Asking[Send], sending: Awaitable[SendResult]) -> None:
    """What becomes of a message that is on its way."""
    try:
        enter_sent(asking, await sending)
    except PacelineError as error:
        asking.raised(error)


def enter_sent(
    asking: Asking[Send], result: SendResult, *, wanted: QueueName | None = None
) -> None:
    """The acknowledgement of a message, with all that it says; `wanted`: the queue it was for."""
    asking.ok(
        wanted=None if wanted is None else Queue(*wanted),
        queue=Queue(str(result.topic), str(result.group), int(result.queue_id)),
        offset=int(result.queue_offset),
        epoch=int(result.epoch),
        is_duplicate=result.is_duplicate,
        is_confirmed=result.is_confirmed,
    )
