"""A network of our own in which the way from one loopback address to another can be cut.

A process enters a fresh network namespace before it starts anything (`enter`), brings loopback up
and moves the rule that finds local addresses behind rules of ours. A cut is then a policy rule:
packets from A to B vanish, and only in this direction. A connection that exists stalls, as on a
cable that was pulled, and goes on by itself when the rule has gone; a new one fails at once.

pyroute2 speaks to the kernel, so no `ip` program is needed; imported when a scenario cuts.
"""

import ctypes
import os
import socket
import struct
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from paceline.errors import ConfigError
from paceline_chaos.processes.shaping import Shaping

CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
_LOCAL_TABLE = 255
_CUT_PRIORITY = 5
_LOCAL_PRIORITY = 100
_LOOPBACK_INDEX = 1

Pair = tuple[str, str]


def enter() -> None:
    """Move this process into a network namespace of its own, as root or in a user namespace.

    Before any thread and any socket. ConfigError when the machine does not permit it.
    """
    user, group = os.getuid(), os.getgid()
    flags = CLONE_NEWNET if user == 0 else CLONE_NEWNET | CLONE_NEWUSER
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "unshare"):
        raise ConfigError("partitions need network namespaces, which only Linux has")
    if libc.unshare(flags) != 0:
        why = os.strerror(ctypes.get_errno())
        raise ConfigError(
            f"partitions need a network namespace, and this machine does not permit one ({why}): "
            "run as root, or allow unprivileged user namespaces"
        )
    if flags & CLONE_NEWUSER:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")


class Network:
    """The cuts of the namespace that this process is in. `async with`."""

    def __init__(self) -> None:
        self._cuts: Counter[Pair] = Counter()
        self._netlink: Any = None
        self._thin: Counter[Pair] = Counter()
        self._shaping: Shaping

    async def __aenter__(self) -> "Network":
        from pyroute2 import AsyncIPRoute

        self._netlink = AsyncIPRoute()
        await self._netlink.setup_endpoint()
        self._shaping = Shaping(self._netlink)
        await self._netlink.link("set", index=_LOOPBACK_INDEX, state="up")
        # Ours first: the kernel's own rule for local addresses has priority 0 and cannot be passed.
        await self._netlink.rule("add", priority=_LOCAL_PRIORITY, table=_LOCAL_TABLE)
        await self._netlink.rule("del", priority=0, table=_LOCAL_TABLE)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._netlink.close()

    async def cut(self, pairs: Iterable[Pair]) -> None:
        """Nothing gets from the first to the second address of each pair; cuts may overlap."""
        for pair in pairs:
            self._cuts[pair] += 1
            if self._cuts[pair] == 1:
                await self._rule("add", pair)

    async def heal(self, pairs: Iterable[Pair]) -> None:
        """The end of a `cut`."""
        for pair in pairs:
            assert self._cuts[pair] > 0, pair
            self._cuts[pair] -= 1
            if self._cuts[pair] == 0:
                await self._rule("del", pair)

    async def thin(self, pairs: Iterable[Pair], *, rate_kbit: int) -> None:
        """Only so much gets from the first to the second address; the last word counts."""
        pairs = list(pairs)
        self._thin.update(pairs)
        await self._shaping.slow(pairs, rate_kbit=rate_kbit)

    async def widen(self, pairs: Iterable[Pair]) -> None:
        """The end of a `thin`."""
        pairs = list(pairs)
        self._thin.subtract(pairs)
        await self._shaping.heal([pair for pair in pairs if self._thin[pair] <= 0])

    async def heal_all(self) -> None:
        """The end of all cuts, and of thin links."""
        self._thin.clear()
        await self._shaping.heal_all()
        for pair, count in self._cuts.items():
            if count > 0:
                await self._rule("del", pair)
        self._cuts.clear()

    async def _rule(self, command: str, pair: Pair) -> None:
        source, target = pair
        await self._netlink.rule(
            command, priority=_CUT_PRIORITY, src=source, dst=target, action="blackhole"
        )


# -- resets: the kernel ends connections, both sides hear of it (SOCK_DESTROY) ---------------------

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_SOCK_DESTROY = 21
_NLM_REQUEST, _NLM_ACK, _NLM_DUMP = 1, 4, 0x300
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI")  # inet_diag_req_v2 without its socket id
_SOCKET_ID = struct.Struct("!HH16s16s")  # ports and addresses of inet_diag_sockid
_SOCKET_ID_BYTES = 48
_ESTABLISHED = 1
_MESSAGE_HEAD_BYTES = 4  # of inet_diag_msg, before the socket id


def reset_connections(host: str) -> int:
    """Reset all established TCP connections from or to an address; how many."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as netlink:
        netlink.bind((0, 0))
        count = 0
        for identity in _established(netlink):
            _, _, source, target = _SOCKET_ID.unpack_from(identity)
            if socket.inet_aton(host) in (source[:4], target[:4]):
                body = _REQUEST.pack(socket.AF_INET, socket.IPPROTO_TCP, 0, 0) + identity
                _tell(netlink, _SOCK_DESTROY, _NLM_REQUEST | _NLM_ACK, body)
                count += _errors(netlink)
        return count


def _established(netlink: socket.socket) -> list[bytes]:
    """Socket ids as the kernel writes them."""
    states = 1 << _ESTABLISHED
    body = _REQUEST.pack(socket.AF_INET, socket.IPPROTO_TCP, 0, states) + bytes(_SOCKET_ID_BYTES)
    _tell(netlink, _SOCK_DIAG_BY_FAMILY, _NLM_REQUEST | _NLM_DUMP, body)
    found: list[bytes] = []
    while True:
        for kind, content in _messages(netlink.recv(1 << 16)):
            if kind == _NLMSG_DONE:
                return found
            if kind == _NLMSG_ERROR:
                raise ConfigError("the kernel does not list TCP connections (inet_diag)")
            found.append(content[_MESSAGE_HEAD_BYTES : _MESSAGE_HEAD_BYTES + _SOCKET_ID_BYTES])


def _errors(netlink: socket.socket) -> int:
    """1 if the kernel did it, 0 if the connection had gone."""
    for kind, content in _messages(netlink.recv(1 << 16)):
        if kind == _NLMSG_ERROR:
            number = -struct.unpack_from("=i", content)[0]
            if number == 95:  # EOPNOTSUPP
                raise ConfigError("this kernel resets no connections (INET_DIAG_DESTROY)")
            return 0 if number else 1
    return 0


def _tell(netlink: socket.socket, kind: int, flags: int, body: bytes) -> None:
    netlink.send(_HEADER.pack(_HEADER.size + len(body), kind, flags, 1, 0) + body)


def _messages(content: bytes) -> list[tuple[int, bytes]]:
    found = []
    at = 0
    while at + _HEADER.size <= len(content):
        size, kind, _, _, _ = _HEADER.unpack_from(content, at)
        found.append((kind, content[at + _HEADER.size : at + size]))
        at += (size + 3) & ~3
    return found
