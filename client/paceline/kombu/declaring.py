"""Queues, exchanges and bindings of kombu, as topics, consumer groups and attributes of a cluster.

A durable queue is a topic of type PRIORITY, which takes delayed messages too, and its consumers are
one consumer group of the same name. An exchange has a topic only once somebody reads it: a queue
that is bound to a fanout exchange, or a temporary queue (`temporary`). All on the session's loop.
"""

from collections.abc import Container
from contextlib import suppress

from paceline.errors import (
    GroupExistsError,
    GroupNotFoundError,
    TopicExistsError,
    TopicNotFoundError,
)
from paceline.kombu.bindings import (
    FANOUT,
    QUEUE_ATTRIBUTE,
    Binding,
    RoutingTable,
    bindings_of,
    fanouts_of,
    topic_attributes,
)
from paceline.kombu.names import topic_of_exchange, topic_of_queue
from paceline.kombu.session import Clients
from paceline.types import ConsumerGroupName, TopicName
from paceline.wire.cluster import ClusterView
from paceline.wire.topics import NORMAL, PRIORITY, TopicView

QUEUES_DEFAULT = 10
"""Of a queue's topic in each broker group: one for each priority, 0 to 9."""
TEMPORARY = "kombu.temporary"
"""The exchange that stands for the default one for temporary queues: what is sent to a queue that
has no topic goes there."""
_WAIT_MS = 10_000


class Declarations:
    """Owned by a session; the routing table is made anew when the view has changed."""

    def __init__(self, clients: Clients, *, queues: int = QUEUES_DEFAULT) -> None:
        """`queues`: of a new queue's topic in each broker group."""
        self._clients = clients
        self._queues = queues
        self._table = RoutingTable()
        self._table_of: ClusterView | None = None
        self._asked_ms: dict[str, int] = {}
        """When the controllers were asked last about an exchange that nobody reads."""

    # -- what there is ----------------------------------------------------------------------------

    def topic(self, name: str) -> TopicView | None:
        return self._clients.cluster.topic(name)

    def fanouts_of(self, queue: str) -> list[str]:
        """The topics of the fanout exchanges that a durable queue is bound to."""
        topic = self.topic(topic_of_queue(queue))
        return [] if topic is None else fanouts_of(topic.attributes)

    def bindings_of(self, queue: str) -> list[Binding]:
        topic = self.topic(topic_of_queue(queue))
        return [] if topic is None else list(bindings_of(topic.attributes))

    def all_bindings(self) -> list[tuple[str, str, str]]:
        """(queue, exchange, routing key) of all durable queues."""
        return [
            (topic.attributes[QUEUE_ATTRIBUTE], binding.exchange, binding.routing_key)
            for topic in self._clients.view.topics.values()
            if QUEUE_ATTRIBUTE in topic.attributes
            for binding in bindings_of(topic.attributes)
        ]

    async def route(self, exchange: str, routing_key: str) -> tuple[list[str], bool]:
        """The queues that get a message of their own, and whether the exchange's topic gets one.

        For "" the queue of the name `routing_key`. A view may be older than a binding that somebody
        has made just now, so nothing is dropped before the controllers were asked, once a second.
        """
        view = self._clients.view
        if view is not self._table_of:
            self._table, self._table_of = RoutingTable.of(view.topics.values()), view
        found = _route(self._table, view.topics, exchange, routing_key)
        if any(found):
            return found
        about = exchange or f" {routing_key}"
        now = self._clients.cluster.clock.monotonic_ms()
        if now - self._asked_ms.get(about, -1_000) < 1_000:
            return found
        self._asked_ms = {
            name: asked for name, asked in self._asked_ms.items() if now - asked < 1_000
        }
        self._asked_ms[about] = now
        topics = {topic.topic: topic for topic in await self._clients.admin.topics.all()}
        return _route(RoutingTable.of(topics.values()), topics, exchange, routing_key)

    # -- making -----------------------------------------------------------------------------------

    async def declare_queue(self, queue: str) -> None:
        """A durable queue; does nothing where there is one."""
        name = topic_of_queue(queue)
        if self.topic(name) is None:
            await self._make_topic(name, self._queues, PRIORITY, topic_attributes(queue=queue))
        if ConsumerGroupName(name) not in self._clients.view.consumer_groups:
            with suppress(GroupExistsError):
                await self._clients.admin.consumer_groups.create(name)

    async def declare_exchange(self, exchange: str) -> str:
        """The topic of an exchange that somebody is about to read."""
        name = topic_of_exchange(exchange)
        if self.topic(name) is None:
            await self._make_topic(name, 1, NORMAL, topic_attributes(exchange=exchange))
        return name

    async def _make_topic(
        self, name: str, queues: int, message_type: str, attributes: dict[str, str]
    ) -> None:
        try:
            await self._clients.admin.topics.create(
                name, queues=queues, message_type=message_type, attributes=attributes
            )
        except TopicExistsError:
            await self._clients.cluster.wait_topic(name, timeout_ms=_WAIT_MS)

    async def bind(self, queue: str, binding: Binding) -> None:
        """Bind a durable queue; what was sent to a fanout exchange before is not for it."""
        topic = topic_of_queue(queue)
        if binding in self.bindings_of(queue):
            return
        if binding.type == FANOUT:
            exchange = await self.declare_exchange(binding.exchange)
            await self._clients.admin.consumer_groups.reset_offsets(topic, exchange, to="last")
        await self._clients.admin.topics.alter(topic, attributes=dict([binding.attribute]))

    async def unbind(self, queue: str, binding: Binding) -> None:
        if binding in self.bindings_of(queue):
            name, _ = binding.attribute
            await self._clients.admin.topics.alter(topic_of_queue(queue), attributes={name: None})

    # -- whole queues -----------------------------------------------------------------------------

    async def delete(self, queue: str) -> None:
        """A durable queue with its messages, bindings and consumer group."""
        name = topic_of_queue(queue)
        with suppress(TopicNotFoundError):
            await self._clients.admin.topics.delete(name)
        with suppress(GroupNotFoundError):
            await self._clients.admin.consumer_groups.delete(name)

    async def size(self, queue: str) -> int:
        """Messages of a durable queue that are not acknowledged; not those that wait for their
        time."""
        name, reader = topic_of_queue(queue), self._clients.reader
        names = await reader.queues(name)
        ranges = await reader.ranges(names)
        committed = await reader.committed(name, names)
        count = 0
        for one in names:
            done = committed[one]
            count += ranges[one].end - (ranges[one].start if done is None else done)
        return count

    async def purge(self, queue: str) -> int:
        """Pass over all messages that a durable queue has; how many."""
        count, name = await self.size(queue), topic_of_queue(queue)
        await self._clients.admin.consumer_groups.reset_offsets(name, name, to="last")
        return count


def _route(
    table: RoutingTable, topics: Container[TopicName], exchange: str, routing_key: str
) -> tuple[list[str], bool]:
    if exchange:
        return table.queues(exchange, routing_key), exchange in table.exchanges
    if TopicName(topic_of_queue(routing_key)) in topics:
        return [routing_key], False
    return [], TopicName(topic_of_exchange(TEMPORARY)) in topics
