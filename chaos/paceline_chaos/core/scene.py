"""The scene of a run: nodes, connections, controllers, and what of them can reach what."""

from collections.abc import Callable

from paceline.disk_memory import PowerLost
from paceline.errors import CorruptLogError, StorageError
from paceline.types import Incarnation, ReplicaId
from paceline.wire.cluster import GroupSettings
from paceline_chaos.core.controllers import Controllers, Request
from paceline_chaos.core.dice import Dice
from paceline_chaos.core.judge import Judge
from paceline_chaos.core.network import Connection
from paceline_chaos.core.node import Node


class Scene:
    """State of a run. `trace` collects one line for each event worth reading."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.dice = Dice(f"core bed {seed}")
        self.trace: list[str] = []
        self.steps_count = 0
        self.settings = GroupSettings(
            total_replicas=3,
            min_in_sync_replicas=2,
            durability="memory" if self.dice.happens(0.33) else "fsync",
        )
        self.judge = Judge()
        self.controllers = Controllers(self.dice, self.settings)
        self.nodes = [Node(self, name) for name in ("n1", "n2", "n3")]
        self.connections: list[Connection] = []
        self.tells_floor = self.dice.happens(0.6)
        """Whether masters keep the controllers' confirm floor up to date (R16)."""
        self._connections_count = 0
        self._bodies_count = 0
        self._probes: list[tuple[Node, int, ReplicaId, Incarnation]] = []
        self._cut: set[str] = set()
        self._cut_until = 0

    # -- for the nodes

    def note(self, line: str) -> None:
        self.trace.append(f"{self.steps_count:5} {line}")

    def next_body(self) -> bytes:
        self._bodies_count += 1
        return b"%d " % self._bodies_count + bytes(self.dice.below(200))

    def ask(self, request: Request) -> None:
        """A node's command to the controllers; what a cut node says may arrive after the cut."""
        if request.node not in self._cut or self._cut_until <= self.steps_count:
            self.controllers.ask(request)
        elif self.dice.happens(0.5):
            self.controllers.ask_late(request)

    def can_reach(self, one: Node, other: Node) -> bool:
        return other.is_up and not self._are_parted(one, other)

    def node_of(self, replica: ReplicaId) -> Node | None:
        for node in self.nodes:
            if node.is_up and node.replica_id == replica:
                return node
        return None

    def connect(self, replica: Node, master: Node) -> Connection:
        self._connections_count += 1
        connection = Connection(self._connections_count, replica, master)
        self.connections.append(connection)
        return connection

    def probe(self, master: str, replica: ReplicaId, incarnation: Incarnation) -> None:
        node = self.node_named(master)
        self._probes.append((node, node.generation, replica, incarnation))

    def node_named(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def restart(self, name: str) -> None:
        """The process ends and another begins; the machine stays on."""
        node = self.node_named(name)
        self._stop(node)
        node.disk.crash(self.dice.random, keep_page_cache=True)
        self._guarded(node, node.boot)

    # -- who can do what

    def _is_paused(self, node: Node) -> bool:
        return node.paused_until > self.steps_count

    def _is_deaf(self, node: Node) -> bool:
        return node.deaf_until > self.steps_count or self._is_paused(node)

    def _acts(self, node: Node) -> bool:
        return node.is_up and not self._is_paused(node)

    def _are_parted(self, one: Node, other: Node) -> bool:
        is_on = self._cut_until > self.steps_count
        return is_on and (one.name in self._cut) != (other.name in self._cut)

    # -- ends of processes

    def _kill_process(self, node: Node) -> None:
        """What it has written stays in the page cache; after a failed fsync that proves nothing."""
        self.note(f"{node.name} is killed")
        self._stop(node)
        node.disk.crash(self.dice.random, keep_page_cache=True)

    def _lose_power(self, node: Node) -> None:
        self.note(f"{node.name} loses power")
        self._stop(node)
        node.boots_count += 1
        survival = self.dice.one_of([0.0, 0.5, 1.0])
        node.disk.crash(self.dice.random, keep_page_cache=False, survival=survival)

    def _stop(self, node: Node) -> None:
        """The process is gone; what it sent may still arrive."""
        node.is_up = False
        node.paused_until = 0
        self.controllers.forget_registrations(node.name)
        for connection in self.connections:
            end = connection.end_of(node)
            if end.node is node and end.generation == node.generation:
                connection.break_off(self.dice)
                end.is_open = False
                end.inbox.clear()
        self.connections = [c for c in self.connections if not c.is_over]

    def _guarded(self, node: Node, act: Callable[[], None]) -> None:
        try:
            act()
        except PowerLost:
            self._lose_power(node)
        except CorruptLogError:
            raise  # no fault of this bed damages what was written
        except StorageError as error:
            if node.is_up:
                node.fail(error)
            else:
                self._kill_process(node)

    def _at_some(self, act: Callable[[Node], None], is_meant: Callable[[Node], bool]) -> None:
        nodes = [node for node in self.nodes if self._acts(node) and is_meant(node)]
        if nodes:
            node = self.dice.one_of(nodes)
            self._guarded(node, lambda: act(node))


def is_master(node: Node) -> bool:
    return node.master is not None
