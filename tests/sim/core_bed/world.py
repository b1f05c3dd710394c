"""One group of brokers and its controllers, from one seed: a random walk over what may happen.

Each step is one thing: a message arrives, a disk finishes, a master appends, a timer runs, the
leader judges, something breaks. There is no clock beside the masters' running time, so delays have
no bound. After the walk everything is repaired and the group must come to rest with all logs equal
(liveness); what must hold always is checked by the judge at each step.
"""

from collections.abc import Callable

from tests.sim.core_bed.controllers import GROUP, Answer, Controllers, Request
from tests.sim.core_bed.dice import Dice, Wheel
from tests.sim.core_bed.judge import Judge, ViolationError, content
from tests.sim.core_bed.network import Connection
from tests.sim.core_bed.node import Node

from paceline.disk_memory import MemoryDisk, PowerLost
from paceline.errors import CorruptLogError, StorageError
from paceline.types import Incarnation, ReplicaId
from paceline.wire.cluster import GroupSettings

STEPS = 2000
ROUNDS_MAX = 400
"""Rounds of fair scheduling after which a repaired group that is not at rest has stalled."""

WEIGHTS: dict[str, float] = {
    "deliver": 46,
    "flush": 14,
    "send": 9,
    "request": 7,
    "answer": 6,
    "view": 10,
    "connect": 7,
    "push": 4,
    "heartbeat": 5,
    "tick": 4,
    "read": 2,
    "elect": 4,
    "ask_again": 3,
    "resync": 2,
    "checkpoint": 0.5,
    "break": 0.9,
    "lose": 0.6,
    "kill": 0.3,
    "power": 0.3,
    "fuse": 0.3,
    "disk_error": 0.3,
    "boot": 5,
    "replace": 0.4,
    "pause": 0.5,
    "deafen": 0.3,
    "partition": 0.6,
    "settle": 1.5,
    "blackout": 0.08,
}


SWARMED = (
    *("flush", "view", "request", "elect", "connect", "tick", "settle", "read"),
    *("power", "kill", "break", "pause", "deafen", "partition", "replace"),
)
"""Each run has its own taste: these weights are drawn anew for it, so rare mixtures occur too."""


class StalledError(AssertionError):
    """A repaired group does not come to rest."""


class World:
    """See the module. `trace` collects one line for each event worth reading."""

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
        self._connections_count = 0
        self._bodies_count = 0
        self._known_version = 0
        self._probes: list[tuple[Node, int, ReplicaId, Incarnation]] = []
        self._losses_left = 1  # disks, backups, or power with memory durability: one copy in all
        self._cut: set[Node] = set()
        self._cut_until = 0
        self._backup: tuple[Node, Incarnation, MemoryDisk] | None = None
        self.is_given_up = False
        taste = {name: self.dice.one_of([0.3, 1.0, 1.0, 3.0]) for name in SWARMED}
        if self.settings.durability == "memory":
            taste["flush"] *= 0.1  # nobody waits for the disk then
            taste["power"] *= 3.0  # but only once
            taste["replace"] *= 0.2
        self._wheel = Wheel({name: WEIGHTS[name] * taste.get(name, 1.0) for name in WEIGHTS})
        self._flush_rate = self.dice.one_of([0.2, 0.5, 1.0])
        self.tells_floor = self.dice.happens(0.6)
        """Whether masters keep the controllers' confirm floor up to date (R16)."""
        self._actions: dict[str, Callable[[], None]] = {
            name: getattr(self, f"_{name}") for name in WEIGHTS
        }

    def run(self) -> None:
        """Raises ViolationError, StalledError, or whatever a broken assertion raises."""
        for node in self.nodes:
            self._guarded(node, node.boot)
        if self.dice.happens(0.8):  # mostly the faults meet a group that works already
            for number in range(12):
                self._fair_round(number)
        for _ in range(STEPS):
            self.steps_count += 1
            self.controllers.now_ms += 5
            self._actions[self._wheel.draw(self.dice)]()
            self._spread_views()
            self.controllers.release()
        self._repair()

    # -- for the nodes

    def note(self, line: str) -> None:
        self.trace.append(f"{self.steps_count:5} {line}")

    def next_body(self) -> bytes:
        self._bodies_count += 1
        return b"%d " % self._bodies_count + bytes(self.dice.below(200))

    def ask(self, request: Request) -> None:
        """A node's command to the controllers; what a cut node says may arrive after the cut."""
        node = request.node
        if node is None or node not in self._cut or self._cut_until <= self.steps_count:
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

    def probe(self, master: Node, replica: ReplicaId, incarnation: Incarnation) -> None:
        self._probes.append((master, master.generation, replica, incarnation))

    def restart(self, node: Node) -> None:
        """The process ends and another begins; the machine stays on."""
        self._stop(node)
        node.disk.crash(self.dice.random, keep_page_cache=True)
        self._guarded(node, node.boot)

    # -- the walk

    def _deliver(self) -> None:
        waiting = [
            (connection, end is connection.master)
            for connection in self.connections
            for end in (connection.replica, connection.master)
            if end.inbox and not self._is_paused(end.node)
        ]
        if waiting:
            connection, is_to_master = self.dice.one_of(waiting)
            self._deliver_to(connection, to_master=is_to_master)

    def _deliver_to(self, connection: Connection, *, to_master: bool) -> None:
        end = connection.master if to_master else connection.replica
        message = end.inbox.popleft()
        node = end.node
        if not node.is_up or node.generation != end.generation:
            connection.close(end)
        elif end.is_open:
            self._guarded(node, lambda: node.receive(connection, message))
        if connection.is_over and connection in self.connections:
            self.connections.remove(connection)

    def _flush(self) -> None:
        self._at_some(Node.flush, lambda node: node.has_unflushed)

    def _send(self) -> None:
        count = 1 + self.dice.below(3)
        self._at_some(lambda node: node.send_messages(count), _is_master)

    def _push(self) -> None:
        self._at_some(Node.push_all, _is_master)

    def _read(self) -> None:
        self._at_some(Node.read, _is_master)

    def _connect(self) -> None:
        self._at_some(Node.connect, lambda node: node.wants_connection)

    def _heartbeat(self) -> None:
        for node in self.nodes:
            if self._acts(node) and self.dice.happens(0.7):
                self._guarded(node, node.heartbeat)

    def _ask_again(self) -> None:
        self._at_some(Node.ask_again, lambda node: bool(node.asked))

    def _checkpoint(self) -> None:
        self._at_some(Node.save_checkpoint, lambda node: True)

    def _tick(self) -> None:
        """Running time passes for a master: a tick, a lag's worth of ticks, or a stall."""
        ticks, elapsed_ms = self.dice.one_of([(1, 100), (8, 200), (25, 100), (1, 5000)])

        def run(node: Node) -> None:
            for _ in range(ticks):
                node.ran(elapsed_ms)

        self._at_some(run, _is_master)
        self._answer_probes()

    def _answer_probes(self) -> None:
        probes, self._probes = self._probes, []
        for master, generation, replica, incarnation in probes:
            node = self.node_of(replica)
            is_gone = node is None or node.incarnation != incarnation
            if is_gone and self._acts(master) and master.generation == generation:
                master.member_refused(replica, incarnation)

    def _request(self) -> None:
        requests = self.controllers.requests
        if requests:
            self.controllers.deliver_request(self.dice.below(len(requests)))

    def _answer(self) -> None:
        answers = self.controllers.answers
        if not answers:
            return
        self._answer_with(answers.pop(self.dice.below(len(answers))))

    def _answer_with(self, answer: Answer) -> None:
        node = answer.node
        if self._is_deaf(node):
            self.controllers.answers.append(answer)
        elif node.is_up and node.generation == answer.generation and not self.dice.happens(0.05):
            self._guarded(node, lambda: node.answered(answer))

    def _view(self) -> None:
        nodes = [
            node for node in self.nodes if node.is_up and node.views and not self._is_deaf(node)
        ]
        if nodes:
            node = self.dice.one_of(nodes)
            view = node.views.pop(self.dice.below(len(node.views)))
            if not self.dice.happens(0.05):
                self._guarded(node, lambda: node.view_arrived(view))

    def _spread_views(self) -> None:
        """Every change is pushed to everybody, some of it late, twice or never."""
        view = self.controllers.view
        if view.version != self._known_version:
            self._known_version = view.version
            for node in self.nodes:
                if node.is_up:
                    node.views.append(view)

    def _resync(self) -> None:
        """A session connects anew and is sent the present view."""
        node = self.dice.one_of(self.nodes)
        if node.is_up:
            node.views.append(self.controllers.view)

    def _elect(self) -> None:
        self.controllers.elect(self._alive(), error_rate=self.dice.one_of([0.0, 0.1, 0.4]))

    def _alive(self) -> set[tuple[ReplicaId, Incarnation]]:
        return {
            (node.replica_id, node.incarnation)
            for node in self.nodes
            if node.is_up
            and node.replica_id is not None
            and not (self._is_deaf(node) and self.dice.happens(0.8))
        }

    def _is_paused(self, node: Node) -> bool:
        return node.paused_until > self.steps_count

    def _is_deaf(self, node: Node) -> bool:
        return node.deaf_until > self.steps_count or self._is_paused(node)

    def _acts(self, node: Node) -> bool:
        return node.is_up and not self._is_paused(node)

    # -- faults

    def _break(self) -> None:
        if self.connections:
            self.dice.one_of(self.connections).break_off(self.dice)

    def _lose(self) -> None:
        """Something under way to or from the controllers is lost."""
        for queue in (self.controllers.requests, self.controllers.answers):
            if queue and self.dice.happens(0.5):
                del queue[self.dice.below(len(queue))]

    def _kill(self) -> None:
        node = self.dice.one_of(self.nodes)
        if node.is_up and not node.is_failed:
            self.note(f"{node.name} is killed")
            self._stop(node)
            node.disk.crash(self.dice.random, keep_page_cache=True)

    def _power(self) -> None:
        node = self.dice.one_of([*self.nodes, *filter(_is_master, self.nodes)])
        if self._may_lose_power():
            self._lose_power(node)

    def _pause(self) -> None:
        """A process is stopped and goes on later as if nothing had happened (SIGSTOP)."""
        node = self.dice.one_of([*self.nodes, *filter(_is_master, self.nodes)])
        if self._acts(node):
            node.paused_until = self.steps_count + 50 + self.dice.below(400)
            self.note(f"{node.name} is paused until {node.paused_until}")

    def _deafen(self) -> None:
        """A broker hears nothing from the controllers for a while; they may hear it."""
        node = self.dice.one_of(self.nodes)
        if node.is_up and not self._is_deaf(node):
            node.deaf_until = self.steps_count + 50 + self.dice.below(300)
            self.note(f"{node.name} hears no controller until {node.deaf_until}")

    def _partition(self) -> None:
        """Some nodes are cut off from the others and from the controllers."""
        if self._cut_until > self.steps_count:
            return
        self._cut = {node for node in self.nodes if self.dice.happens(0.5)}
        self._cut_until = self.steps_count + 50 + self.dice.below(300)
        for node in self._cut:
            node.deaf_until = max(node.deaf_until, self._cut_until)
        for connection in self.connections:
            if self._are_parted(connection.replica.node, connection.master.node):
                connection.break_off(self.dice)
        names = " ".join(sorted(node.name for node in self._cut))
        self.note(f"{names or 'nobody'} cut off until {self._cut_until}")

    def _are_parted(self, one: Node, other: Node) -> bool:
        is_on = self._cut_until > self.steps_count
        return is_on and (one in self._cut) != (other in self._cut)

    def _blackout(self) -> None:
        """All machines lose power at once."""
        if self.settings.durability == "fsync":
            for node in self.nodes:
                self._lose_power(node)

    def _may_lose_power(self) -> bool:
        """With memory durability a power loss is the loss of a copy: only one is survived (R13)."""
        if self.settings.durability == "fsync":
            return True
        self._losses_left -= 1
        return self._losses_left >= 0

    def _lose_power(self, node: Node) -> None:
        self.note(f"{node.name} loses power")
        self._stop(node)
        node.boots_count += 1
        survival = self.dice.one_of([0.0, 0.5, 1.0])
        node.disk.crash(self.dice.random, keep_page_cache=False, survival=survival)

    def _fuse(self) -> None:
        """Power will fail at one of the next operations of a disk."""
        node = self.dice.one_of(self.nodes)
        if node.is_up and node.disk.fuse is None and self.settings.durability == "fsync":
            node.disk.fuse = self.dice.below(12)

    def _disk_error(self) -> None:
        """A call of the disk fails. The machine is rebooted before the broker starts again: what
        the page cache still shows after a failed fsync proves nothing (R22).
        """
        node = self.dice.one_of(self.nodes)
        if node.is_up and self.settings.durability == "fsync":
            node.disk.fail_next(self.dice.one_of(["sync_now", "sync_now", "writev"]))

    def _boot(self) -> None:
        node = self.dice.one_of(self.nodes)
        if not node.is_up or node.is_failed:
            if node.is_up:
                self._lose_power(node)
            self._guarded(node, node.boot)

    def _replace(self) -> None:
        """Once: a disk is lost, or an old copy of one is restored.

        A copy is old enough when a later start of the node has registered: then R9 finds it out. A
        younger one only the confirm floor could, and that follows confirm by up to a second (R16).
        For the same reason its first registration arrives: a copy that starts again and again
        unheard counts its incarnation past the recorded one.
        """
        node = self.dice.one_of(self.nodes)
        if self._losses_left < 1 or not node.is_up or node.replica_id is None:
            return
        if self._backup is None and self.dice.happens(0.7):
            image = node.disk.crash_image(self.dice.random, keep_page_cache=False, survival=0.0)
            self._backup = (node, node.incarnation, image)
            return
        disk = MemoryDisk()
        if self._backup is not None:
            node, incarnation, disk = self._backup
            if self._registered_incarnation(node) <= incarnation:
                return
            self.note(f"{node.name} gets an old copy of its disk")
        else:
            if self.dice.happens(0.5):
                node.claimed = None
            self.note(f"{node.name} loses its disk")
        self._losses_left -= 1
        self._stop(node)
        node.boots_count += 1
        node.disk = disk
        node.is_unclean = False
        self.judge.store_replaced(node.name)
        self._guarded(node, node.boot)
        self.controllers.deliver_registration(node)

    def _registered_incarnation(self, node: Node) -> Incarnation:
        group = self.controllers.group
        if group is None or node.claimed is None:
            return Incarnation(0)
        return group.replicas[node.claimed].incarnation

    def _stop(self, node: Node) -> None:
        """The process is gone; what it sent may still arrive."""
        node.is_up = False
        node.paused_until = 0
        self.controllers.forget_registrations(node)
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
                self._lose_power(node)

    def _at_some(self, act: Callable[[Node], None], is_meant: Callable[[Node], bool]) -> None:
        nodes = [node for node in self.nodes if self._acts(node) and is_meant(node)]
        if nodes:
            node = self.dice.one_of(nodes)
            self._guarded(node, lambda: act(node))

    # -- afterwards

    def _repair(self) -> None:
        """No more faults, everything is delivered: the group must come to rest, complete."""
        self.note("repaired")
        self._flush_rate = 1.0
        self._cut_until = 0
        self.controllers.release(all_of_it=True)
        for node in self.nodes:
            node.paused_until = node.deaf_until = 0
            node.disk.fuse = None
            node.disk._failures.clear()
        for number in range(ROUNDS_MAX):
            self._fair_round(number)
            if self._is_at_rest():
                self._check_end()
                return
            if self._needs_operator():
                self.note("nobody is electable: the operator decides")
                self.is_given_up = True
                self.judge.given_up([node.log for node in self.nodes])
                return
        raise StalledError(f"seed {self.seed}: no rest after {ROUNDS_MAX} rounds")

    def _fair_round(self, number: int) -> None:
        """Everything that can act acts once, and everything under way arrives, in order."""
        self.controllers.now_ms += 100
        for node in self.nodes:
            if node.is_failed:
                self._lose_power(node)
            if not node.is_up:
                self._guarded(node, node.boot)
        while self.controllers.requests:
            self.controllers.deliver_request(0)
        self._exchange()
        if number % 10 == 9:
            for node in self.nodes:
                node.ask_again()
        if number % 5 == 4:
            self.controllers.elect(self._alive(), error_rate=0.0)

    def _settle(self) -> None:
        """A moment of calm within the walk, so that there is something to lose again."""
        for node in self.nodes:
            if not node.is_up:
                self._guarded(node, node.boot)
        for index in reversed(range(len(self.controllers.requests))):
            if self.dice.happens(0.6):  # some commands stay late
                self.controllers.deliver_request(index)
        self._exchange()

    def _exchange(self) -> None:
        """Answers, views, timers, flushes and messages of all nodes that are not paused."""
        for _ in range(len(self.controllers.answers)):
            self._answer_with(self.controllers.answers.pop(0))
        for node in self.nodes:
            if self._acts(node):
                self._guarded(node, lambda node=node: self._act_once(node))  # type: ignore[misc]
        self._answer_probes()
        for connection in list(self.connections):
            for end in (connection.master, connection.replica):
                for _ in range(len(end.inbox)):
                    if end.inbox and not self._is_paused(end.node):
                        self._deliver_to(connection, to_master=end is connection.master)

    def _act_once(self, node: Node) -> None:
        if not self._is_deaf(node):
            node.heartbeat()
            node.views.clear()
            node.view_arrived(self.controllers.view)
        if node.wants_connection:
            node.connect()
        node.ran(100)
        if self.dice.happens(self._flush_rate):
            node.flush()
            node.flush()
        node.push_all()

    def _is_at_rest(self) -> bool:
        masters = [node for node in self.nodes if node.master is not None]
        if len(masters) != 1:
            return False
        master = masters[0]
        assert master.master is not None
        end = master.log.end
        group = self.controllers.group_view()
        return (
            group is not None
            and group.master == master.replica_id
            and master.master.is_open
            and master.master.can_accept()
            and all(node.log.end == end and node.log.confirm == end for node in self.nodes)
            and len(group.sync_state_set) == len(self.nodes)
        )

    def _needs_operator(self) -> bool:
        """Nobody is electable, by rule: the group says so and waits for a person.

        Registrations of dead processes that were applied late removed the members, to the last
        (R9); or a disk was lost, and the only other member cut its log at recovery, so that the
        lost one would have to report first (R23).
        """
        group = self.controllers.group
        if group is None or not group.sync_state_set:
            return False
        members = [group.replicas[member] for member in group.sync_state_set]
        is_somebody_away = any(self.node_of(member.replica_id) is None for member in members)
        return all(
            member.is_lost
            or self.node_of(member.replica_id) is None
            or (member.is_suspect and is_somebody_away)
            for member in members
        )

    def _check_end(self) -> None:
        for node in self.nodes:
            if content(node.log, 0, node.log.end) != self.judge.truth:
                raise ViolationError(f"INV-3: the log of {node.name} differs at rest")


def _is_master(node: Node) -> bool:
    return node.master is not None


def run_seed(seed: int) -> World:
    """One run; on failure the exception's notes say how to see it again."""
    world = World(seed)
    try:
        world.run()
    except Exception as error:
        error.add_note(f"seed {seed}, durability {world.settings.durability}, group {GROUP}")
        error.add_note(f"again: .venv/bin/python -m tests.sim.core_bed --seed {seed}")
        raise
    return world
