"""Slow links: the kernel lets only so many bits a second pass from one loopback address to another.

One token bucket (HTB) for each ordered pair of addresses, found by a filter on source and target;
what has no bucket passes as before. What does not fit waits in a queue, so latency grows with the
load, as on a line that is too thin. Buckets stay: a link is healed by opening its bucket wide.
"""

import socket
import struct
from collections.abc import Iterable
from typing import Any

from paceline.errors import ConfigError

Pair = tuple[str, str]

_LOOPBACK_INDEX = 1
_ROOT = 0x10000
_FIRST_CLASS = 0x10
_IPV4 = 0x0800
_WIDE = "10gbit"
_BURST_BYTES = 16 * 1024
_SOURCE_AT, _TARGET_AT = 12, 16
"""Bytes of the addresses in an IPv4 header."""


class Shaping:
    """The slow links of this process's network namespace. Owned by its `Network`."""

    def __init__(self, netlink: Any) -> None:
        self._netlink = netlink
        self._classes: dict[Pair, int] = {}

    async def slow(self, pairs: Iterable[Pair], *, rate_kbit: int) -> None:
        """Only so much passes from the first to the second address of each pair."""
        for pair in pairs:
            if pair not in self._classes:
                await self._add(pair)
            await self._set_rate(pair, f"{rate_kbit}kbit")

    async def heal(self, pairs: Iterable[Pair]) -> None:
        """The end of `slow`."""
        for pair in pairs:
            await self._set_rate(pair, _WIDE)

    async def heal_all(self) -> None:
        await self.heal(self._classes)

    async def _add(self, pair: Pair) -> None:
        if not self._classes:
            await self._add_root()
        handle = _ROOT + _FIRST_CLASS + len(self._classes)
        self._classes[pair] = handle
        await self._class("add-class", handle, _WIDE)
        source, target = pair
        await self._netlink.tc(
            "add-filter",
            "u32",
            index=_LOOPBACK_INDEX,
            parent=_ROOT,
            prio=1,
            protocol=_IPV4,
            target=handle,
            keys=[_key(source, _SOURCE_AT), _key(target, _TARGET_AT)],
        )

    async def _add_root(self) -> None:
        from pyroute2.netlink.exceptions import NetlinkError

        try:
            await self._netlink.tc("add", "htb", index=_LOOPBACK_INDEX, handle=_ROOT, default=0)
        except NetlinkError as error:
            raise ConfigError(f"this kernel has no HTB to make links slow ({error})") from error

    async def _set_rate(self, pair: Pair, rate: str) -> None:
        await self._class("change-class", self._classes[pair], rate)

    async def _class(self, command: str, handle: int, rate: str) -> None:
        await self._netlink.tc(
            command,
            "htb",
            index=_LOOPBACK_INDEX,
            handle=handle,
            parent=_ROOT,
            rate=rate,
            burst=_BURST_BYTES,
        )


def _key(address: str, at: int) -> str:
    """What pyroute2 takes for: these four bytes of the header are this address."""
    (number,) = struct.unpack("!I", socket.inet_aton(address))
    return f"0x{number:08x}/0xffffffff+{at}"
