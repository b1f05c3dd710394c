"""The producer's engine: routes, queue buffers, broker senders, and the timer that expires batches.

Owned by one `Producer`, on its event loop. The pump runs at most once a loop turn and puts on the
wire what was placed since; the sweep looks at deadlines while anything is on its way.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from paceline.errors import PacelineError, QueueNotFoundError, TopicNotFoundError
from paceline.message import Message
from paceline.net.cluster import Cluster
from paceline.net.introduction import introduction
from paceline.producer.batch import Batch
from paceline.producer.broker_sender import BrokerSender, QueueOutbox
from paceline.producer.hooks import SendHooks
from paceline.producer.latency import LatencyTable
from paceline.producer.oneway import OnewayCounts, OnewayQueue
from paceline.producer.queue_buffer import JOIN_WINDOW_S
from paceline.producer.remapping import hand_on, lead_on
from paceline.producer.results import wake
from paceline.producer.route import Route
from paceline.producer.selectors import Selector, selected
from paceline.producer.settings import ProducerSettings
from paceline.producer.validation import due_of, stored_properties
from paceline.producer.write_permission import wiped
from paceline.queues import QueueKey, index_of_key, write_queues_of
from paceline.records.header import RECORDS_MAX, Kind
from paceline.types import GroupName, TopicName
from paceline.wire.cluster import ClusterView, TopicView
from paceline.wire.static_topics import Place

_SWEEP_MS_MAX = 100


class Dispatcher:
    """See the module's text. `on_change()` is called when room, routes or outcomes changed;
    `on_sweep(now)` from time to time while something is on its way."""

    def __init__(
        self,
        cluster: Cluster,
        settings: ProducerSettings,
        *,
        on_change: Callable[[], None],
        on_sweep: Callable[[float], bool],
        client_id: str,
        kind: Kind = Kind.NORMAL,
    ) -> None:
        """`kind`: of messages that are not delayed; half messages have a producer of their own."""
        self._kind = kind
        self._client_id = client_id
        self.buffered_bytes = 0
        self.oneway_bytes = 0
        """Of the buffered ones: without an outcome that anybody waits for."""
        self.routes: dict[str, Route] = {}
        self._cluster = cluster
        self._settings = settings
        self._on_change = on_change
        self._on_sweep = on_sweep
        self._loop = asyncio.get_running_loop()
        self._batch_bytes_max = settings.batch_bytes_max
        self._compression = settings.compression
        self._latency: LatencyTable | None = None
        if settings.send_latency_enable:
            self._latency = LatencyTable(
                settings.latency_max_ms, settings.not_available_duration_ms
            )
        self._is_quick = None if self._latency is None else self._is_available
        self.oneway_counts = OnewayCounts()
        self.hooks = SendHooks(
            settings.send_hooks, producer_group=settings.group, topic_name=cluster.topic_name
        )
        self._hooks = self.hooks if settings.send_hooks else None
        self._outboxes: dict[QueueKey, dict[Kind, QueueOutbox]] = {}
        self._lanes: dict[GroupName, BrokerSender] = {}
        self._active: dict[QueueOutbox, None] = {}  # an ordered set: not idle
        self._is_pump_scheduled = False
        self._born_unix_ms = 0
        self._deadline = 0.0
        self._sweep: asyncio.TimerHandle | None = None
        self._end_listening = cluster.watch.listen(self._on_view)

    # -- routes -----------------------------------------------------------------------------------

    def open_route(self, topic: str) -> Route | None:
        """The route of a topic; None while no view shows the topic with a queue."""
        route = self.routes.get(topic)
        if route is not None:
            return route
        known = self._cluster.topic(topic)
        return None if known is None else self._make_route(known)

    def _make_route(self, topic: TopicView) -> Route | None:
        queues = write_queues_of(topic)
        outboxes = [self._outbox(queue, self._kind, topic.topic) for queue in queues]
        if not outboxes:
            return None
        for outbox in self._of_all_kinds(outboxes):
            outbox.is_retired = False
        for number, queue in enumerate(topic.logical_queues):
            outboxes[number].place = Place(number, queue.last)
        # Producers that start together should not all begin with the first queue.
        sticky = int(self._cluster.random.uniform(0, len(outboxes)))
        route = self.routes[topic.topic] = Route(topic, outboxes, sticky)
        for lane in self._lanes.values():
            lane.link.introduce_again()
        return route

    def _introduction(self) -> dict[str, Any]:
        return introduction("producer", self._settings.group, self._client_id, sorted(self.routes))

    def _outbox(self, queue: QueueKey, kind: Kind, topic: str) -> QueueOutbox:
        kinds = self._outboxes.setdefault(queue, {})
        outbox = kinds.get(kind)
        if outbox is None:
            lane = self._lane(queue.group)
            outbox = kinds[kind] = QueueOutbox(
                queue,
                self._new_producer_id,
                topic=topic,
                kind=kind,
                lane=lane,
                compression=self._compression,
            )
            lane.outboxes.append(outbox)
        return outbox

    def _of_all_kinds(self, outboxes: list[QueueOutbox]) -> list[QueueOutbox]:
        return [each for outbox in outboxes for each in self._outboxes[outbox.queue].values()]

    def _lane(self, group: GroupName) -> BrokerSender:
        lane = self._lanes.get(group)
        if lane is None:
            lane = self._lanes[group] = BrokerSender(
                self._cluster,
                group,
                flights_max=self._settings.flights_max,
                on_progress=self._on_progress,
                on_stuck=self._on_stuck,
                schedule_pump=self.schedule_pump,
                oneway=OnewayQueue(
                    self.oneway_counts,
                    self._compression,
                    batch_bytes_max=self._batch_bytes_max,
                    on_room=self._on_oneway_room,
                    hooks=self._hooks,
                ),
                latency=self._latency,
                hooks=self._hooks,
                who=self._introduction,
            )
            lane.link.start()
        return lane

    def _new_producer_id(self) -> int:
        return int.from_bytes(self._cluster.random.token(8), "little") or 1  # 0 = none

    def _on_view(self, view: ClusterView) -> None:
        for name, route in tuple(self.routes.items()):
            topic = view.topics.get(TopicName(name))
            if topic is None or topic.topic_id != route.topic.topic_id:
                del self.routes[name]
                # The next send asks which of both it is.
                why = f"topic {name} was deleted, or this user may not see it any more"
                self._fail(route, TopicNotFoundError(why))
            elif not route.is_as(topic):
                self._change_route(route, topic)
        for lane in self._lanes.values():
            lane.unblock()
        self._on_change()

    def _change_route(self, old: Route, topic: TopicView) -> None:
        """Queues that take no more messages give what is certainly not stored to the others; that
        of a static topic to the one that its logical queue goes on in."""
        del self.routes[topic.topic]
        fresh = self._make_route(topic)
        kept = set() if fresh is None else set(fresh.queues)
        for index, queue in enumerate(old.queues):
            if queue in kept:
                continue
            for outbox in tuple(self._outboxes[queue].values()):
                outbox.is_retired = True
                if fresh is not None and topic.is_static:
                    lead_on(outbox, self._outbox(fresh.queues[index], outbox.kind, topic.topic))
                self._on_progress(outbox)

    def _hand_on(self, outbox: QueueOutbox) -> None:
        target = hand_on(outbox)
        if target is not None and not target.is_idle:
            assert isinstance(target, QueueOutbox)
            self._activate(target)

    def _activate(self, outbox: QueueOutbox) -> None:
        """It has something to send."""
        self._active[outbox] = None
        outbox.lane.ready[outbox] = None
        self.schedule_pump()

    def _move_on(self, outbox: QueueOutbox) -> None:
        """Empty a retired outbox as far as R32 allows."""
        name = self._cluster.topic_name(outbox.queue.topic_id)
        route = None if name is None else self.routes.get(name)
        for batch in outbox.take_unsent():
            if route is None or batch.is_named or route.topic.is_static:
                outbox.fail(batch, self._taken_away(outbox.queue, name))
                continue
            if batch.is_movable:
                index = route.next_index(self._is_up, self._is_quick)
            else:  # its keys shared a queue; where the number changes, order by key begins anew
                key = next(filter(None, batch.keys or ()), "")
                index = index_of_key(key.encode(), len(route.outboxes))
            target = self._outbox(route.queues[index], batch.kind, batch.topic)
            target.adopt(batch)
            self._activate(target)

    def _taken_away(self, queue: QueueKey, topic: str | None) -> PacelineError:
        """Why a message that is certainly not stored can not be sent to its queue any more."""
        groups = [] if topic is None else [queue.group]
        return wiped(self._cluster.view, groups, topic=topic or "") or QueueNotFoundError(
            f"queue {queue.group}/{queue.queue_id} of topic {topic} takes no messages any more",
            queue=queue.queue_id,
        )

    def _fail(self, route: Route, error: PacelineError) -> None:
        topic_id = route.topic.topic_id
        for queue, kinds in tuple(self._outboxes.items()):  # of segments before, too
            for outbox in kinds.values() if queue.topic_id == topic_id else ():
                outbox.fail_all(error)
                self._on_progress(outbox)

    # -- placing ----------------------------------------------------------------------------------

    def place(self, route: Route, message: Message, cost: int) -> tuple[Batch, int]:
        """Put a message into a batch, which leaves at the end of this turn or later."""
        if not self._is_pump_scheduled:
            self.schedule_pump()
        key = message.key
        if (
            message.properties
            or message.delay_ms
            or message.delay_level
            or message.delivery_unix_ms
            or message.queue is not None
            or message.sharding
            or message.priority is not None
            or route.has_priorities
        ):
            batch, properties, due = self._special_batch(route, message, cost)
            index = batch.add(message.body, key, message.tag, properties, self._born_unix_ms)
            if due is not None:
                batch.add_due(due)
        else:
            kind = self._kind
            if key:
                batch = self._keyed_batch(route, key, cost, kind)
            else:
                batch = self._keyless_batch(route, cost, kind)
            index = batch.add(message.body, key, message.tag, None, self._born_unix_ms)
        batch.cost_bytes += cost
        self.buffered_bytes += cost
        return batch, index

    def _special_batch(
        self, route: Route, message: Message, cost: int
    ) -> tuple[Batch, dict[str, str] | None, int | None]:
        """For a message with more than body, key and tag: its batch, the properties to store, and
        what its batch says of its time."""
        kind, due = self._kind, due_of(message)
        if due is not None:
            kind = Kind.DELAY
        if _is_chosen(message, route):
            batch = self._pinned_batch(route, self._index_of(route, message), cost, kind)
            batch.is_named = batch.is_named or message.queue is not None
        elif message.key:
            batch = self._keyed_batch(route, message.key, cost, kind)
        else:
            batch = self._keyless_batch(route, cost, kind)
        # A copy: the batch is encoded later, and the application may change its own meanwhile.
        return batch, stored_properties(message), due

    def place_selected(
        self, route: Route, message: Message, cost: int, selector: Selector, arg: Any
    ) -> tuple[Batch, int]:
        """As `place`, into the queue that the application's selector names."""
        name = selected(selector, route.names, message, arg)
        return self.place(route, replace(message, queue=name), cost)

    def place_unit(self, route: Route, messages: Sequence[Message], cost: int) -> tuple[Batch, int]:
        """Put messages that share their queue into one batch; (batch, index of the first)."""
        if not self._is_pump_scheduled:
            self.schedule_pump()
        first = messages[0]
        if _is_chosen(first, route) or first.key:
            batch = self._pinned_batch(route, self._index_of(route, first), cost)
            batch.is_named = batch.is_named or first.queue is not None
        else:
            batch = self._keyless_batch(route, cost)
        if len(batch.bodies) + len(messages) > RECORDS_MAX:
            outbox = self._outbox(batch.queue, batch.kind, batch.topic)
            batch = self._open_batch(outbox, self._batch_bytes_max)
        index, born = len(batch.bodies), self._born_unix_ms
        for message in messages:
            properties = stored_properties(message)
            batch.add(message.body, message.key, message.tag, properties, born)
        batch.cost_bytes += cost
        self.buffered_bytes += cost
        return batch, index

    def place_oneway(self, route: Route, message: Message, cost: int) -> None:
        """Put a message on the wire once, without an outcome."""
        if not self._is_pump_scheduled:
            self.schedule_pump()
        due = due_of(message)
        kind = Kind.NORMAL if due is None else Kind.DELAY
        if _is_chosen(message, route) or message.key:
            outbox = route.outboxes[self._index_of(route, message)]
        elif route.needs_key:
            raise route.keyless()
        else:
            outbox = route.outboxes[route.sticky]
            if not outbox.lane.oneway.has_open(outbox.queue, cost, kind):
                route.sticky = route.next_index(self._is_up, self._is_quick)
                outbox = route.outboxes[route.sticky]
        limit_s = self._settings.request_timeout_ms / 1000
        batch = outbox.lane.oneway.open_batch(
            outbox.queue,
            cost,
            deadline=self._loop.time() + limit_s,
            born_unix_ms=self._born_unix_ms,
            kind=kind,
        )
        properties = stored_properties(message)
        batch.add(message.body, message.key, message.tag, properties, self._born_unix_ms)
        if due is not None:
            batch.add_due(due)
        batch.cost_bytes += cost
        self.buffered_bytes += cost
        self.oneway_bytes += cost

    def _on_oneway_room(self, size_bytes: int) -> None:
        self.buffered_bytes -= size_bytes
        self.oneway_bytes -= size_bytes
        self._on_change()

    def _index_of(self, route: Route, message: Message) -> int:
        """The queue that a message names itself, or that its priority, sharding key or key means.
        QueueNotFoundError, MessageTypeError."""
        if message.queue is not None:
            try:
                return route.index_of(message.queue)
            except QueueNotFoundError as error:
                topic, group = route.topic, message.queue.group
                is_there = message.queue.queue_id < topic.queues.get(group, 0)
                groups = [group] if is_there else []
                raise wiped(self._cluster.view, groups, topic=topic.topic) or error from None
        if route.has_priorities or message.priority is not None:
            return self._index_of_priority(route, message.priority or 0)
        chosen_by = message.sharding or message.key
        assert chosen_by
        return index_of_key(chosen_by.encode(), len(route.outboxes))

    def _index_of_priority(self, route: Route, priority: int) -> int:
        """The queue of a priority, in a broker group that answers; groups take turns."""
        route.sticky = route.next_index(self._is_up, self._is_quick)
        return route.index_of_priority(priority, route.queues[route.sticky].group)

    def _pinned_batch(self, route: Route, index: int, cost: int, kind: Kind = Kind.NORMAL) -> Batch:
        """A batch of exactly that queue: it never goes elsewhere."""
        batch = self._open_batch(route.outboxes[index], cost, kind)
        batch.is_movable = False
        return batch

    def place_bodies(
        self, route: Route, bodies: list[bytes], key: str | None, cost: int
    ) -> tuple[Batch, int]:
        """Put bodies that fit one batch into one; (batch, index of the first)."""
        if not self._is_pump_scheduled:
            self.schedule_pump()
        if route.has_priorities:
            batch = self._pinned_batch(route, self._index_of_priority(route, 0), cost)
        elif key:
            batch = self._keyed_batch(route, key, cost)
        else:
            batch = self._keyless_batch(route, cost)
        if len(batch.bodies) + len(bodies) > RECORDS_MAX:
            # A cost that fits no open batch makes a new one.
            outbox = self._outbox(batch.queue, batch.kind, batch.topic)
            batch = self._open_batch(outbox, self._batch_bytes_max)
        index = batch.add_bodies(bodies, key, self._born_unix_ms)
        batch.cost_bytes += cost
        self.buffered_bytes += cost
        return batch, index

    def _keyed_batch(self, route: Route, key: str, cost: int, kind: Kind = Kind.NORMAL) -> Batch:
        outboxes = route.outboxes
        return self._open_batch(outboxes[index_of_key(key.encode(), len(outboxes))], cost, kind)

    def _keyless_batch(self, route: Route, cost: int, kind: Kind = Kind.NORMAL) -> Batch:
        batch = route.sticky_batches.get(kind)
        if (
            batch is not None
            and batch.cost_bytes + cost <= self._batch_bytes_max
            and batch.encoded is None
            and self._deadline - batch.deadline <= JOIN_WINDOW_S
            and batch.error is None
            and len(batch.bodies) < batch.records_max
        ):
            return batch
        if route.needs_key:
            raise route.keyless()
        is_up = self._takes_delayed if kind == Kind.DELAY else self._is_up
        route.sticky = route.next_index(is_up, self._is_quick)
        batch = self._open_batch(route.outboxes[route.sticky], cost, kind)
        route.sticky_batches[kind] = batch
        return batch

    def _open_batch(self, outbox: QueueOutbox, cost: int, kind: Kind = Kind.NORMAL) -> Batch:
        if outbox.kind is not kind:
            outbox = self._outbox(outbox.queue, kind, outbox.topic)
        self._active[outbox] = None
        outbox.lane.ready[outbox] = None
        return outbox.open_batch(
            cost, self._batch_bytes_max, deadline=self._deadline, born_unix_ms=self._born_unix_ms
        )

    def _is_up(self, group: GroupName) -> bool:
        return self._lanes[group].is_up

    def _takes_delayed(self, group: GroupName) -> bool:
        return self._lanes[group].takes_delayed

    def _is_available(self, group: GroupName) -> bool:
        assert self._latency is not None
        return self._latency.is_available(group, now_ms=self._loop.time() * 1000)

    # -- running ----------------------------------------------------------------------------------

    def schedule_pump(self) -> None:
        """Run the pump at the end of this loop turn. Idempotent."""
        if self._is_pump_scheduled:
            return
        self._is_pump_scheduled = True
        self._born_unix_ms = self._cluster.clock.unix_ms()
        self._deadline = self._loop.time() + self._settings.delivery_timeout_ms / 1000
        self._loop.call_soon(self._pump)
        self.keep_sweeping()

    def keep_sweeping(self) -> None:
        """Look at deadlines from now on, until nothing is on its way."""
        if self._sweep is None:
            interval_ms = min(_SWEEP_MS_MAX, self._settings.request_timeout_ms / 4)
            self._sweep = self._loop.call_later(interval_ms / 1000, self._on_sweep_due)

    def _pump(self) -> None:
        self._is_pump_scheduled = False
        for lane in self._lanes.values():
            if lane.ready or lane.oneway.has_waiting:
                lane.pump()

    def _on_sweep_due(self) -> None:
        self._sweep = None
        now = self._loop.time()
        for lane in self._lanes.values():
            lane.expire(now, self._settings.request_timeout_ms / 1000)
        for outbox in tuple(self._active):
            if outbox.expire(now):
                outbox.lane.ready_again(outbox)
                self.schedule_pump()
            self._on_progress(outbox)
        if self._on_sweep(now) or self._active or self.oneway_bytes:
            self.keep_sweeping()

    def _on_progress(self, outbox: QueueOutbox) -> None:
        if outbox.successor is not None:
            self._hand_on(outbox)
        elif outbox.is_retired and outbox.unsent:
            self._move_on(outbox)
        settled = outbox.drain_settled()
        for batch in settled:
            self.buffered_bytes -= batch.cost_bytes
            if self._hooks is not None:
                self._hooks.after(batch)
            wake(batch)
        if outbox.is_idle:
            self._active.pop(outbox, None)
        if settled:
            self._on_change()

    def _on_stuck(self, lane: BrokerSender, outboxes: Sequence[QueueOutbox]) -> None:
        """Keyless batches that certainly are not stored go to queues of a group that answers."""

        def is_up(group: GroupName) -> bool:
            return group != lane.group and self._is_up(group)

        for outbox in tuple(outboxes):
            name = self._cluster.topic_name(outbox.queue.topic_id) if outbox.unsent else None
            route = None if name is None else self.routes.get(name)
            if route is None or outbox.is_retired:
                continue
            index = route.next_index(is_up, self._is_quick)
            target = self._outbox(route.queues[index], outbox.kind, outbox.topic)
            if target.lane is lane or not target.lane.is_up:
                continue
            for batch in outbox.give_away(self._settings.retry_times_when_send_failed):
                target.adopt(batch)
                self._activate(target)
            if outbox.is_idle:
                self._active.pop(outbox, None)
            self.schedule_pump()

    # -- end --------------------------------------------------------------------------------------

    async def close(self, error: PacelineError) -> None:
        """Fail what has no outcome (unknown where it may be stored), close all connections."""
        self._end_listening()
        for outbox in tuple(self._active):
            outbox.fail_all(error)
            self._on_progress(outbox)
        if self._sweep is not None:
            self._sweep.cancel()
        for lane in self._lanes.values():
            await lane.close()


def _is_chosen(message: Message, route: Route) -> bool:
    """Whether something else than its key says which queue a message goes to."""
    return (
        message.queue is not None
        or bool(message.sharding)
        or message.priority is not None
        or route.has_priorities
    )
