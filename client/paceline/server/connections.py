"""Pure: which connections a listener keeps, and which one it closes for a new one (ADR 18).

Who may have how many follows from what is left, as with bytes (byte_budget.py): an address may
hold as many as are free. One address alone gets half of all; whoever comes from another finds half
of the rest. Whoever comes beyond his share takes the place of a connection of his own: the oldest
that has never asked anything, else the one that has been idle longest. What is busy stays.
"""

from collections.abc import Callable
from enum import IntEnum

CONNECTIONS_MAX = 8000
"""Below the usual limit of open files, which replication and segments share."""
ALWAYS_COUNT = 2
"""An address may have so many while there is room at all, or while another has more of them."""

RESERVE_DIVISOR, RESERVE_MIN = 16, 32
"""Connections come and go quickly there."""


class ConnectionState(IntEnum):
    """Of a connection; the lower goes first."""

    SILENT = 0
    """It has never asked anything."""
    IDLE = 1
    BUSY = 2


class Connection:
    """One that has a place. `close` and `is_idle` are the shell's."""

    __slots__ = (
        "_owner",
        "_release",
        "_source",
        "close",
        "holder",
        "is_idle",
        "is_open",
        "is_reserved",
        "standing",
    )

    def __init__(self, owner: "Connections", source: "_Source") -> None:
        self._owner = owner
        self._source = source
        self.standing = ConnectionState.SILENT
        self.is_open = True
        """It has its place."""
        self.is_reserved = owner.is_reserve
        """It has a place for those only who ask for what is always answered."""
        self.close: Callable[[], None] = _nothing
        self.is_idle: Callable[[], bool] = _yes
        """Asked before an idle one is closed: who is busy without having said so stays."""
        self.holder: str | None = None
        """The user that it counts for; None: nobody yet."""
        self._release: Callable[[], None] = _nothing

    @property
    def address(self) -> str:
        """Where it comes from, as it counts."""
        return self._source.address

    def hold(self, holder: str, take: Callable[[str], Callable[[], None]]) -> None:
        """Count it for `holder` until it has ended. `take` counts it, or raises, and gives what is
        to be called then."""
        if not self.is_open or self.holder == holder:
            return
        self.release()
        self._release = take(holder)
        self.holder = holder

    def release(self) -> None:
        """It counts for nobody."""
        release, self._release, self.holder = self._release, _nothing, None
        release()

    def is_now(self, standing: ConnectionState) -> None:
        """It asks, or has been answered."""
        if self.is_open and standing is not self.standing:
            self._source.by_standing[self.standing].pop(self, None)
            self.standing = standing
            self._source.by_standing[standing][self] = None

    def ended(self) -> None:
        """It is closed, or counts no more: its place is free. Again: nothing."""
        self._owner._ended(self)

    def gone(self) -> None:
        """It is closed. It forgets the shell: their cycle would wait for a collection of garbage,
        which stops the loop."""
        self.ended()
        self.close, self.is_idle = _nothing, _yes


class Connections:
    """Of one listener. Owner: its event loop."""

    def __init__(self, limit: int, *, is_reserve: bool = False) -> None:
        self.limit = limit
        self.is_reserve = is_reserve
        self.count = 0
        self.displaced = 0
        """Closed to make room for another one."""
        self.refused = 0
        self._sources: dict[str, _Source] = {}

    def open(self, address: str) -> tuple[Connection | None, Connection | None]:
        """A place for a connection from `address` (`source_of`), None if there is none; and which
        other one has to be closed for it, if that is so: it has lost its place already."""
        source = self._sources.get(address)
        held = 0 if source is None else source.count
        victim = None
        if held >= max(ALWAYS_COUNT, self.limit - self.count):
            assert source is not None
            victim = source.oldest()
        elif self.count >= self.limit:
            largest = max(self._sources.values(), key=lambda each: each.count)
            victim = largest.oldest() if largest.count > held else None
        else:
            return self._add(address), None
        if victim is None:
            self.refused += 1
            return None, None
        self.displaced += 1
        self._ended(victim)
        return self._add(address), victim

    def _add(self, address: str) -> Connection:
        source = self._sources.get(address)
        if source is None:
            source = self._sources[address] = _Source(address)
        connection = Connection(self, source)
        source.count += 1
        source.by_standing[ConnectionState.SILENT][connection] = None
        self.count += 1
        return connection

    def _ended(self, connection: Connection) -> None:
        if not connection.is_open:
            return
        connection.is_open = False
        connection.release()
        source = connection._source
        del source.by_standing[connection.standing][connection]
        source.count -= 1
        self.count -= 1
        if not source.count:
            del self._sources[source.address]


class Places:
    """The connections of a listener, and a reserve for questions that are always answered: who
    finds no place gets one there, and may ask those only."""

    def __init__(self, limit: int) -> None:
        self.common = Connections(limit)
        self.reserve = Connections(max(RESERVE_MIN, limit // RESERVE_DIVISOR), is_reserve=True)

    def open(self, address: str) -> tuple[Connection | None, Connection | None]:
        """As `Connections.open`."""
        place, displaced = self.common.open(address)
        return (place, displaced) if place is not None else self.reserve.open(address)

    @property
    def count(self) -> int:
        return self.common.count + self.reserve.count


class _Source:
    """The connections of one address, each standing in the order in which they came to it."""

    __slots__ = ("address", "by_standing", "count")

    def __init__(self, address: str) -> None:
        self.address = address
        self.count = 0
        self.by_standing: tuple[dict[Connection, None], ...] = ({}, {}, {})

    def oldest(self) -> Connection | None:
        """That of the lowest standing which may be closed."""
        for standing in (ConnectionState.SILENT, ConnectionState.IDLE):
            while (connection := next(iter(self.by_standing[standing]), None)) is not None:
                if connection.is_idle():
                    return connection
                connection.is_now(ConnectionState.BUSY)
        return None


def _nothing() -> None:
    return None


def _yes() -> bool:
    return True
