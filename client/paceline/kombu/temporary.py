"""Temporary queues, which end with their connection: replies, a worker's remote control, events.

Such a queue is nothing but a reader of the topics of the exchanges that it is bound to, from the
moment it was bound. No topic, group or binding is made for it that would have to be taken away, and
however many there are, a message is stored once: the broker fans it out. The queue's own name is a
tag of the topic of the exchange `declaring.TEMPORARY`, so it can be sent to directly as well.

What is read and not yet acknowledged is lost with the process, as the queue is.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from kombu.utils import json

from paceline.consumer.pull import PullConsumer
from paceline.errors import PacelineError
from paceline.filters import ALL, Filter, make_filter
from paceline.kombu.bindings import DIRECT, Binding
from paceline.kombu.declaring import TEMPORARY, Declarations
from paceline.kombu.envelopes import tag_of
from paceline.kombu.inbox import Delivery, Inbox
from paceline.kombu.receiving import Room
from paceline.kombu.session import Clients
from paceline.message import ReceivedMessage
from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline.queues import QueueName

log = logging.getLogger("paceline.client")

_POLL_MS = 20_000
_PAUSE_MS = 1_000
_TAGS_MAX = 32
KEPT_MAX = 10_000
"""Messages that wait for a consumer of this process; beyond it the oldest are dropped, and told."""


class TemporaryQueue:
    """One of a connection, on the session's loop."""

    def __init__(self, clients: Clients, declarations: Declarations, name: str) -> None:
        self._declarations = declarations
        self._name = name
        self._reader = PullConsumer(clients.cluster)
        self._bindings: dict[Binding, str] = {}
        """With the topic of its exchange."""
        self._filters: dict[str, Filter] = {}
        self._queues: dict[str, list[QueueName]] = {}
        """What is read, by topic."""
        self._kept: deque[dict[str, Any]] = deque()
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._delivering: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.bind(Binding(TEMPORARY, DIRECT, self._name))
        self._tasks.append(spawn(self._read(), name="kombu-temporary"))

    async def close(self) -> None:
        await cancel_and_wait(self._delivering, *self._tasks)
        await self._reader.close()

    async def bind(self, binding: Binding) -> None:
        """What comes from now on is for this queue too."""
        if binding in self._bindings:
            return
        topic = await self._declarations.declare_exchange(binding.exchange)
        self._bindings[binding] = topic
        await self._follow(topic)

    async def unbind(self, binding: Binding) -> None:
        topic = self._bindings.pop(binding, None)
        if topic is not None:
            await self._follow(topic)

    async def _follow(self, topic: str) -> None:
        """Read the topic as its bindings say; where it is read already, go on there."""
        wanted = _filter([one for one, of in self._bindings.items() if of == topic])
        if self._filters.get(topic) == wanted:
            return
        self._filters[topic] = wanted
        self._queues.setdefault(topic, [])
        others = {
            name: self._reader.position(name)
            for of, names in self._queues.items()
            if of != topic
            for name in names
        }
        known = {name: self._reader.position(name) for name in self._queues[topic]}
        self._queues[topic] = await self._reader.queues(topic)
        own = {name: known.get(name, "last") for name in self._queues[topic]}
        if known:
            await self._reader.assign(others)  # a queue that is assigned keeps its filter
        await self._reader.assign({**others, **own}, wanted=wanted)

    async def _read(self) -> None:
        while True:
            try:
                messages = await self._reader.poll(timeout_ms=_POLL_MS)
            except PacelineError as error:
                about = {"queue": self._name, "error": error.message}
                log.warning("kombu_read_failed", extra=about)
                await pause(_PAUSE_MS)
                continue
            self._kept.extend(
                payload for message in messages if (payload := self._wanted(message)) is not None
            )
            if len(self._kept) > KEPT_MAX:
                dropped = len(self._kept) - KEPT_MAX
                log.warning("kombu_dropped", extra={"queue": self._name, "messages": dropped})
                for _ in range(dropped):
                    self._kept.popleft()
            if self._kept:
                self._news.set()

    def _wanted(self, message: ReceivedMessage) -> dict[str, Any] | None:
        payload: dict[str, Any] = json.loads(message.body)
        routing_key = payload["properties"]["delivery_info"]["routing_key"]
        bound = [one for one, topic in self._bindings.items() if topic == message.topic]
        return payload if any(one.wants(routing_key) for one in bound) else None

    # -- consumers --------------------------------------------------------------------------------

    def get(self, soon: Callable[[Callable[[], object]], None], room: Room) -> Delivery | None:
        """The next message, if there is one."""
        if not self._kept:
            return None
        room.take(1)
        return self._delivery(self._kept.popleft(), room, soon, None)

    def deliver(
        self,
        inbox: Inbox,
        room: Room,
        channel: Any,
        soon: Callable[[Callable[[], object]], None],
    ) -> None:
        """Give what comes to a consumer."""

        async def run() -> None:
            while True:
                while not self._kept:
                    self._news.clear()
                    await self._news.wait()
                free = await room.wait()
                while self._kept and free:
                    free -= 1
                    room.take(1)
                    inbox.put(self._delivery(self._kept.popleft(), room, soon, channel))

        if self._delivering is None:
            self._delivering = spawn(run(), name="kombu-deliver")

    async def stop(self) -> None:
        """There is no consumer for now."""
        await cancel_and_wait(self._delivering)
        self._delivering = None

    def _delivery(
        self,
        payload: dict[str, Any],
        room: Room,
        soon: Callable[[Callable[[], object]], None],
        channel: Any,
    ) -> Delivery:
        def again() -> None:
            room.release()
            self._kept.appendleft(payload)
            self._news.set()

        done, back = partial(soon, room.release), partial(soon, again)
        return Delivery(
            queue=self._name,
            payload=payload,
            ack=done,
            requeue=back,
            reject=done,
            give_back=back,
            is_redelivered=False,
            channel=channel,
        )


def _filter(bindings: list[Binding]) -> Filter:
    """What brokers can leave out already."""
    tags = [tag_of(one.routing_key) if one.type == DIRECT else None for one in bindings]
    if None in tags or not 0 < len(tags) <= _TAGS_MAX:
        return ALL
    return make_filter("TAG", " || ".join(filter(None, tags)))
