"""Filters made known to the broker of one connection: a fetch names them by number.

The numbers mean something on that broker only and are asked for anew on every connection.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from paceline.errors import PacelineError
from paceline.filters import ALL, Filter
from paceline.net.cluster import BrokerConnection
from paceline.platform.runtime import spawn
from paceline.wire.calls.pop import Filter as FilterCall

if TYPE_CHECKING:
    import asyncio

    from paceline.consumer.fetch.fetched import QueueFetch

_TIMEOUT_MS = 5_000
_Text = tuple[str, str]


class RegisteredFilters:
    """What one fetch session has registered with the present connection."""

    def __init__(self, changed: Callable[[bool], None]) -> None:
        """`changed(failed)` is called when a registration has ended."""
        self._changed = changed
        self._ids: dict[_Text, int] = {}
        self._under_way: dict[_Text, asyncio.Task[None]] = {}
        self._is_closed = False

    def forget(self) -> None:
        """Another connection, or the broker has forgotten them."""
        self._ids.clear()
        for task in self._under_way.values():
            task.cancel()
        self._under_way.clear()

    def close(self) -> None:
        self._is_closed = True
        self.forget()

    def id_of(self, wanted: Filter) -> int:
        """The number to fetch with; 0 for everything."""
        return 0 if wanted is ALL else self._ids[wanted.type, wanted.expression]

    def is_missing(self, wanted: Filter) -> bool:
        return wanted is not ALL and (wanted.type, wanted.expression) not in self._ids

    def ready(
        self, connection: BrokerConnection, queues: "Sequence[QueueFetch]"
    ) -> "list[QueueFetch]":
        """Those that can be asked for now; the filters of the others are being registered."""
        found = []
        for queue in queues:
            if not self.is_missing(queue.wanted):
                found.append(queue)
                continue
            text = queue.wanted.type, queue.wanted.expression
            if text not in self._under_way and not self._is_closed:
                self._under_way[text] = spawn(self._register(connection, text), name="filter")
        return found

    async def _register(self, connection: BrokerConnection, text: _Text) -> None:
        request = FilterCall(type=text[0], expression=text[1])
        try:
            answer, _ = await connection.call(request, timeout_ms=_TIMEOUT_MS)
        except PacelineError:
            del self._under_way[text]
            self._changed(True)
            return
        del self._under_way[text]
        self._ids[text] = answer.filter_id
        self._changed(False)
