"""The wires between machines: TCP connections, their delays, and what goes wrong with them.

A `Link` is one direction between two machines, with its own latency; what is sent on a connection
arrives in order. A cut link holds everything (TCP sends it again): after `heal` it arrives, a
retransmission later. A one-way cut lets the other direction through, but its acknowledgements are
held, so that side stalls once the window is full.
"""

import errno
import random
import socket as _socket
from collections.abc import Iterator, Sequence
from typing import cast

from paceline_chaos.sim.loop import SimLoop
from paceline_chaos.sim.machine import Machine
from paceline_chaos.sim.sockets import ACK, FIN, RST, Address, Mark, SimSocket, os_error

BASE_NS, JITTER_NS = 150_000, 100_000
"""One way between two machines in one room; the jitter is the mean of an exponential."""
LOCAL_BASE_NS, LOCAL_JITTER_NS = 15_000, 5_000
SPLIT_SHARE, MERGE_SHARE = 0.15, 0.10
"""Of the segments: those cut in two, those joined with the one before."""
RETRANSMISSION_NS = (10_000_000, 1_000_000_000)
"""After a heal or a boot: when the other side tries again."""
SYN_RETRIES = 7
"""After 1, 2, 4 ... 64 s; then ETIMEDOUT, 127 s after the first."""
NO_HOST_NS = 3_000_000_000
"""EHOSTUNREACH: nobody answers ARP."""
USER_TIMEOUT_NS = 900_000_000_000
"""ETIMEDOUT of a connection whose bytes nobody acknowledges."""


class Link:
    """One direction between two machines. Owner: the network."""

    __slots__ = (
        "_exponential",
        "base_ns",
        "held",
        "held_credits",
        "is_cut",
        "jitter_ns",
        "source",
        "target",
    )

    def __init__(self, source: Machine, target: Machine, chance: random.Random) -> None:
        self.source = source
        self.target = target
        self.base_ns, self.jitter_ns = BASE_NS, JITTER_NS
        if source is target:
            self.base_ns, self.jitter_ns = LOCAL_BASE_NS, LOCAL_JITTER_NS
        self.is_cut = False
        self.held: dict[SimSocket, int] = {}
        """Senders, and how many of their segments would have arrived by now."""
        self.held_credits: list[tuple[SimSocket, int]] = []
        self._exponential = chance.expovariate

    def latency_ns(self) -> int:
        return self.base_ns + int(self._exponential(1.0) * self.jitter_ns)


class Network:
    """All links and the kernel's part of all sockets. Owner: `Simulation`."""

    def __init__(self, loop: SimLoop, seed: str) -> None:
        self.loop = loop
        self.machines: dict[str, Machine] = {}
        self._by_ip: dict[str, Machine] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._chance = random.Random(f"{seed}/network")
        self._number = 0
        loop.network = self

    def next_number(self) -> int:
        """Numbers of processes and sockets."""
        self._number += 1
        return self._number

    def add(self, machine: Machine) -> None:
        assert machine.name not in self.machines, f"two machines are called {machine.name}"
        assert machine.ip not in self._by_ip, f"two machines have the address {machine.ip}"
        self.machines[machine.name] = machine
        self._by_ip[machine.ip] = machine

    def forget(self) -> None:
        """The simulation is over: let go of all sockets."""
        self._links.clear()
        for machine in self.machines.values():
            machine.bound.clear()
            machine.unheard.clear()

    def link(self, source: Machine, target: Machine) -> Link:
        key = source.name, target.name
        link = self._links.get(key)
        if link is None:
            link = self._links[key] = Link(source, target, self._chance)
        return link

    # -- names and addresses -----------------------------------------------------------------------

    def resolve(self, host: str | bytes | None, *, is_passive: bool) -> str:
        """The address of a name. Raises gaierror."""
        name = host.decode() if isinstance(host, bytes) else host
        if not name:
            return "0.0.0.0" if is_passive else "127.0.0.1"
        if name == "localhost":
            return "127.0.0.1"
        if name in self.machines:
            return self.machines[name].ip
        if name.replace(".", "").isdigit():
            return name
        raise _socket.gaierror(_socket.EAI_NONAME, "Name or service not known")

    def machine_at(self, ip: str, seen_from: Machine) -> Machine | None:
        machine = self._by_ip.get(ip)
        if machine is None and (ip.startswith("127.") or ip == "0.0.0.0"):
            return seen_from
        return machine

    def bind(self, socket: SimSocket, ip: str, port: int) -> None:
        machine = socket.machine
        if ip == "":
            ip = "0.0.0.0"
        if self.machine_at(ip, machine) is not machine:
            raise os_error(errno.EADDRNOTAVAIL)
        if port == 0:
            port = machine.free_port()
        for (other, taken), holder in machine.bound.items():
            if taken == port and (other == ip or "0.0.0.0" in (other, ip)) and holder.is_open:
                raise os_error(errno.EADDRINUSE)
        socket.local = ip, port
        machine.bound[ip, port] = socket

    def _listener(self, machine: Machine, address: Address) -> SimSocket | None:
        for key in (address, ("0.0.0.0", address[1])):
            listener: SimSocket | None = machine.bound.get(key)
            if listener is not None and listener.accepting is not None:
                return listener
        return None

    # -- connecting --------------------------------------------------------------------------------

    def connect(self, socket: SimSocket, address: Address) -> None:
        source = socket.machine
        if address[0] == "0.0.0.0":
            address = "127.0.0.1", address[1]
        target = self.machine_at(address[0], source)
        if socket.local is None:
            ip = address[0] if target is source else source.ip
            socket.local = ip, source.free_port()
            source.bound[socket.local] = socket
        socket.remote = address
        if target is None:
            self.loop.kernel_at(self.loop.now_ns + NO_HOST_NS, self._no_host, socket)
            return
        socket.link = self.link(source, target)
        self._syn((socket, 0))

    def _no_host(self, socket: SimSocket) -> None:
        self._fail(socket, errno.EHOSTUNREACH)

    def _fail(self, socket: SimSocket, code: int) -> None:
        if socket.is_connecting and socket.is_open:
            socket.is_connecting = False
            socket.error = code
            socket.wake_writer()

    def _syn(self, work: tuple[SimSocket, int]) -> None:
        socket, attempt = work
        if not socket.is_connecting or not socket.is_open:
            return
        if attempt == SYN_RETRIES:
            self._fail(socket, errno.ETIMEDOUT)
            return
        assert socket.link is not None
        now = self.loop.now_ns
        self.loop.kernel_at(now + socket.link.latency_ns(), self._syn_arrives, socket)
        self.loop.kernel_at(now + (1_000_000_000 << attempt), self._syn, (socket, attempt + 1))

    def _syn_arrives(self, socket: SimSocket) -> None:
        link = socket.link
        assert link is not None
        assert socket.remote is not None
        if link.is_cut or not link.target.is_up or not socket.is_open:
            return
        listener = self._listener(link.target, socket.remote)
        if listener is not None and len(listener.accepting or ()) >= max(listener.backlog, 1):
            return  # dropped; the client tries again
        back = self.link(link.target, link.source)
        when = self.loop.now_ns + back.latency_ns()
        self.loop.kernel_at(when, self._syn_answered, (socket, listener, back))

    def _syn_answered(self, work: tuple[SimSocket, SimSocket | None, Link]) -> None:
        socket, listener, back = work
        if back.is_cut or not socket.is_connecting or not socket.is_open:
            return
        if listener is not None and listener.is_vanished:
            return
        if listener is None or not listener.is_open:
            self._fail(socket, errno.ECONNREFUSED)
            return
        assert socket.remote is not None
        assert socket.local is not None
        server = SimSocket.of(listener.owner)
        server.local, server.remote = socket.remote, socket.local
        server.link, server.peer, socket.peer = back, socket, server
        server.is_connected = socket.is_connected = True
        socket.is_connecting = False
        server.listener = listener
        self.fly(socket, ACK)
        socket.wake_writer()

    # -- carrying ----------------------------------------------------------------------------------

    def transmit(self, socket: SimSocket, chunk: bytes) -> None:
        """Send data of a connection: whole, in two, or together with what is on its way."""
        flight = socket.flight
        chance = self._chance.random()
        if chance < MERGE_SHARE and flight:
            last = flight[-1]
            if last and not isinstance(last, Mark):
                flight[-1] = last + chunk
                return
        elif chance > 1 - SPLIT_SHARE and len(chunk) > 1:
            at = 1 + int(self._chance.random() * (len(chunk) - 1))
            self.fly(socket, chunk[:at])
            chunk = chunk[at:]
        self.fly(socket, chunk)

    def fly(self, socket: SimSocket, segment: bytes | Mark) -> None:
        """Put a segment on the wire; it arrives after all before it."""
        link = socket.link
        assert link is not None
        socket.flight.append(segment)
        when = max(self.loop.now_ns, socket.owner.busy_until_ns) + link.latency_ns()
        socket.last_arrival_ns = when = max(when, socket.last_arrival_ns + 1)
        self.loop.kernel_at(when, self._arrive, socket)

    def _arrive(self, socket: SimSocket) -> None:
        """The next segment of a sender reaches the other kernel."""
        link, target = socket.link, socket.peer
        if not socket.flight or link is None or target is None:
            return
        if link.is_cut:
            link.held[socket] = link.held.get(socket, 0) + 1
            self._unheard(socket)
            return
        if not link.target.is_up:
            link.target.unheard[socket] = None
            self._unheard(socket)
            return
        socket.held_since_ns = None
        segment = socket.flight.popleft()
        if segment is RST:
            self._was_reset(target, errno.ECONNRESET)
        elif not target.is_open:
            if segment is not FIN or target.is_vanished:
                self._refuse(target)
        elif segment is ACK:
            self._accepted(target)
        elif segment == FIN:
            target.has_eof = True
            target.wake_reader()
        else:
            assert isinstance(segment, bytes)
            self.loop.trace.arrived(self.loop.now_ns, target.number, segment)
            target.received.append(segment)
            target.wake_reader()

    def _unheard(self, socket: SimSocket) -> None:
        """Nobody acknowledges: the kernel tries again for a long time, then gives up."""
        if socket.held_since_ns is None:
            socket.held_since_ns = self.loop.now_ns
            self.loop.kernel_at(self.loop.now_ns + USER_TIMEOUT_NS, self._give_up, socket)

    def _give_up(self, socket: SimSocket) -> None:
        since_ns = socket.held_since_ns
        if since_ns is not None and self.loop.now_ns - since_ns >= USER_TIMEOUT_NS:
            self._was_reset(socket, errno.ETIMEDOUT)

    def _accepted(self, server: SimSocket) -> None:
        listener = server.listener
        if listener is None or listener.accepting is None or not listener.is_open:
            self._refuse(server)
            server._leave()
            return
        listener.accepting.append(server)
        listener.wake_reader()

    def _refuse(self, socket: SimSocket) -> None:
        """RST from a socket that is no more, to whoever still talks to it."""
        if not (socket.flight and socket.flight[-1] is RST):
            self.fly(socket, RST)

    def _was_reset(self, socket: SimSocket, code: int) -> None:
        if socket.is_open and not socket.is_reset:
            socket.is_reset = True
            socket.error = code
            socket.flight.clear()
            socket.wake_reader()
            socket.wake_writer()

    def credit(self, reader: SimSocket) -> None:
        """The reader's kernel tells of room in the window."""
        size, reader.uncredited = reader.uncredited, 0
        assert reader.link is not None
        when = self.loop.now_ns + reader.link.latency_ns()
        self.loop.kernel_at(when, self._credited, (reader, size))

    def _credited(self, work: tuple[SimSocket, int]) -> None:
        reader, size = work
        writer, link = reader.peer, reader.link
        assert writer is not None
        assert link is not None
        if link.is_cut:
            link.held_credits.append(work)
            return
        writer.unread_by_peer -= size
        if writer.is_blocked and writer.is_writable():
            writer.is_blocked = False
            writer.wake_writer()

    # -- ending ------------------------------------------------------------------------------------

    def closed(self, socket: SimSocket) -> None:
        """A program or the end of its process has closed a socket."""
        self._unbind(socket)
        waiting, socket.accepting = socket.accepting, None
        for connection in waiting or ():
            connection._leave()
            self.fly(connection, RST)
        if not socket.is_connected or socket.is_reset:
            return
        if socket.resets_on_close:
            self.fly(socket, RST)
        elif not socket.is_write_shut:
            socket.is_write_shut = True
            self.fly(socket, FIN)

    def _unbind(self, socket: SimSocket) -> None:
        if socket.local is not None and socket.machine.bound.get(socket.local) is socket:
            del socket.machine.bound[socket.local]

    def vanished(self, socket: SimSocket) -> None:
        """Its machine has lost power. What is on the wire arrives, what a cut holds is gone."""
        self._unbind(socket)
        socket.accepting = None
        if socket.link is not None and socket.link.is_cut:
            socket.flight.clear()

    def answer_unheard(self, senders: list[SimSocket]) -> None:
        """A machine has booted: its kernel answers with RST what is sent again."""
        for sender in senders:
            peer = sender.peer
            if sender.is_open and peer is not None:
                when = self.loop.now_ns + self._retransmission_ns()
                self.loop.kernel_at(when, self._arrive, sender)

    def _retransmission_ns(self) -> int:
        low, high = RETRANSMISSION_NS
        return low + int(self._chance.random() * (high - low))

    # -- faults ------------------------------------------------------------------------------------

    def cut(self, source: str, target: str) -> None:
        """Hold what `source` sends to `target`; the other direction goes on."""
        link = self.link(self.machines[source], self.machines[target])
        if not link.is_cut:
            link.is_cut = True
            self.loop.note(f"cut {source} -> {target}")

    def heal(self, source: str, target: str) -> None:
        """What was held arrives, a retransmission later for each connection."""
        link = self.link(self.machines[source], self.machines[target])
        if not link.is_cut:
            return
        link.is_cut = False
        self.loop.note(f"heal {source} -> {target}")
        held, link.held = link.held, {}
        for sender, count in held.items():
            when = self.loop.now_ns + self._retransmission_ns()
            for _ in range(count):
                self.loop.kernel_at(when, self._arrive, sender)
        credits, link.held_credits = link.held_credits, []
        for work in credits:
            self.loop.kernel_at(self.loop.now_ns + self._retransmission_ns(), self._credited, work)

    def cut_links(self) -> Iterator[tuple[str, str]]:
        for (source, target), link in self._links.items():
            if link.is_cut:
                yield source, target

    def set_latency(self, source: str, target: str, *, base_ns: int, jitter_ns: int) -> None:
        link = self.link(self.machines[source], self.machines[target])
        link.base_ns, link.jitter_ns = base_ns, jitter_ns
        self.loop.note(f"latency {source} -> {target} {base_ns} {jitter_ns}")

    def reset(self, one: str, other: str) -> int:
        """Break every connection between two machines, at once on both sides; says how many."""
        pair = {one, other}
        count = 0
        for socket in list(self._connections()):
            peer = socket.peer
            assert peer is not None
            names = {socket.machine.name, peer.machine.name}
            if names == pair and not socket.is_reset:
                self._was_reset(socket, errno.ECONNRESET)
                self._was_reset(peer, errno.ECONNRESET)
                count += 1
        self.loop.note(f"reset {one} {other}: {count}")
        return count

    def _connections(self) -> Iterator[SimSocket]:
        """Open ends in the order of their making."""
        sockets: Sequence[SimSocket] = cast(list[SimSocket], list(self.loop.sockets.values()))
        return (s for s in sockets if s.is_connected and s.is_open)
