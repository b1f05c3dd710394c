"""One group of brokers and its controllers, from one seed: a random walk over what may happen.

Each step is one thing: a message arrives, a disk finishes, a master appends, a timer runs, the
leader judges, something breaks. There is no clock beside the masters' running time, so delays have
no bound. After the walk everything is repaired and the group must come to rest with all logs equal
(liveness); what must hold always is checked by the judge at each step.
"""

from collections.abc import Callable

from paceline.types import Incarnation, ReplicaId
from paceline_chaos.core.controllers import GROUP, Answer
from paceline_chaos.core.dice import Wheel
from paceline_chaos.core.faults import Faults
from paceline_chaos.core.judge import ViolationError, content
from paceline_chaos.core.network import Connection
from paceline_chaos.core.node import Node
from paceline_chaos.core.scene import is_master

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


class World(Faults):
    """See the module."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.is_given_up = False
        """The run ended in a state that only an operator may leave."""
        self._known_version = 0
        self._flush_rate = self.dice.one_of([0.2, 0.5, 1.0])
        taste = {name: self.dice.one_of([0.3, 1.0, 1.0, 3.0]) for name in SWARMED}
        if self.settings.durability == "memory":
            taste["flush"] *= 0.1  # nobody waits for the disk then
            taste["power"] *= 3.0  # but only once
            taste["replace"] *= 0.2
        self._wheel = Wheel({name: WEIGHTS[name] * taste.get(name, 1.0) for name in WEIGHTS})
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
        self._at_some(lambda node: node.send_messages(count), is_master)

    def _push(self) -> None:
        self._at_some(Node.push_all, is_master)

    def _read(self) -> None:
        self._at_some(Node.read, is_master)

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

        self._at_some(run, is_master)
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
        node = self.node_named(answer.node)
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
                self._kill_process(node)
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


def run_seed(seed: int) -> World:
    """One run; on failure the exception's notes say how to see it again."""
    world = World(seed)
    try:
        world.run()
    except Exception as error:
        error.add_note(f"seed {seed}, durability {world.settings.durability}, group {GROUP}")
        error.add_note(f"again: .venv/bin/python -m paceline_chaos.core --seed {seed}")
        raise
    return world
