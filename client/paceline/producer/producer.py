"""The producer: messages in, acknowledged messages out, once and in order.

`send` is a plain function that places the message and returns a light awaitable. What is sent in
one turn of the event loop leaves in one write, one batch per queue, at its end. Every producer is
idempotent (R31): a batch keeps its sequence through all retries, on any master, and is stored
once. After an error that is not `is_definite` only this producer's own retry was safe; sending the
message again may store it twice.

The way of a message: `send` -> route (topic -> queues) -> `QueueBuffer` of its queue ->
`BrokerSender` of its broker group -> connection. Messages without room or route are parked, in
order per topic.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from paceline.errors import (
    NotMasterError,
    PacelineError,
    PayloadLimitError,
    QueueNotFoundError,
    ShuttingDownError,
    TopicNotFoundError,
)
from paceline.message import Message, ReceivedMessage
from paceline.net.client_base import FORKED, Client
from paceline.net.cluster import Cluster
from paceline.net.connect import Bootstrap
from paceline.net.group_links import GroupLinks
from paceline.producer.batch import MESSAGE_OVERHEAD_BYTES, Batch, chunks_of
from paceline.producer.dispatcher import Dispatcher
from paceline.producer.hooks import check_allowed
from paceline.producer.oneway import Forgotten, OnewayCounts
from paceline.producer.pending import Parked, placeholder
from paceline.producer.request_reply import (
    REQUEST_TIMEOUT_DEFAULT_MS,
    Requester,
    RequesterCounts,
    reply_message,
)
from paceline.producer.results import OnSent, Run, Sending, SendingMany
from paceline.producer.route import Route
from paceline.producer.selectors import Selector, selected
from paceline.producer.settings import ProducerSettings
from paceline.producer.topic_creator import TopicMaker
from paceline.producer.validation import Limits, check_key, check_unit, cost_of, own_copy
from paceline.producer.write_permission import wiped
from paceline.queues import write_queues_of
from paceline.records.header import RECORDS_MAX, Kind
from paceline.types import GroupName, TopicName
from paceline.wire.calls.messages import Recall
from paceline.wire.message_ids import RECALL, parse_handle
from paceline.wire.names import check_topic_name


class Producer(Client):
    """Sends messages to topics of a cluster. Use on one event loop; `async with` or `close`."""

    _kind = Kind.NORMAL

    def __init__(
        self, bootstrap: Bootstrap | Cluster, *, settings: ProducerSettings | None = None
    ) -> None:
        """`bootstrap`: "host:port,..." of controllers or brokers, or a `Cluster` to share."""
        self._settings = settings or ProducerSettings()
        self._settings.validate()
        super().__init__(bootstrap)
        self._loop = asyncio.get_running_loop()
        self.client_id = (
            self._settings.client_id or f"producer-{self._cluster.random.token(8).hex()}"
        )
        self._buffer_bytes_max = self._settings.buffer_bytes_max
        self._limits = Limits(
            self._settings.max_message_size,
            self._settings.timer_max_delay_sec,
            self._cluster.clock.unix_ms,
        )
        self._forbidden_hooks = self._settings.forbidden_hooks
        self._dispatch = Dispatcher(
            self._cluster,
            self._settings,
            on_change=self._on_change,
            on_sweep=self._on_sweep,
            client_id=self.client_id,
            kind=self._kind,
        )
        self._maker = TopicMaker(
            self._cluster,
            is_wanted=lambda topic: topic in self._parked,
            on_refused=self._topic_refused,
        )
        self._routes = self._dispatch.routes
        self._parked: dict[str, deque[Parked]] = {}
        self._parked_bytes = 0
        self._idle_waiters: list[asyncio.Future[None]] = []
        self._calls: GroupLinks | None = None
        self._requester: Requester | None = None
        self._is_closed = False

    async def _give_up(self) -> None:
        await self.close(timeout_ms=0)

    async def flush(self) -> None:
        """Return when nothing is on its way any more: every message sent has its outcome."""
        while self._dispatch.buffered_bytes or self._parked:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._idle_waiters.append(waiter)
            await waiter

    async def close(self, *, timeout_ms: int | None = None) -> None:
        """Finish what is on its way (at most `timeout_ms`, default the delivery timeout), then end.

        What has no outcome then fails: with OutcomeUnknownError where it may be stored.
        """
        if self._is_closed:
            return
        self._is_closed = True
        limit_ms = self._settings.delivery_timeout_ms if timeout_ms is None else timeout_ms
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await self.flush()
        except TimeoutError:
            pass  # what is left fails below, each message with its own error
        finally:
            if self._requester is not None:
                await self._requester.close()
            error = ShuttingDownError("not stored: the producer was closed")
            self._fail_parked(error)
            await self._maker.close()
            await self._dispatch.close(error)
            if self._calls is not None:
                await self._calls.close()
            await self._leave_cluster()

    # -- sending ----------------------------------------------------------------------------------

    def send(
        self, message: Message, *, selector: Selector | None = None, arg: Any = None
    ) -> Sending:
        """Send one message; await the result for its `SendResult`.

        Returns at once. With a full buffer the message waits its turn; PayloadLimitError only when
        as much again is waiting. TooLargeError, BadRequestError: the message itself is wrong.
        `selector(queues, message, arg)` chooses the queue, as soon as the topic's are known.
        """
        cost = self._cost_of(message)
        if self._parked_bytes:
            self._check_waiting_room(cost, 2 * self._buffer_bytes_max)
        if selector is not None:
            return self._send_selected(message, cost, selector, arg)
        return self._send(message, cost)

    def send_nowait(self, message: Message, callback: OnSent | None = None) -> None:
        """Send one message; `callback(result, error)` is called with the outcome, if given.

        PayloadLimitError (BUFFER_FULL) at once when the buffer is full: nothing was taken.
        """
        cost = self._cost_of(message)
        self._check_waiting_room(cost, self._buffer_bytes_max)
        topic = message.topic
        route = self._routes.get(topic)
        if route is None or not self._has_room(topic, cost):
            sending = self._park_message(message, cost)
            if callback is not None:
                sending.on_sent(callback)
            return
        batch, index = self._dispatch.place(route, message, cost)
        if callback is not None:
            batch.waiters += (callback, index)

    def send_oneway(self, message: Message) -> None:
        """Put one message on the wire and forget it: no retry, no outcome; it may be lost.

        It waits for a connection to its master for `request_timeout_ms` at most. What is known of
        such messages is counted in `oneway`. PayloadLimitError (BUFFER_FULL) as for `send_nowait`.
        """
        cost = self._cost_of(message)
        self._check_waiting_room(cost, self._buffer_bytes_max)
        route = self._routes.get(message.topic)
        if route is not None and self._has_room(message.topic, cost):
            self._dispatch.place_oneway(route, message, cost)
            return
        kept = own_copy(message)
        sending = Forgotten(placeholder(), self._loop, self.oneway)

        def place(to: Route) -> tuple[Batch, int]:
            self._dispatch.place_oneway(to, kept, cost)
            return placeholder(), 0

        self._park(message.topic, cost, sending, place)

    @property
    def oneway(self) -> OnewayCounts:
        """What became of the messages of `send_oneway`."""
        return self._dispatch.oneway_counts

    @property
    def hook_errors(self) -> int:
        """How many calls of send hooks have raised."""
        return self._dispatch.hooks.errors

    def send_batch(
        self, messages: Iterable[Message], *, selector: Selector | None = None, arg: Any = None
    ) -> SendingMany:
        """Send messages of one topic as one unit into one queue: all are stored, or none is.

        4 MiB of bodies at most, no delay, no retry topic, and one key, sharding key or queue for
        all, unless `selector` chooses for the first and so for all. Errors as for `send`.
        """
        return self._send_unit(list(messages), selector, arg)

    def _send_unit(
        self,
        given: list[Message],
        selector: Selector | None,
        arg: Any = None,
        *,
        is_library: bool = False,
    ) -> SendingMany:
        check_unit(given, is_queue_chosen=selector is not None)
        cost = sum(self._cost_of(message, is_library=is_library) for message in given)
        kept = list(map(own_copy, given))
        self._check_waiting_room(cost, 2 * self._buffer_bytes_max)
        topic = kept[0].topic

        def place(to: Route) -> tuple[Batch, int]:
            if selector is None:
                return self._dispatch.place_unit(to, kept, cost)
            queue = selected(selector, to.names, kept[0], arg)
            kept[0].queue = queue
            return self._dispatch.place_unit(to, kept, cost)

        route = self._routes.get(topic)
        if route is not None and self._has_room(topic, cost):
            return SendingMany([Run(*place(route), self._loop, len(kept))])
        run = Run(placeholder(), 0, self._loop, len(kept))
        return SendingMany([self._park(topic, cost, run, place)])

    def send_many(self, messages: Iterable[Message]) -> SendingMany:
        """Send messages in order; await for all results.

        Errors as for `send`, before any is sent; PayloadLimitError also when the list alone is over
        twice the buffer.
        """
        given = list(messages)
        costs = list(map(self._cost_of, given))
        self._check_waiting_room(sum(costs), 2 * self._buffer_bytes_max)
        return SendingMany(list(map(self._send, given, costs)))

    def send_bodies(
        self, topic: str, bodies: Iterable[bytes], *, key: str | None = None
    ) -> SendingMany:
        """Send bodies that share topic and key (or have none), in order: the fastest way for bulk.

        They are split into batches of `batch_bytes_max`; without a key each batch may go to another
        queue. Waits and errors as for `send`.
        """
        if not topic:
            check_topic_name(topic)  # it says what a name is
        listed = list(bodies)
        overhead = MESSAGE_OVERHEAD_BYTES + (check_key(key) if key else 0)
        if (
            set(map(type, listed)) - {bytes}
            or max(map(len, listed), default=0) > self._limits.body_bytes_max
            or self._forbidden_hooks
        ):
            for body in listed:
                self._cost_of(Message(topic, body, key))
        if self._is_closed:
            raise self._closed()
        cost = sum(map(len, listed)) + overhead * len(listed)
        self._check_waiting_room(cost, 2 * self._buffer_bytes_max)
        if cost <= self._settings.batch_bytes_max and 0 < len(listed) <= RECORDS_MAX:
            return SendingMany([self._send_chunk(topic, listed, key, cost)])
        chunks = chunks_of(listed, self._settings.batch_bytes_max, overhead)
        return SendingMany(
            [self._send_chunk(topic, chunk, key, chunk_cost) for chunk, chunk_cost in chunks]
        )

    async def recall(self, topic: str, handle: str, *, timeout_ms: int = 10_000) -> str:
        """Take back a delayed message, by `SendResult.recall_handle`, before it is due; its id.

        ConflictError: it does not wait any more. BadRequestError: the handle is none, or of another
        topic. DeadlineError: nobody knows; to ask again is safe, for a minute.
        """
        group = GroupName(parse_handle(RECALL, handle).group)
        if self._calls is None:
            self._cluster.start()
            self._calls = GroupLinks(self._cluster)
        request = Recall(topic=topic, handle=handle)
        answer, _ = await self._calls.call(group, request, timeout_ms=timeout_ms)
        return answer.message_id

    # -- request and reply -----------------------------------------------------------------------

    async def request(
        self, message: Message, *, timeout_ms: int = REQUEST_TIMEOUT_DEFAULT_MS
    ) -> ReceivedMessage:
        """Send a message and wait for the reply of one of its consumers.

        RequestTimeoutError after `timeout_ms`: it may have been consumed all the same. Errors of
        `send` where it certainly was not stored.
        """
        self._cost_of(message)
        if self._requester is None:
            self._requester = Requester(self._cluster, self._send_library)
        return await self._requester.request(message, timeout_ms=timeout_ms)

    def reply(self, request: ReceivedMessage, body: bytes) -> Sending:
        """Answer a request that a consumer has received; await the result as for `send`.

        BadRequestError if the message is no request. A reply too late changes nothing.
        """
        return self._send_library(reply_message(request, body))

    @property
    def requests(self) -> RequesterCounts:
        """Replies that nobody waited for."""
        return RequesterCounts() if self._requester is None else self._requester.counts

    def _send_library(self, message: Message) -> Sending:
        """As `send`, for messages with properties of the system."""
        cost = self._cost_of(message, is_library=True)
        self._check_waiting_room(cost, 2 * self._buffer_bytes_max)
        return self._send(message, cost)

    # -- waiting for room or route ----------------------------------------------------------------

    def _cost_of(self, message: Message, *, is_library: bool = False) -> int:
        """Bytes charged for a message; refuses what no broker would take."""
        if self._is_closed:
            raise self._closed()
        cost = cost_of(message, self._limits, is_library=is_library)
        if self._forbidden_hooks:
            check_allowed(self._forbidden_hooks, message)
        return cost

    def _forked(self) -> None:
        super()._forked()
        self._is_closed = True

    def _closed(self) -> ShuttingDownError:
        return ShuttingDownError(FORKED if self.is_of_parent else "the producer is closed")

    def _check_waiting_room(self, cost: int, limit: int) -> None:
        if self._dispatch.buffered_bytes + self._parked_bytes + cost > limit:
            raise self._full()

    def _send(self, message: Message, cost: int) -> Sending:
        topic = message.topic
        route = self._routes.get(topic)
        if route is None or not self._has_room(topic, cost):
            return self._park_message(message, cost)
        batch, index = self._dispatch.place(route, message, cost)
        return Sending(batch, index, self._loop)

    def _send_selected(self, message: Message, cost: int, selector: Selector, arg: Any) -> Sending:
        topic = message.topic
        route = self._routes.get(topic)
        if route is not None and self._has_room(topic, cost):
            batch, index = self._dispatch.place_selected(route, message, cost, selector, arg)
            return Sending(batch, index, self._loop)
        kept = own_copy(message)
        return self._park(
            topic,
            cost,
            Sending(placeholder(), 0, self._loop),
            lambda to: self._dispatch.place_selected(to, kept, cost, selector, arg),
        )

    def _has_room(self, topic: str, cost: int) -> bool:
        """Whether a message may be placed now, not behind others of its topic."""
        return topic not in self._parked and (
            self._dispatch.buffered_bytes + cost <= self._buffer_bytes_max
            or not self._dispatch.buffered_bytes
        )

    def _send_chunk(self, topic: str, bodies: list[bytes], key: str | None, cost: int) -> Sending:
        route = self._routes.get(topic)
        if route is not None and self._has_room(topic, cost):
            batch, index = self._dispatch.place_bodies(route, bodies, key, cost)
            return Run(batch, index, self._loop, len(bodies))
        sending = Run(placeholder(), 0, self._loop, len(bodies))
        return self._park(
            topic, cost, sending, lambda to: self._dispatch.place_bodies(to, bodies, key, cost)
        )

    def _park_message(self, message: Message, cost: int) -> Sending:
        kept = own_copy(message)
        sending = Sending(placeholder(), 0, self._loop)
        return self._park(
            message.topic, cost, sending, lambda to: self._dispatch.place(to, kept, cost)
        )

    def _park(
        self,
        topic: str,
        cost: int,
        sending: Sending,
        place: Callable[[Route], tuple[Batch, int]],
    ) -> Sending:
        self._parked.setdefault(topic, deque()).append(
            Parked(cost, self._loop.time(), sending, place)
        )
        self._parked_bytes += cost
        self._cluster.start()
        self._dispatch.keep_sweeping()
        if topic not in self._routes:
            self._on_change()  # the topic may be known, only not used yet
            if self._cluster.lacks(topic) and topic in self._parked:
                self._maker.want(topic)
        return sending

    def _full(self) -> PacelineError:
        return PayloadLimitError(
            f"{self._dispatch.buffered_bytes + self._parked_bytes} bytes wait for acknowledgement,"
            f" the buffer holds {self._buffer_bytes_max}",
            limit=self._buffer_bytes_max,
        )

    def _on_change(self) -> None:
        """Room, routes or outcomes changed: place what was parked, tell who waits for the end."""
        if self._parked:
            for topic in tuple(self._parked):
                self._unpark(topic)
        if self._idle_waiters and not self._dispatch.buffered_bytes and not self._parked:
            waiters, self._idle_waiters = self._idle_waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def _unpark(self, topic: str) -> None:
        route = self._dispatch.open_route(topic)
        queue = self._parked.get(topic)
        while route is not None and queue:
            cost = queue[0].cost_bytes
            buffered = self._dispatch.buffered_bytes
            if buffered and buffered + cost > self._buffer_bytes_max:
                return
            parked = queue.popleft()
            self._parked_bytes -= cost
            try:
                placed = parked.place(route)
            except PacelineError as error:  # a queue that there is not
                parked.sending.fail(error)
            else:
                parked.sending.settle_into(*placed)
        if not queue:
            self._parked.pop(topic, None)

    def _on_sweep(self, now: float) -> bool:
        """Give up parked messages in time; whether any are left."""
        for topic in tuple(self._parked):
            is_unknown = self._cluster.lacks(topic)
            if is_unknown:
                self._maker.want(topic)
            limit_ms = self._settings.topic_wait_ms if is_unknown else 0
            limit_s = (limit_ms or self._settings.delivery_timeout_ms) / 1000
            queue = self._parked[topic]
            while queue and queue[0].since + limit_s <= now:
                parked = queue.popleft()
                self._parked_bytes -= parked.cost_bytes
                parked.sending.fail(self._parked_too_long(topic))
            if not queue:
                del self._parked[topic]
        self._on_change()
        return bool(self._parked)

    def _parked_too_long(self, topic: str) -> PacelineError:
        view = self._cluster.view
        if view is None or not self._cluster.watch.is_complete:
            cause = self._cluster.watch.last_error
            why = "" if cause is None else f": {cause.message}"
            return NotMasterError(f"not stored: no node of the cluster answered{why}", master=None)
        if topic not in view.topics:
            return TopicNotFoundError(
                f"topic {topic} does not exist; create it first (paceline topic create {topic})"
            )
        known = view.topics[TopicName(topic)]
        if not write_queues_of(known):
            return wiped(view, filter(known.queues.get, known.queues), topic=topic) or (
                QueueNotFoundError(
                    f"not stored: topic {topic} takes messages in no queue: see its queues and"
                    " permissions (paceline topic describe) and those of the broker groups"
                    " (paceline cluster status)"
                )
            )
        return self._full()

    def _topic_refused(self, topic: str, error: PacelineError) -> None:
        """The topic can never be: what waits for it fails."""
        for parked in self._parked.pop(topic, ()):
            self._parked_bytes -= parked.cost_bytes
            parked.sending.fail(error)
        self._on_change()

    def _fail_parked(self, error: PacelineError) -> None:
        parked, self._parked = self._parked, {}
        self._parked_bytes = 0
        for queue in parked.values():
            for item in queue:
                item.sending.fail(error)


def send_library(producer: Producer, message: Message) -> Sending:
    """`Producer.send` of a message with properties of the system that clients may send
    (`properties.LIBRARY`). For this library and the doors only."""
    return producer._send_library(message)


def send_library_batch(
    producer: Producer, messages: Iterable[Message], selector: Selector
) -> SendingMany:
    """`Producer.send_batch`, as `send_library` is `Producer.send`."""
    return producer._send_unit(list(messages), selector, is_library=True)
