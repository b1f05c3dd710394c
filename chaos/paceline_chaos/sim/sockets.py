"""A TCP socket as programs see it; the simulated kernel's half of asyncio's transports.

`SimSocket` stands for `socket.socket` while a simulation runs (see patches). It has the calls that
asyncio makes, non-blocking, with the errors of Linux. What it sends goes to `network.Network`,
which brings it to the peer later; what it has received waits here until the program reads it.
Readiness is level-triggered as with epoll: a socket that stays readable is reported again.
"""

import asyncio
import errno
import os
import socket as _socket
import struct
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, Protocol, cast

from paceline_chaos.sim.handles import SimHandle
from paceline_chaos.sim.loop import SimLoop
from paceline_chaos.sim.machine import Machine
from paceline_chaos.sim.process import Process

WINDOW_BYTES = 256 * 1024
"""What the kernels of both sides hold together before a writer must wait."""
CREDIT_BYTES = WINDOW_BYTES // 4
"""A reader tells the writer of so much room at once; earlier if the writer waits."""
WRITABLE_BYTES = WINDOW_BYTES // 3
"""Linux: a blocked writer is woken when a third of the buffer is free."""
FD_FIRST = 1000

_LINGER_ZERO = struct.pack("ii", 1, 0)

FIN: Final = b""
"""In flight: the peer sends no more. Empty, as no segment is."""


class Mark:
    """Something in flight that is not data."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


RST: Final = Mark("RST")
ACK: Final = Mark("ACK")
"""The third step of the handshake: the server may accept."""

Address = tuple[str, int]


def os_error(code: int) -> OSError:
    """With Python's class for the code: ConnectionResetError and so on."""
    return OSError(code, os.strerror(code))


class Network(Protocol):
    """The kernel's part of a socket."""

    def next_number(self) -> int: ...

    def bind(self, socket: "SimSocket", ip: str, port: int, /) -> None: ...

    def connect(self, socket: "SimSocket", address: Address, /) -> None: ...

    def transmit(self, socket: "SimSocket", chunk: bytes, /) -> None: ...

    def fly(self, socket: "SimSocket", what: bytes | Mark, /) -> None: ...

    def credit(self, socket: "SimSocket", /) -> None: ...

    def closed(self, socket: "SimSocket", /) -> None: ...

    def vanished(self, socket: "SimSocket", /) -> None: ...


class _Readiness:
    """Entry of the ready queue: a socket may be readable (writable) for its watcher."""

    __slots__ = ("_cancelled", "is_queued", "is_reading", "sequence", "socket")

    def __init__(self, socket: "SimSocket", *, is_reading: bool) -> None:
        self.socket = socket
        self.is_reading = is_reading
        self.is_queued = False
        self._cancelled = False
        self.sequence = socket.number << 1 | is_reading

    def _run(self) -> None:
        socket = self.socket
        self.is_queued = False
        if self.is_reading:
            if socket.reader is not None and socket.is_readable():
                socket.reader._run()
                socket.wake_reader()
        elif socket.writer is not None and socket.is_writable():
            socket.writer._run()
            socket.wake_writer()


class SimSocket:
    """One end of a connection, or a listener. Owner: its process; the network changes it too."""

    def __init__(
        self, family: int = -1, type: int = -1, proto: int = -1, fileno: int | None = None
    ) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop), "a simulated socket outside of a simulation"
        assert fileno is None, "a descriptor of the real system in a simulation"
        assert family in (-1, _socket.AF_INET), f"only IPv4 is simulated, not {family}"
        assert type in (-1, _socket.SOCK_STREAM), f"only TCP is simulated, not {type}"
        if loop.current.is_dead:
            raise os_error(errno.EBADF)
        self._set_up(loop.current)

    @classmethod
    def of(cls, owner: Process) -> "SimSocket":
        """A socket that the kernel makes for a process: an incoming connection."""
        made = cls.__new__(cls)
        made._set_up(owner)
        return made

    def _set_up(self, owner: Process) -> None:
        assert isinstance(owner.machine, Machine), "a socket needs a machine"
        self.machine = owner.machine
        self.loop = loop = self.machine.loop
        self.network = cast(Network, self.machine.network)
        self.owner = owner
        self.number = self.network.next_number()
        self.family, self.type, self.proto = _socket.AF_INET, _socket.SOCK_STREAM, 6
        self.local: Address | None = None
        self.remote: Address | None = None
        self.peer: SimSocket | None = None
        self.link: Any = None
        """The `network.Link` to its peer."""
        self.is_open = True
        """The program has not closed it and the process lives."""
        self.is_connecting = False
        self.is_connected = False
        self.is_vanished = False
        """Its machine lost power: it never existed for the kernel that runs now."""
        self.accepting: deque[SimSocket] | None = None
        self.listener: SimSocket | None = None
        """Of an incoming connection that was not yet offered to the program."""
        self.backlog = 0
        # Sending
        self.flight: deque[bytes | Mark] = deque()
        self.last_arrival_ns = 0
        self.unread_by_peer = 0
        self.is_blocked = False
        self.is_write_shut = False
        self.held_since_ns: int | None = None
        """Since when nothing of it arrives."""
        # Receiving
        self.received: deque[bytes] = deque()
        self.has_eof = False
        self.uncredited = 0
        self.error = 0
        self.is_reset = False
        # Watchers
        self.reader: SimHandle | None = None
        self.writer: SimHandle | None = None
        self._reading = _Readiness(self, is_reading=True)
        self._writing = _Readiness(self, is_reading=False)
        self._options: dict[tuple[int, int], Any] = {}
        loop.sockets[self.fileno()] = self
        owner.sockets[self.number] = self

    def __repr__(self) -> str:
        return f"<SimSocket {self.number} {self.local} {self.remote}>"

    def __enter__(self) -> "SimSocket":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the program's side: set-up ----------------------------------------------------------------

    def fileno(self) -> int:
        return FD_FIRST + self.number

    def setblocking(self, flag: bool) -> None: ...

    def gettimeout(self) -> float:
        return 0.0

    def setsockopt(self, level: int, option: int, value: Any) -> None:
        self._options[level, option] = value

    def getsockopt(self, level: int, option: int, size: int = 0) -> Any:
        if (level, option) == (_socket.SOL_SOCKET, _socket.SO_ERROR):
            code, self.error = self.error, 0
            return code
        return self._options.get((level, option), 0)

    def getsockname(self) -> Address:
        return self.local or ("0.0.0.0", 0)

    def getpeername(self) -> Address:
        if self.remote is None or not self.is_connected:
            raise os_error(errno.ENOTCONN)
        return self.remote

    def bind(self, address: Any) -> None:
        self._check()
        self.network.bind(self, str(address[0]), int(address[1]))

    def listen(self, backlog: int = 128) -> None:
        self._check()
        if self.local is None:
            self.bind(("0.0.0.0", 0))
        self.backlog = backlog
        if self.accepting is None:
            self.accepting = deque()

    def accept(self) -> tuple["SimSocket", Address]:
        self._check()
        if self.accepting is None:
            raise os_error(errno.EINVAL)
        if not self.accepting:
            raise BlockingIOError(errno.EAGAIN, "no connection waits")
        accepted = self.accepting.popleft()
        assert accepted.remote is not None
        return accepted, accepted.remote

    def connect(self, address: Any) -> None:
        self._check()
        if self.is_connected or self.is_connecting:
            raise os_error(errno.EISCONN if self.is_connected else errno.EALREADY)
        self.is_connecting = True
        self.network.connect(self, (str(address[0]), int(address[1])))
        raise BlockingIOError(errno.EINPROGRESS, "the connection is being made")

    # -- the program's side: bytes -----------------------------------------------------------------

    def send(self, data: Any, flags: int = 0) -> int:
        self._check()
        if self.error:
            code, self.error = self.error, 0
            raise os_error(code)
        if self.is_reset or self.is_write_shut:
            raise os_error(errno.EPIPE)
        if not self.is_connected:
            raise os_error(errno.ENOTCONN)
        room = WINDOW_BYTES - self.unread_by_peer
        if room <= 0:
            self.is_blocked = True
            raise BlockingIOError(errno.EAGAIN, "the window is full")
        chunk = bytes(data)
        if len(chunk) > room:
            chunk = chunk[:room]
            self.is_blocked = True
        if chunk:
            self.unread_by_peer += len(chunk)
            self.network.transmit(self, chunk)
        return len(chunk)

    def sendmsg(self, buffers: Iterable[Any]) -> int:
        """What asyncio's transports write with since Python 3.12."""
        return self.send(b"".join(buffers))

    def recv(self, size: int, flags: int = 0) -> bytes:
        self._check()
        received = self.received
        if not received:
            return self._nothing_received()
        chunk = received.popleft()
        if len(chunk) > size:
            received.appendleft(chunk[size:])
            chunk = chunk[:size]
        elif received and len(chunk) + len(received[0]) <= size:
            chunk = self._joined(chunk, size)
        self._consumed(len(chunk))
        return chunk

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        chunk = self.recv(nbytes or len(buffer))
        buffer[: len(chunk)] = chunk
        return len(chunk)

    def _nothing_received(self) -> bytes:
        if self.error:
            code, self.error = self.error, 0
            raise os_error(code)
        if self.has_eof or self.is_reset:
            return b""
        raise BlockingIOError(errno.EAGAIN, "nothing has arrived")

    def _joined(self, chunk: bytes, size: int) -> bytes:
        """Whole segments that lie there, up to `size` bytes: one read takes them all."""
        chunks, total, received = [chunk], len(chunk), self.received
        while received and total + len(received[0]) <= size:
            total += len(received[0])
            chunks.append(received.popleft())
        return b"".join(chunks)

    def _consumed(self, size: int) -> None:
        self.uncredited += size
        peer = self.peer
        assert peer is not None
        if self.uncredited >= CREDIT_BYTES or peer.is_blocked:
            self.network.credit(self)

    def shutdown(self, how: int) -> None:
        self._check()
        if not self.is_connected or self.is_reset:
            raise os_error(errno.ENOTCONN)
        if how in (_socket.SHUT_WR, _socket.SHUT_RDWR) and not self.is_write_shut:
            self.is_write_shut = True
            self.network.fly(self, FIN)

    def close(self) -> None:
        if self.is_open:
            self._leave()
            self.network.closed(self)

    def detach(self) -> int:
        raise NotImplementedError("a simulated socket has no descriptor of its own")

    @property
    def resets_on_close(self) -> bool:
        """Linux: unread bytes, or SO_LINGER of zero seconds."""
        linger = self._options.get((_socket.SOL_SOCKET, _socket.SO_LINGER))
        return bool(self.received) or linger == _LINGER_ZERO

    def _check(self) -> None:
        if not self.is_open:
            raise os_error(errno.EBADF)

    def _leave(self) -> None:
        self.is_open = False
        self.owner.sockets.pop(self.number, None)
        self.loop.sockets.pop(self.fileno(), None)

    def orphan(self, *, is_silent: bool) -> None:
        """The process has died. Watchers stay where they are: they hold the buried alive."""
        self._leave()
        if is_silent:
            self.is_vanished = True
            self.network.vanished(self)
        else:
            self.network.closed(self)

    # -- readiness ---------------------------------------------------------------------------------

    def is_readable(self) -> bool:
        return bool(self.received or self.accepting or self.has_eof or self.error or self.is_reset)

    def is_writable(self) -> bool:
        if self.error or self.is_reset:
            return True
        return self.is_connected and WINDOW_BYTES - self.unread_by_peer >= WRITABLE_BYTES

    def watch_reading(self, handle: SimHandle) -> SimHandle:
        if self.reader is not None:
            self.reader.cancel()
        self.reader = handle
        self.wake_reader()
        return handle

    def unwatch_reading(self) -> bool:
        handle, self.reader = self.reader, None
        if handle is not None:
            handle.cancel()
        return handle is not None

    def watch_writing(self, handle: SimHandle) -> SimHandle:
        if self.writer is not None:
            self.writer.cancel()
        self.writer = handle
        self.wake_writer()
        return handle

    def unwatch_writing(self) -> bool:
        handle, self.writer = self.writer, None
        if handle is not None:
            handle.cancel()
        return handle is not None

    def wake_reader(self) -> None:
        readiness = self._reading
        if self.reader is not None and not readiness.is_queued and self.is_readable():
            readiness.is_queued = True
            self.loop.push(self.owner, readiness)

    def wake_writer(self) -> None:
        readiness = self._writing
        if self.writer is not None and not readiness.is_queued and self.is_writable():
            readiness.is_queued = True
            self.loop.push(self.owner, readiness)
