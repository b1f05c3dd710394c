"""Pure: the budget of bytes of a node, over all connections and endpoints (ADR 18).

Counted is what has been allocated or received and is not answered yet, what was decompressed, and
answers that nobody has taken. What a head announces is not counted, and nothing is allocated for
it. Everything is held in the name of a connection (`ByteHolder`), and each connection belongs to
the address that it came from.

Who may have how much follows from what is left, not from the number of clients, which nobody
knows: an address may hold as much as is left free, one connection a quarter of that. So one
address alone gets half of the budget, two that come together a third each, and whoever comes next
finds half of the rest. (Dynamic thresholds: Choudhury and Hahne, IEEE/ACM Transactions on
Networking 6, 1998.)
"""

from ipaddress import IPv6Address

from paceline.errors import OverloadedError

MIB = 1024 * 1024
LIMIT_BYTES = 192 * MIB
"""A node of some 100 MiB stays below 400 MiB, with what its allocator cannot use again at once."""
LIMIT_BYTES_MIN = 96 * MIB
"""One connection then still gets a batch of the largest size (16 MiB)."""
FLOOR_BYTES = 16 * 1024
"""What a connection gets whatever the others hold, out of the reserve: a question about health, a
small message. 1,500 connections have that much of the usual reserve."""
JSON_FACTOR = 8
"""A JSON document is held for so many times its text: what is made of it takes up to 25 times that
(empty lists, measured), and 5 times for ordinary messages."""
_RESERVE_DIVISOR = 8
_CONNECTION_DIVISOR = 4


class ByteBudget:
    """The budget of one node. Owner: its event loop."""

    __slots__ = (
        "_addresses",
        "_common_bytes",
        "limit_bytes",
        "peak_bytes",
        "refused",
        "used_bytes",
    )

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._common_bytes = limit_bytes - limit_bytes // _RESERVE_DIVISOR
        """Without the reserve, which is for floors and for peers."""
        self.used_bytes = 0
        self.peak_bytes = 0
        """The most that was held since whoever gives memory back has set it anew."""
        self.refused = 0
        self._addresses: dict[str, _Address] = {}

    def holder(self, address: str | None) -> "ByteHolder":
        """For one connection, or one piece of work. `address`: whom it is done for, without the
        port (`source_of`); None for a proven peer and for this node itself, which have no share
        but the whole budget with its reserve. `close` it in the end."""
        if address is None:
            return ByteHolder(self, None)
        found = self._addresses.get(address)
        if found is None:
            found = self._addresses[address] = _Address(address)
        found.holders += 1
        return ByteHolder(self, found)

    @property
    def addresses_count(self) -> int:
        return len(self._addresses)

    def _changed(self, address: "_Address | None", size_bytes: int) -> None:
        self.used_bytes += size_bytes
        if self.used_bytes > self.peak_bytes:
            self.peak_bytes = self.used_bytes
        if address is not None:
            address.held_bytes += size_bytes

    def _has_room(self, holder: "ByteHolder", size_bytes: int) -> bool:
        used, held = self.used_bytes + size_bytes, holder.held_bytes + size_bytes
        address = holder._address
        if address is None or held <= FLOOR_BYTES:
            return used <= self.limit_bytes
        free = self._common_bytes - used
        return held * _CONNECTION_DIVISOR <= free and address.held_bytes + size_bytes <= free

    def _left(self, address: "_Address") -> None:
        address.holders -= 1
        if not address.holders:
            assert address.held_bytes == 0, (address.name, address.held_bytes)
            del self._addresses[address.name]


class ByteHolder:
    """What one connection holds. Everything goes back by `close`, whatever was taken."""

    __slots__ = ("_address", "_budget", "held_bytes")

    def __init__(self, budget: ByteBudget, address: "_Address | None") -> None:
        self._budget = budget
        self._address = address
        self.held_bytes = 0

    def take(self, size_bytes: int) -> bool:
        """Hold so much more; False if that is over the share or the budget: nothing is held then,
        and the asker is refused (OVERLOADED) or not read from."""
        budget = self._budget
        if not budget._has_room(self, size_bytes):
            budget.refused += 1
            return False
        self.held_bytes += size_bytes
        budget._changed(self._address, size_bytes)
        return True

    def give(self, size_bytes: int) -> None:
        """Give back a part of it."""
        assert 0 <= size_bytes <= self.held_bytes, (size_bytes, self.held_bytes)
        self.held_bytes -= size_bytes
        self._budget._changed(self._address, -size_bytes)

    def hold(self, size_bytes: int) -> None:
        """Hold so much more whether there is room or not: what has been done already."""
        self.held_bytes += size_bytes
        self._budget._changed(self._address, size_bytes)

    def has_room(self, size_bytes: int) -> bool:
        """Whether `take` would succeed now; a refusal by it counts as one only in `take`."""
        return self._budget._has_room(self, size_bytes)

    def close(self) -> None:
        """Give everything back. Who takes something afterwards, as work that does not know yet that
        its connection has ended, gets nothing."""
        self.give(self.held_bytes)
        budget, self._budget = self._budget, _CLOSED
        if self._address is not None:
            budget._left(self._address)
            self._address = None


_CLOSED = ByteBudget(0)


class _Address:
    __slots__ = ("held_bytes", "holders", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.holders = 0
        self.held_bytes = 0


def no_room(what: str) -> OverloadedError:
    """The refusal of what found no room."""
    return OverloadedError(
        f"{what} finds no room in this node's memory for requests: send less at once, or let the"
        " operator of a broker raise request_bytes_max",
        retry_after_ms=100,
    )


def source_of(host: str) -> str:
    """Whose share a connection from `host` belongs to: of IPv6 the first 64 bits, since everybody
    who has one such address has all the others of its network as well."""
    if ":" not in host:
        return host
    address = IPv6Address(host.partition("%")[0])
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return f"{IPv6Address(int(address) >> 64 << 64)}/64"
