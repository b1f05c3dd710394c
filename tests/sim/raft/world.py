"""Three or more `RaftCore`s in one thread: virtual time, FIFO links, lossy disks, from one seed.

No event loop and no tasks: a heap of (time, number, action). A link delivers in order, with random
delays; a cut link holds its messages back and is dropped after `silence_ms`; a killed node vanishes
between or inside calls (the disk's fuse) and comes back from its disk. The world checks after every
step that no term has two leaders and that applied prefixes are equal; `check_end` that everything
acknowledged was applied everywhere.
"""

import functools
import heapq
from collections.abc import Callable

from tests.sim.raft.node import SimNode, meet

from paceline.errors import PeerError, StorageError
from paceline.platform.disk_memory import PowerLost
from paceline.platform.runtime import SeededRandom
from paceline.types import ControllerId
from paceline_controller.raft.settings import RaftSettings

FOLDER = "/raft"


class WorldClock:
    """The clock of one machine: running time of the world."""

    def __init__(self) -> None:
        self.now_ms = 1000.0

    def monotonic_ms(self) -> int:
        return int(self.now_ms)

    def unix_ms(self) -> int:
        return int(self.now_ms) + 1_700_000_000_000


class _Link:
    """Both directions between two nodes."""

    def __init__(self) -> None:
        self.is_up = False
        self.is_cut = False
        self.number = 0  # connection epoch
        self.cut_since = 0.0
        self.held: list[tuple[ControllerId, ControllerId, bytes]] = []
        self.last_arrival: dict[ControllerId, float] = {}


class World:
    """The machines, the wires between them, and what must hold."""

    def __init__(self, seed: str, *, nodes: int = 3, settings: RaftSettings | None = None) -> None:
        self.seed = seed
        self.random = SeededRandom(seed)
        self.clock = WorldClock()
        self.settings = settings or RaftSettings()
        self.sync_ms = (0.3, 4.0)
        self.sync_ms_of: dict[ControllerId, tuple[float, float]] = {}
        self.delay_ms = (0.2, 3.0)
        self.restores = 0
        self.acknowledged: list[str] = []
        self.history: list[str] = []  # the longest applied sequence seen on any node
        self.leaders: dict[int, tuple[ControllerId, int]] = {}
        self.generations: dict[int, object] = {}
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._counter = 0
        self._ticks: dict[ControllerId, int] = {}
        self._stands_until: dict[ControllerId, float] = {}
        self.nodes: dict[ControllerId, SimNode] = {}
        self.founders = [ControllerId(f"c{number}") for number in range(1, nodes + 1)]
        for name in self.founders:
            self.nodes[name] = SimNode(self, name)
        names = list(self.nodes)
        self.links = {
            frozenset((a, b)): _Link() for at, a in enumerate(names) for b in names[at + 1 :]
        }

    # -- time --------------------------------------------------------------------------------------

    def at(self, wait_ms: float, node: SimNode | None, action: Callable[[], None]) -> None:
        """Do something later, unless the node has died in between."""
        life = node.life if node is not None else 0

        def run() -> None:
            if node is None:
                action()
            elif node.core is not None and node.life == life:
                stands_ms = self._stands_until.get(node.name, 0.0) - self.clock.now_ms
                if stands_ms > 0:
                    self.at(stands_ms, node, action)
                else:
                    self.alive(node, action)

        self._counter += 1
        heapq.heappush(self._heap, (self.clock.now_ms + wait_ms, self._counter, run))

    def alive(self, node: SimNode, action: Callable[[], None]) -> None:
        """Run a step of a node; a blown fuse is its death, an exception its stop."""
        try:
            action()
        except PowerLost:
            self.kill(node.name, keep_page_cache=self.random.uniform(0, 1) < 0.5)
        except (StorageError, AssertionError) as error:
            node.error = error
            raise

    def schedule_tick(self, node: SimNode, wait_ms: float) -> None:
        number = self._ticks[node.name] = self._ticks.get(node.name, 0) + 1

        def tick() -> None:
            if self._ticks[node.name] == number:
                node.tick()

        self.at(wait_ms, node, tick)

    def run(self, milliseconds: float) -> None:
        """Let virtual time pass."""
        end = self.clock.now_ms + milliseconds
        while self._heap and self._heap[0][0] <= end:
            when, _, action = heapq.heappop(self._heap)
            self.clock.now_ms = max(self.clock.now_ms, when)
            action()
        self.clock.now_ms = end

    def run_until(self, condition: Callable[[], bool], *, limit_ms: float = 10_000) -> float:
        """Virtual milliseconds until the condition holds; fails after `limit_ms`."""
        start = self.clock.now_ms
        while not condition():
            waited = self.clock.now_ms - start
            assert waited < limit_ms, f"seed {self.seed}: not within {limit_ms} ms"
            self.run(5)
        return self.clock.now_ms - start

    # -- machines ----------------------------------------------------------------------------------

    def start_all(self) -> None:
        for name in self.nodes:
            self.start(name)

    def add_node(self, name: ControllerId, configured: list[ControllerId]) -> None:
        """A machine that never ran; its operator configured these controllers."""
        for other in self.nodes:
            self.links[frozenset((name, other))] = _Link()
        self.nodes[name] = SimNode(self, name, [*configured, name])

    def start(self, name: ControllerId) -> None:
        """Start a node from its disk and dial its peers."""
        node = self.nodes[name]
        if node.core is not None or node.is_removed:
            return
        self.alive(node, node.start)
        for pair in self.links:
            if name in pair:
                self._dial_later(pair)

    def kill(self, name: ControllerId, *, keep_page_cache: bool = True) -> None:
        """kill -9 (page cache survives) or power loss of one machine."""
        node = self.nodes[name]
        node.core = None
        node.life += 1
        node.disk.crash(self.random, keep_page_cache=keep_page_cache)
        for pair, link in self.links.items():
            if name in pair and link.is_up:
                link.is_up, link.held = False, []
                (peer,) = pair - {name}
                self._tell_down(peer, name, link.number)

    def leader(self) -> SimNode | None:
        """The established leader of the highest term."""
        leading = [n for n in self.nodes.values() if n.core and n.core.leadership.is_leader]
        return max(leading, key=lambda n: n.core.term if n.core else 0, default=None)

    def stall(self, name: ControllerId, milliseconds: float) -> None:
        """The loop of a node stands: what comes meanwhile is done afterwards, in order."""
        self._stands_until[name] = self.clock.now_ms + milliseconds

    def propose_at(self, node: SimNode, name: str) -> None:
        """A client's command, if that node believes that it leads."""
        if node.core is not None and node.core.is_leading:
            self.alive(node, lambda: node.propose(name))

    # -- wires -------------------------------------------------------------------------------------

    def transmit(self, source: ControllerId, target: ControllerId, payload: bytes) -> None:
        link = self.links.get(frozenset((source, target)))
        if link is None:
            return  # nobody has set up that machine yet
        if link.is_cut:
            link.held.append((source, target, payload))
        elif link.is_up:
            self._deliver_later(link, source, target, payload)

    def cut(self, a: ControllerId, b: ControllerId) -> None:
        """Silence: nothing arrives, nobody is told before `silence_ms`."""
        link = self.links[frozenset((a, b))]
        if link.is_cut:
            return
        link.is_cut, link.cut_since = True, self.clock.now_ms
        number = link.number

        def silence() -> None:
            if link.is_cut and link.number == number and link.is_up:
                self._drop(frozenset((a, b)))

        self.at(self.settings.silence_ms, None, silence)

    def isolate(self, name: ControllerId) -> None:
        for pair in self.links:
            if name in pair:
                self.cut(*sorted(pair))

    def heal(self) -> None:
        """All wires carry again; held messages of links that stand arrive late."""
        for pair, link in self.links.items():
            if not link.is_cut:
                continue
            link.is_cut = False
            held, link.held = link.held, []
            if link.is_up:
                for source, target, payload in held:
                    self._deliver_later(link, source, target, payload)
            else:
                self._dial_later(pair)

    def flap(self, pair: frozenset[ControllerId]) -> None:
        """The connection breaks and is dialled again; what was in flight is lost."""
        if self.links[pair].is_up:
            self._drop(pair)

    def _drop(self, pair: frozenset[ControllerId]) -> None:
        link = self.links[pair]
        link.is_up, link.held = False, []
        a, b = sorted(pair)
        self._tell_down(a, b, link.number)
        self._tell_down(b, a, link.number)
        self._dial_later(pair)

    def _tell_down(self, name: ControllerId, peer: ControllerId, number: int) -> None:
        node = self.nodes[name]

        def down() -> None:
            if node.core is not None and self.links[frozenset((name, peer))].number == number:
                node.core.disconnected(peer)
                node.tick()

        self.at(self.random.uniform(0.1, 2.0), node, down)

    def _dial_later(self, pair: frozenset[ControllerId]) -> None:
        wait = self.random.uniform(self.settings.redial_min_ms, self.settings.redial_max_ms)
        self.at(wait, None, lambda: self._dial(pair))

    def _dial(self, pair: frozenset[ControllerId]) -> None:
        link = self.links[pair]
        nodes = [self.nodes[name] for name in sorted(pair)]
        if link.is_up or link.is_cut or any(node.core is None for node in nodes):
            return
        stores = [(n.identity.store, n.identity.may_vote) for n in nodes if n.identity]
        known = [
            node.identity.remembered_store(peer.name)
            for node, peer in zip(nodes, reversed(nodes), strict=True)
            if node.identity
        ]
        if not self._introduce(nodes):
            self._dial_later(pair)
            return
        link.number += 1
        link.last_arrival = {}
        for at, (node, peer) in enumerate(zip(nodes, reversed(nodes), strict=True)):
            assert node.identity is not None
            store, is_founded = stores[1 - at]
            try:
                node.identity.meet(
                    peer.name,
                    store=store,
                    is_founded=is_founded,
                    remembered_store=known[1 - at],
                )
            except PeerError:
                return
            except PowerLost:
                self.kill(node.name)
                return
        link.is_up = True
        for node, peer in zip(nodes, reversed(nodes), strict=True):
            if node.core is not None:
                node.core.connected(peer.name)
                self.alive(node, node.tick)

    def _introduce(self, nodes: list[SimNode]) -> bool:
        """The hellos: whether both take each other for members; a removed one ends."""
        heard = [node.directory.newest for node in nodes if node.directory is not None]
        for at, node in enumerate(nodes):
            self.alive(node, functools.partial(meet, node, nodes[1 - at], heard[1 - at]))
            if node.is_removed:
                self.kill(node.name)
        a, b = nodes
        if a.core is None or b.core is None:
            return False
        assert a.directory is not None
        assert b.directory is not None
        return a.directory.knows(b.name) and b.directory.knows(a.name)

    def _deliver_later(
        self, link: _Link, source: ControllerId, target: ControllerId, payload: bytes
    ) -> None:
        number, node = link.number, self.nodes[target]
        arrival = max(
            self.clock.now_ms + self.random.uniform(*self.delay_ms),
            link.last_arrival.get(target, 0.0),
        )
        link.last_arrival[target] = arrival

        def deliver() -> None:
            if link.number != number or node.core is None:
                return
            if link.is_cut:
                link.held.append((source, target, payload))
            elif link.is_up:
                node.receive(source, payload)

        self.at(arrival - self.clock.now_ms, node, deliver)

    # -- what must hold ----------------------------------------------------------------------------

    def check_leader(self, node: SimNode) -> None:
        assert node.core is not None
        if node.core.is_leading:
            seen = self.leaders.setdefault(node.core.term, (node.name, node.life))
            assert seen == (node.name, node.life), f"seed {self.seed}: two leaders in {seen}"

    def check_applied(self, node: SimNode) -> None:
        count = len(node.applied)
        common = min(count, len(self.history))
        if common and node.applied[common - 1] != self.history[common - 1]:
            raise AssertionError(f"seed {self.seed}: {node.name} diverges at {common}")
        if count > len(self.history):
            self.history.extend(node.applied[len(self.history) :])

    def check_end(self) -> None:
        """Heal, start everybody, let it settle: all equal, nothing acknowledged missing."""
        for node in self.nodes.values():
            node.disk.fuse = None
        self.heal()
        self.start_all()
        for attempt in range(20):
            self.start_all()  # a node may still die of a stopped disk
            self.run_until(lambda: self.leader() is not None, limit_ms=20_000)
            leader = self.leader()
            assert leader is not None
            self.propose_at(leader, f"end-{attempt}")
            self.run(1_000)
            if self._is_settled():
                break
        assert self._is_settled(), f"seed {self.seed}: not settled"
        everywhere = [node.applied for node in self.members()]
        assert all(applied == everywhere[0] for applied in everywhere), f"seed {self.seed}"
        lost = set(self.acknowledged) - set(everywhere[0])
        assert not lost, f"seed {self.seed}: acknowledged but lost {sorted(lost)[:5]}"

    def _is_settled(self) -> bool:
        lasts = {tuple(node.applied[-1:]) for node in self.members() if node.core}
        is_end = any(name.startswith("end-") for last in lasts for name in last)
        return len(lasts) == 1 and is_end and all(node.core for node in self.members())

    def members(self) -> list[SimNode]:
        """The nodes of the leader's generation; all without a leader."""
        leader = self.leader()
        if leader is None or leader.core is None:
            return list(self.nodes.values())
        everyone = leader.core.members.everyone()
        return [node for name, node in self.nodes.items() if name in everyone]
