"""The front of a node's HTTP listener: a place for each connection, a handler once it has asked.

Connections may come in thousands at once, say nothing, or a byte of a request head each second.
Until its first request head is whole a connection costs 1 KiB and no handler, and it is the first
to go when its address has more connections than its share (connections.py). Beginning to serve one
takes 0.5 ms and ending one 0.1 ms, so both are done for a few in one turn of the loop; so are the
next requests of connections that were kept.
"""

import asyncio
from typing import cast

from aiohttp import web

from paceline.server import http_guard
from paceline.server.byte_budget import ByteBudget, ByteHolder, no_room, source_of
from paceline.server.connections import Connection, Places
from paceline.server.http_guard import GuardedHandler, head_too_late, refusal
from paceline.server.turns import Dropping, Turns

TURN_REQUESTS_MAX = 8
"""Some 3 ms. The first request of a connection counts twice."""
TURN_ENDS_MAX = 16
HEAD_BYTES = 8 * 1024
"""A head that is longer is left to aiohttp, which bounds it."""
_END_OF_HEAD = b"\r\n\r\n"


class Guard:
    """The protocol factory of a listener."""

    def __init__(
        self, server: web.Server, budget: ByteBudget, places: Places, *, always: tuple[str, ...]
    ) -> None:
        """`always`: how paths begin that are answered to whoever finds no place."""
        self._server = server
        self.budget = budget
        self._places = places
        self._always = always
        self._silent: dict[Arrival, float] = {}
        """Connections without a whole head, and when their time is over; the oldest first."""
        self._late: asyncio.TimerHandle | None = None
        self._requests = Turns(TURN_REQUESTS_MAX)
        self._ends = Turns(TURN_ENDS_MAX)
        self._dropping = Dropping()

    def __call__(self) -> "Arrival":
        return Arrival(self)

    def close(self) -> None:
        """End the connections that have asked nothing yet; the runner knows the others."""
        if self._late is not None:
            self._late.cancel()
        self._dropping.close()
        for arrival in list(self._silent):
            arrival.abort()

    def arrived(self, arrival: "Arrival", address: str) -> Connection | None:
        """Its place, if there is one."""
        place, displaced = self._places.open(address)
        if displaced is not None:
            self._ends.add(displaced.close, address)
        if place is not None:
            loop = asyncio.get_running_loop()
            self._silent[arrival] = loop.time() + http_guard.HEADER_TIMEOUT_S
            if self._late is None:
                self._late = loop.call_later(http_guard.HEADER_TIMEOUT_S, self._end_the_late)
        return place

    def gone(self, arrival: "Arrival") -> None:
        """It has ended, or become more than that."""
        self._silent.pop(arrival, None)

    def serves(self, arrival: "Arrival") -> None:
        """A handler is made for it, which takes as long as a request."""
        self._requests.spend(1)
        self.gone(arrival)

    def asked(self, arrival: "Arrival") -> bool:
        """Its head is whole: it is served now, or in a later turn (False)."""
        return self._requests.add(arrival.serve, arrival.address)

    def handler(self, place: Connection, holder: ByteHolder) -> GuardedHandler:
        """For a connection that has asked."""
        return GuardedHandler(
            self._server,
            place,
            holder,
            dropping=self._dropping,
            turns=self._requests,
            always=self._always,
        )

    def _end_the_late(self) -> None:
        self._late = None
        loop = asyncio.get_running_loop()
        while self._silent:
            arrival, ends_at = next(iter(self._silent.items()))
            if ends_at > loop.time():
                self._late = loop.call_at(ends_at, self._end_the_late)
                return
            del self._silent[arrival]
            self._ends.add(arrival.end_late, arrival.address)


class Arrival(asyncio.Protocol):
    """A connection until its first request head is whole."""

    __slots__ = ("_guard", "_has_asked", "_holder", "_place", "_said", "_transport", "address")

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self.address = ""
        self._place: Connection | None = None
        self._said = b""
        self._has_asked = False
        self._holder: ByteHolder | None = None
        """Of what it has said."""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses
        end = transport.get_extra_info("peername")
        self.address = "" if end is None else source_of(end[0])
        self._place = self._guard.arrived(self, self.address)
        if self._place is None:
            self.abort()
        else:
            self._place.close = self.abort

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        if self._place is None or transport is None or transport.is_closing():
            return
        if self._holder is None:
            self._holder = self._guard.budget.holder(self.address)
        if not self._holder.take(len(data)):
            transport.write(refusal(no_room("this request")))
            transport.close()
            return
        said = self._said = self._said + data
        is_http = b"A" <= said[:1] <= b"Z"
        if self._has_asked or (is_http and _END_OF_HEAD not in said and len(said) < HEAD_BYTES):
            return
        self._has_asked = True
        if not self._guard.asked(self):
            transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._guard.gone(self)
        if self._place is not None:
            self._place.gone()
        if self._holder is not None:
            self._holder.close()

    def serve(self) -> None:
        """Let a handler have the connection, if it is still there."""
        transport, place, holder = self._transport, self._place, self._holder
        if transport is None or place is None or holder is None or transport.is_closing():
            return
        self._guard.serves(self)
        holder.give(len(self._said))  # the handler takes it
        handler = self._guard.handler(place, holder)
        transport.set_protocol(handler)
        handler.connection_made(transport)
        if not transport.is_reading():
            transport.resume_reading()
        handler.data_received(self._said)

    def end_late(self) -> None:
        """Its time is over."""
        transport = self._transport
        if transport is None or self._has_asked:
            self.abort()
        elif self._said:
            transport.write(head_too_late())
            transport.close()
        else:
            transport.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
