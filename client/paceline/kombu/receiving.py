"""Receivers: what keeps the consumers of one kombu channel supplied. All on the session's loop.

A channel may hold so many messages unacknowledged as its prefetch count says (`Room`). A receiver
asks the brokers for no more than there is room for; of what comes when another queue was quicker,
the rest is given back at once, at the cost of no attempt, so that another worker gets it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from kombu.utils import json

from paceline.consumer.pop.popped_message import PoppedMessage
from paceline.consumer.settings.simple import MESSAGES_MAX, WAIT_MS_MAX, SimpleSettings
from paceline.consumer.simple import SimpleConsumer
from paceline.errors import PacelineError, ReceiptExpiredError
from paceline.kombu.declaring import Declarations
from paceline.kombu.envelopes import due_of, sent_later
from paceline.kombu.inbox import UNDELIVERED_MAX, Delivery, Inbox
from paceline.kombu.names import topic_of_queue
from paceline.kombu.session import Clients, logged
from paceline.message import Message
from paceline.net.cluster import Wakeup
from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline.types import GroupName
from paceline.wire.calls.messages import SendBack, SendBackRow

log = logging.getLogger("paceline.client")

INVISIBLE_MS = 30_000
"""How long a message is a worker's without a word of it: so late others go on after a crash. It is
lengthened at half of the time for as long as the worker lives."""
RENEW_MS_MAX = 366 * 24 * 3600 * 1000
_PAUSE_MS = 1_000
_CALL_TIMEOUT_MS = 60_000
EARLY_MS = 1_000
"""A message that comes so much before its time waits once more in the broker."""


class Room:
    """How many more messages a channel may hold."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._held = 0
        self._limit = 0
        self._changed: set[Wakeup] = set()

    def free(self) -> int:
        """For one receive: up to what a broker gives."""
        if self._limit:
            return max(0, min(MESSAGES_MAX, self._limit - self._held))
        return MESSAGES_MAX if len(self._inbox) < UNDELIVERED_MAX else 0

    def limit(self, count: int) -> None:
        """The prefetch count; 0: none."""
        self._limit = count
        self.wake()

    def take(self, count: int) -> None:
        self._held += count

    def release(self, count: int = 1) -> None:
        self._held -= count
        self.wake()

    def wake(self) -> None:
        for wakeup in self._changed:
            wakeup.set()

    async def wait(self) -> int:
        """How much there is, as soon as there is some."""
        wakeup = Wakeup()
        self._changed.add(wakeup)
        try:
            while not (free := self.free()):
                await wakeup.wait()
            return free
        finally:
            self._changed.discard(wakeup)


class QueueReceiver:
    """Of a durable queue: its messages by receipts."""

    def __init__(
        self,
        clients: Clients,
        declarations: Declarations,
        queue: str,
        *,
        inbox: Inbox,
        room: Room,
        channel: Any,
        soon: Callable[[Callable[[], object]], None],
        invisible_ms: int,
    ) -> None:
        self._clients = clients
        self._declarations = declarations
        self._queue = queue
        self._inbox = inbox
        self._room = room
        self._channel = channel
        self._soon = soon
        self._settings = SimpleSettings(
            invisible_ms=invisible_ms,
            auto_renew=True,
            auto_renew_ms_max=RENEW_MS_MAX,
            call_timeout_ms=_CALL_TIMEOUT_MS,
        )
        self._consumers: dict[tuple[str, ...], SimpleConsumer] = {}
        """By the topics that they receive from."""
        self._arrived: deque[tuple[SimpleConsumer, PoppedMessage]] = deque()
        """Received, and not yet in the inbox."""
        self._task: asyncio.Task[None] | None = None
        self._work: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        if self._task is None:
            self._task = spawn(self._run(), name="kombu-receive")

    async def stop(self) -> None:
        await cancel_and_wait(self._task)
        self._task = None
        while self._arrived:
            await self._give_back_first()

    async def close(self) -> None:
        await self.stop()
        while self._work:
            await asyncio.wait(set(self._work))
        for consumer in self._consumers.values():
            await consumer.close()

    async def get(self) -> Delivery | None:
        """One message, if there is one now."""
        consumer = await self._present()
        for message in await consumer.receive(1, wait_ms=0):
            self._room.take(1)
            return await self._delivery(consumer, message)
        return None

    async def _run(self) -> None:
        changed = Wakeup()
        end = self._clients.cluster.watch.listen(lambda view: changed.set())
        try:
            while True:
                try:
                    await self._room.wait()
                    await self._receive(changed)
                    await self._deliver()
                except PacelineError as error:
                    about = {"queue": self._queue, "error": error.message}
                    log.warning("kombu_receive_failed: %s", error.message, extra=about)
                    await pause(_PAUSE_MS)
        finally:
            end()

    # -- receiving --------------------------------------------------------------------------------

    async def _present(self) -> SimpleConsumer:
        """The consumer of the topics there are: the queue may be bound to other fanout exchanges
        meanwhile. A former one stays for what it has received."""
        own = topic_of_queue(self._queue)
        topics = (own, *self._declarations.fanouts_of(self._queue))
        if topics not in self._consumers:
            consumer = SimpleConsumer(
                self._clients.cluster, group=own, topics=topics, settings=self._settings
            )
            await consumer.start()
            self._consumers[topics] = consumer
        return self._consumers[topics]

    async def _receive(self, changed: Wakeup) -> None:
        """Until something comes, or there are other topics."""
        consumer = await self._present()
        count = self._room.free() or 1
        errors: list[PacelineError] = []

        async def ask() -> None:
            try:
                messages = await consumer.receive(count, wait_ms=WAIT_MS_MAX)
                self._arrived.extend((consumer, message) for message in messages)
            except PacelineError as error:
                errors.append(error)

        async def see_other_topics() -> None:
            while await self._present() is consumer:
                await changed.wait()

        asked = [
            spawn(ask(), name="kombu-ask"),
            spawn(see_other_topics(), name="kombu-topics"),
        ]
        try:
            await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_and_wait(*asked)
        if errors:
            raise errors[0]

    # -- delivering -------------------------------------------------------------------------------

    async def _deliver(self) -> None:
        """What has arrived, as far as there is room. A message leaves `_arrived` last: a receiver
        that is stopped meanwhile gives it back."""
        while self._arrived:
            consumer, message = self._arrived[0]
            delivery = await self._delivery(consumer, message) if self._room.free() else None
            if delivery is None:
                await self._give_back_first()
                continue
            self._room.take(1)
            self._arrived.popleft()
            if not self._inbox.put(delivery):
                delivery.give_back()

    async def _give_back_first(self) -> None:
        consumer, message = self._arrived.popleft()
        await consumer.give_back([message])

    async def _delivery(self, consumer: SimpleConsumer, message: PoppedMessage) -> Delivery | None:
        """None: it is too early for it."""
        payload = json.loads(message.body)
        if await self._is_put_off(consumer, message, payload):
            return None

        def then(work: Callable[[], Any]) -> Callable[[], None]:
            return partial(self._soon, partial(self._settle, work))

        return Delivery(
            queue=self._queue,
            payload=payload,
            ack=then(partial(self._ack, consumer, message)),
            requeue=then(partial(consumer.change_invisible, message, 0)),
            reject=then(partial(self._bury, consumer, message)),
            give_back=then(partial(consumer.give_back, [message])),
            is_redelivered=message.attempt > 1,
            channel=self._channel,
        )

    async def _is_put_off(
        self, consumer: SimpleConsumer, message: PoppedMessage, payload: dict[str, Any]
    ) -> bool:
        """A time further away than brokers take is waited for in several steps."""
        due_unix_ms = due_of(payload)
        now = self._clients.cluster.clock.unix_ms()
        if due_unix_ms is None or due_unix_ms <= now + EARLY_MS:
            return False
        again = Message(
            message.topic,
            message.body,
            key=message.key,
            tag=message.tag,
            priority=message.priority,
        )
        await self._clients.producer.send(sent_later(again, due_unix_ms, now_unix_ms=now))
        await self._ack(consumer, message)
        return True

    def _settle(self, work: Callable[[], Any]) -> None:
        self._room.release()
        task = spawn(logged(work(), "settle"), name="kombu-settle")
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def _ack(self, consumer: SimpleConsumer, message: PoppedMessage) -> None:
        try:
            await consumer.ack(message)
        except ReceiptExpiredError as error:
            about = {"queue": self._queue, "attempt": message.attempt, "error": error.message}
            log.warning("kombu_ack_too_late", extra=about)

    async def _bury(self, consumer: SimpleConsumer, message: PoppedMessage) -> None:
        row = SendBackRow(
            topic=message.topic,
            queue=message.queue_id,
            offset=message.queue_offset,
            delay_level=-1,
        )
        await self._clients.links.call(
            GroupName(message.group),
            SendBack(group=consumer.group, messages=[row]),
            timeout_ms=_CALL_TIMEOUT_MS,
        )
        await self._ack(consumer, message)
