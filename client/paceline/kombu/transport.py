"""kombu's transport: a connection, which is a view of this process's session (`session`)."""

import logging
from typing import Any

from kombu.transport import virtual

from paceline.errors import PacelineError
from paceline.kombu.channel import Channel
from paceline.kombu.connected import Connected
from paceline.kombu.declaring import QUEUES_DEFAULT, Declarations
from paceline.kombu.inbox import Delivery, Inbox
from paceline.kombu.receiving import INVISIBLE_MS
from paceline.kombu.session import session_of
from paceline.kombu.target import connect_settings_of, masked
from paceline.net.group_links import PASSING
from paceline.platform.runtime import SystemClock
from paceline.platform.version import VERSION

log = logging.getLogger("paceline.client")


class Transport(virtual.Transport):
    """Of one connection. Transport options: `queues` (10), of a new queue's topic in each broker
    group; `visibility_timeout` (30), in seconds: so late a message comes again after its worker has
    died."""

    Channel = Channel
    can_parse_url = True
    driver_type = "paceline"
    driver_name = "paceline"
    default_port = 7700
    connection_errors = (*virtual.Transport.connection_errors, *PASSING)
    channel_errors = (*virtual.Transport.channel_errors, PacelineError)
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset({"direct", "topic", "fanout"})
    )

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        self._clock = SystemClock()
        told = client.transport_options
        self._invisible_ms = int(float(told.get("visibility_timeout", INVISIBLE_MS / 1000)) * 1000)
        self._queues = int(told.get("queues", QUEUES_DEFAULT))
        self.connected: Connected

    def driver_version(self) -> str:
        return VERSION

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        return uri if include_password else masked(uri, mask)

    def establish_connection(self) -> "Transport":
        """PeerError when no address of the URL answers."""
        url = self.client.hostname
        session = session_of(url, connect_settings_of(url))
        declarations = Declarations(session.clients, queues=self._queues)
        self.connected = Connected(
            session=session,
            declarations=declarations,
            inbox=Inbox(),
            invisible_ms=self._invisible_ms,
        )
        return self

    def close_connection(self, connection: Any) -> None:
        for delivery in self.connected.inbox.close():
            delivery.give_back()
        for channel in list(self.channels):
            channel.close()
        while self.connected.temporary:
            _, temporary = self.connected.temporary.popitem()
            self.connected.session.call(temporary.close)

    def verify_connection(self, connection: Any) -> bool:
        return True

    # -- delivering -------------------------------------------------------------------------------

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Hand one message to its consumer. TimeoutError after `timeout` seconds."""
        deadline = None if timeout is None else self._clock.monotonic_ms() + timeout * 1000
        while True:
            delivery = self.connected.inbox.take()
            if delivery is not None and self._hand_over(delivery):
                return
            if delivery is None:
                left = None
                if deadline is not None:
                    left = (deadline - self._clock.monotonic_ms()) / 1000
                if (left is not None and left < 0) or not self.connected.inbox.wait(left):
                    raise TimeoutError("nothing came in time")

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        loop.add_reader(self.connected.inbox.fd, self._on_readable)

    def _on_readable(self) -> None:
        while (delivery := self.connected.inbox.take()) is not None:
            self._hand_over(delivery)

    def _hand_over(self, delivery: Delivery) -> bool:
        """False: its consumer has gone, or is another one by now."""
        channel, callback = self.connected.callbacks.get(delivery.queue, (None, None))
        if channel is None or channel is not delivery.channel:
            delivery.give_back()
            return False
        channel.deliver(delivery, callback)
        if not len(self.connected.inbox):
            for room in list(self.connected.rooms):
                self.connected.session.soon(room.wake)
        return True
