"""kombu's channel: declares, publishes, and hands consumers what receivers have brought."""

from functools import partial
from itertools import count
from typing import Any

from kombu.exceptions import ChannelError
from kombu.transport import virtual
from kombu.transport.virtual.base import queue_declare_ok_t
from kombu.utils import json
from kombu.utils.uuid import uuid

from paceline.kombu.bindings import DIRECT, TYPES, Binding
from paceline.kombu.connected import Connected
from paceline.kombu.declaring import TEMPORARY
from paceline.kombu.envelopes import due_of, key_of, priority_of, sent_later, tag_of
from paceline.kombu.inbox import Delivery
from paceline.kombu.names import topic_of_exchange, topic_of_queue
from paceline.kombu.receiving import QueueReceiver, Room
from paceline.kombu.temporary import TemporaryQueue
from paceline.message import Message


class Channel(virtual.Channel):
    """Of one connection. What is received and not acknowledged is given back when it closes."""

    supports_fanout = True
    do_restore = False
    closed: bool

    def __init__(self, connection: Any, **options: Any) -> None:
        super().__init__(connection, **options)
        self._connected: Connected = connection.connected
        self._session = self._connected.session
        self._declarations = self._connected.declarations
        self._room = Room(self._connected.inbox)
        self._receivers: dict[str, QueueReceiver] = {}
        self._held: dict[str, Delivery] = {}
        """By delivery tag."""
        self._no_ack: set[str] = set()
        self._tags = count(1)
        self._connected.rooms.add(self._room)

    # -- declaring --------------------------------------------------------------------------------

    def exchange_declare(
        self,
        exchange: str | None = None,
        type: str = DIRECT,  # noqa: A002
        durable: bool = False,
        auto_delete: bool = False,
        arguments: Any = None,
        nowait: bool = False,
        passive: bool = False,
    ) -> None:
        """What type it is. Nothing is made for it before somebody reads it."""
        type = type or DIRECT  # noqa: A001
        if passive:
            return
        if type not in TYPES:
            raise ChannelError(f"exchanges of type {type} do not exist here: {sorted(TYPES)}")
        self._connected.exchange_types[exchange or f"amq.{type}"] = type

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        self._connected.exchange_types.pop(exchange, None)

    def queue_declare(
        self,
        queue: str | None = None,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Any = None,
        **options: Any,
    ) -> Any:
        """A durable queue is made once for all; others live as long as this connection."""
        queue = queue or f"amq.gen-{uuid()}"
        arguments = arguments or {}
        expires = arguments.get("x-expires") is not None
        if passive:
            if not self._has_queue(queue):
                raise ChannelError(
                    f"NOT_FOUND - no queue {queue!r}", (50, 10), "Channel.queue_declare", 404
                )
            return queue_declare_ok_t(queue, self._size(queue), 0)
        if exclusive or auto_delete or (expires and not durable):
            self._temporary(queue)
        elif queue not in self._connected.temporary:
            self._session.call(lambda: self._declarations.declare_queue(queue))
        return queue_declare_ok_t(queue, 0, 0)

    def _temporary(self, queue: str) -> TemporaryQueue:
        known = self._connected.temporary
        if queue not in known:
            clients = self._session.clients

            async def make() -> TemporaryQueue:
                made = TemporaryQueue(clients, self._declarations, queue)
                await made.start()
                return made

            known[queue] = self._session.call(make)
        return known[queue]

    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,
        **options: Any,
    ) -> None:
        if exchange:
            binding = self._binding(exchange, routing_key)
            temporary = self._connected.temporary.get(queue)
            if temporary is not None:
                self._session.call(lambda: temporary.bind(binding))
            else:
                self._session.call(lambda: self._declarations.bind(queue, binding))

    def queue_unbind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,
        **options: Any,
    ) -> None:
        if exchange:
            binding = self._binding(exchange, routing_key)
            temporary = self._connected.temporary.get(queue)
            if temporary is not None:
                self._session.call(lambda: temporary.unbind(binding))
            else:
                self._session.call(lambda: self._declarations.unbind(queue, binding))

    def _binding(self, exchange: str, routing_key: str) -> Binding:
        type_ = self._connected.exchange_types.get(exchange, DIRECT)
        binding = Binding(exchange, type_, routing_key or "")
        if len(binding.attribute[1]) > 255:
            raise ChannelError("an exchange's name and a routing key have 230 characters at most")
        return binding

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **options: Any
    ) -> None:
        temporary = self._connected.temporary.pop(queue, None)
        if temporary is not None:
            self._session.call(temporary.close)
        elif self._has_queue(queue) and not (if_empty and self._size(queue)):
            self._session.call(lambda: self._declarations.delete(queue))

    def after_reply_message_received(self, queue: str) -> None:
        """A queue for replies is kept for the next question: kombu takes it for declared."""

    def list_bindings(self) -> Any:
        """(queue, exchange, routing key) of all durable queues."""
        return self._declarations.all_bindings()

    def _has_queue(self, queue: str, **options: Any) -> bool:
        is_temporary = queue in self._connected.temporary
        return is_temporary or self._declarations.topic(topic_of_queue(queue)) is not None

    def _size(self, queue: str) -> int:
        if queue in self._connected.temporary:
            return 0
        count: int = self._session.call(lambda: self._declarations.size(queue))
        return count

    def _purge(self, queue: str) -> int:
        if queue in self._connected.temporary or not self._has_queue(queue):
            return 0
        count: int = self._session.call(lambda: self._declarations.purge(queue))
        return count

    # -- publishing -------------------------------------------------------------------------------

    def basic_publish(self, message: Any, exchange: str, routing_key: str, **options: Any) -> None:
        """Returns when it is on the disk of every in-sync replica, wherever it goes."""
        self._inplace_augment_message(message, exchange, routing_key)
        self._session.call(lambda: self._publish(message, exchange or "", routing_key or ""))

    async def _publish(self, payload: Any, exchange: str, routing_key: str) -> None:
        declarations, clients = self._declarations, self._session.clients
        queues, is_read = await declarations.route(exchange, routing_key)
        body = json.dumps(payload).encode()
        now = clients.cluster.clock.unix_ms()
        key, tag = key_of(payload), tag_of(routing_key)
        for queue in queues:
            topic = topic_of_queue(queue)
            message = Message(topic, body, key=key, tag=tag, priority=priority_of(payload))
            await clients.producer.send(sent_later(message, due_of(payload), now_unix_ms=now))
        if is_read:
            topic = topic_of_exchange(exchange or TEMPORARY)
            await clients.producer.send(Message(topic, body, key=key, tag=tag))

    # -- consuming --------------------------------------------------------------------------------

    def basic_qos(
        self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False
    ) -> None:
        self._session.soon(partial(self._room.limit, prefetch_count or 0))

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **options: Any
    ) -> None:
        self._tag_to_queue[consumer_tag] = queue
        self._active_queues.append(queue)
        self._consumers.add(consumer_tag)
        if no_ack:
            self._no_ack.add(queue)
        self._connected.callbacks[queue] = (self, callback)
        temporary = self._connected.temporary.get(queue)
        if temporary is not None:
            inbox, room, soon = self._connected.inbox, self._room, self._session.soon
            soon(lambda: temporary.deliver(inbox, room, self, soon))
        else:
            receiver = self._receiver(queue)
            self._session.soon(receiver.start)

    def _receiver(self, queue: str) -> QueueReceiver:
        found = self._receivers.get(queue)
        if found is None:
            clients = self._session.clients
            found = self._receivers[queue] = QueueReceiver(
                clients,
                self._declarations,
                queue,
                inbox=self._connected.inbox,
                room=self._room,
                channel=self,
                soon=self._session.soon,
                invisible_ms=self._connected.invisible_ms,
            )
        return found

    def basic_cancel(self, consumer_tag: str) -> None:
        if consumer_tag not in self._consumers:
            return
        self._consumers.remove(consumer_tag)
        queue = self._tag_to_queue.pop(consumer_tag)
        self._active_queues.remove(queue)
        if queue in self._active_queues:
            return
        self._no_ack.discard(queue)
        self._connected.callbacks.pop(queue, None)
        one = self._connected.temporary.get(queue) or self._receivers.get(queue)
        if one is not None:
            self._session.call(one.stop)
        for delivery in self._connected.inbox.remove(queue):
            delivery.give_back()

    def deliver(self, delivery: Delivery, callback: Any) -> None:
        """Call the consumer with a message."""
        callback(self._message(delivery, is_acked=delivery.queue in self._no_ack))

    def basic_get(self, queue: str, no_ack: bool = False, **options: Any) -> Any:
        """One message, or None."""
        temporary = self._connected.temporary.get(queue)
        if temporary is not None:

            async def take() -> Delivery | None:
                return temporary.get(self._session.soon, self._room)

            found = self._session.call(take)
        else:
            found = self._session.call(self._receiver(queue).get)
        return None if found is None else self._message(found, is_acked=no_ack)

    def _message(self, delivery: Delivery, *, is_acked: bool) -> Any:
        tag = f"{self.channel_id}.{next(self._tags)}"
        properties = delivery.payload["properties"]
        properties["delivery_tag"] = tag
        properties["delivery_info"]["redelivered"] = delivery.is_redelivered
        if is_acked:
            delivery.ack()
        else:
            self._held[tag] = delivery
        return self.Message(delivery.payload, channel=self)

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        found = self._held.pop(delivery_tag, None)
        if found is not None:
            found.ack()

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """To the front of its queue, or among the dead letters of it."""
        found = self._held.pop(delivery_tag, None)
        if found is not None:
            (found.requeue if requeue else found.reject)()

    def basic_recover(self, requeue: bool = False) -> None:
        """Whatever is not acknowledged comes again, to anybody."""
        while self._held:
            self._held.popitem()[1].requeue()

    def close(self) -> None:
        """End the consumers; give back what is not acknowledged, wait for acknowledgements."""
        if self.closed:
            return
        self.closed = True
        for consumer_tag in list(self._consumers):
            self.basic_cancel(consumer_tag)
        while self._held:
            self._held.popitem()[1].give_back()
        for receiver in self._receivers.values():
            self._session.call(receiver.close)
        self._connected.rooms.discard(self._room)
        self.connection.close_channel(self)
        self.exchange_types = None
