"""One group of brokers, its controllers and clients, from one seed: a random walk in virtual time.

Each step is one thing: a message arrives, a disk finishes, a client asks, something breaks. Steps
take a few milliseconds each, and what goes by the clock goes by that one: heartbeats, the masters'
ticks, leases, lags, timeouts, the leader's judgement. Messages wait for their step, so delays have
no bound. Calm and trouble take turns, and each trouble has a taste of its own. After the walk
everything is repaired and the group must come to rest with all logs equal; what must hold always is
checked by the judge at each step.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from paceline_chaos.history.model import Phase, Probe
from paceline_chaos.protocol_sim.clients import QUEUES, TOPIC, Client, ProducerClient, Reader
from paceline_chaos.protocol_sim.dice import Wheel
from paceline_chaos.protocol_sim.ending import finish, give_up
from paceline_chaos.protocol_sim.judge import ViolationError, content
from paceline_chaos.protocol_sim.members import Member, Watcher
from paceline_chaos.protocol_sim.node import Node
from paceline_chaos.protocol_sim.shape import counters_of
from paceline_chaos.protocol_sim.walk import Walk
from paceline_chaos.stuck import why_operator

VIRTUAL_US = 60_000_000
ROUNDS_MAX = 400
"""Rounds of fair scheduling after which a repaired group that is not at rest has stalled."""
ROUND_US = 50_000
HEARTBEAT_US = 200_000
LOOK_US = 100_000
"""How often the leader judges."""
SECOND_US = 1_000_000
PROBE_US = 5_000_000

STEP_US_MAX = 18_000
"""Steps take 0 to this, evenly: a hop of the network or a sync of a disk waits for a few."""

CALM: dict[str, float] = {
    "deliver": 46,
    "flush": 16,
    "client": 12,
    "serve": 14,
    "hear": 12,
    "request": 7,
    "answer": 6,
    "view": 10,
    "connect": 7,
    "read": 1,
    "ask_again": 3,
    "resync": 2,
    "boot": 5,
    "log_checkpoint": 0.5,
    "settle": 1.5,
    "transfer": 0.15,
    "step_down": 3,
}
TROUBLE: dict[str, float] = {
    "break": 0.9,
    "lose": 0.6,
    "kill": 0.3,
    "power": 0.3,
    "fuse": 0.3,
    "disk_error": 0.2,
    "replace": 0.4,
    "pause": 0.5,
    "deafen": 0.3,
    "partition": 0.4,
    "blackout": 0.08,
    "clock": 0.1,
    "corrupt": 0.2,
    "flip": 0.2,
}
ORDERED, FREE = "ordered", "free"
"""Consumer groups; members of the first take locks."""
SWARMED = ("flush", "view", "request", "connect", "settle", "serve", "hear", *TROUBLE)
"""Each period has its own taste: weights drawn anew, so rare mixtures occur too."""


class StalledError(AssertionError):
    """A repaired group does not come to rest."""


class World(Walk):
    """See the module."""

    def __init__(
        self,
        seed: int,
        *,
        virtual_us: int = VIRTUAL_US,
        changes: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(seed, changes=changes)
        self.is_given_up = False
        """The run ended in a state that only an operator may leave."""
        self._virtual_us = virtual_us
        self._error_rate = 0.0
        self._period_ends_us = 0
        self._is_trouble = False
        self._wheel = Wheel(CALM)
        self._actions: dict[str, Callable[[], None]] = {
            name: getattr(self, f"_{name}") for name in (*CALM, *TROUBLE)
        }
        self._clocked = {HEARTBEAT_US: self._heartbeats, LOOK_US: self._look}
        self._clocked |= {SECOND_US: self._each_second, PROBE_US: self._probe_nodes}
        self._due_us = dict.fromkeys(self._clocked, 0)
        self._next_due_us = 0
        self._zombies: set[tuple[str, int]] = set()
        self._topic_id = 0

    def _make_clients(self, topic_id: int) -> list[Client]:
        producers = [ProducerClient(self, f"p{n}", topic_id) for n in range(1, 3)]
        members = [
            Member(self, f"m{n}", topic_id, group=ORDERED, is_ordered=True) for n in range(1, 4)
        ]
        free = Member(self, "m9", topic_id, group=FREE, is_ordered=False)
        readers = [Reader(self, f"r{n}", topic_id) for n in range(1, 3)]
        watchers = [
            Watcher(self, f"w{n}", topic_id, group="none", is_ordered=False) for n in range(1, 3)
        ]
        return [*producers, *members, free, *readers, *watchers]

    def run(self) -> None:
        """Raises ViolationError, StalledError, or whatever a broken assertion raises."""
        try:
            self._run()
        finally:
            for name, count in counters_of(self.settings, self.coverage.counts).items():
                self.coverage.saw(name, count)
            self.loop.let_go()

    def _run(self) -> None:
        with self._running():
            self.recorder.add(Phase, name="load")
            for node in self.nodes:
                self.guarded(node, node.boot)
            self.controllers.release(all_of_it=True)  # some registrations are late
            self._fair_round(0)
            self._topic_id = self.controllers.create_topic(TOPIC, QUEUES)
            self.controllers.create_groups(ORDERED, FREE)
            self.clients = self._make_clients(self._topic_id)
            if self.dice.happens(0.8):  # mostly the faults meet a group that works already
                for number in range(1, 12):
                    self._fair_round(number)
            while self.clock.now_us < self._virtual_us:
                self._step()
            self._repair()
            if self.is_given_up:
                self._boot_all()
                self.judge.given_up([node.log for node in self.nodes])
                give_up(self)
            else:
                finish(self, self._topic_id)

    @contextmanager
    def _running(self) -> Iterator[None]:
        with self.loop.running():
            try:
                yield
            finally:
                for node in self.nodes:
                    node.life.is_over = True

    def _step(self) -> None:
        if self.clock.now_us >= self._period_ends_us:
            self._begin_period()
        self.clock.now_us += self.dice.below(STEP_US_MAX)
        self._run_timers()
        if self.clock.now_us >= self._next_due_us:
            self._by_the_clock()
        self._actions[self._wheel.draw(self.dice)]()
        self._spread_views()
        self.controllers.release()

    def _begin_period(self) -> None:
        """Calm and trouble take turns."""
        self._is_trouble = not self._is_trouble
        length_us = self._lasting_us(*((3000, 9000) if self._is_trouble else (1000, 5000)))
        self._period_ends_us = self.clock.now_us + length_us
        weights = {**CALM, **TROUBLE} if self._is_trouble else dict(CALM)
        for name in SWARMED:
            if name not in weights:
                continue
            weights[name] *= self.dice.one_of([0.3, 1.0, 1.0, 3.0])
            if name in TROUBLE and self.dice.happens(0.4):
                weights[name] = 0.0
        if self.settings.durability == "memory":
            weights["flush"] *= 0.1  # nobody waits for the disk then
            if self._is_trouble:
                weights["power"] *= 3.0  # but only as often as copies may be lost
                weights["replace"] *= 0.2
        self._error_rate = self.dice.one_of([0.0, 0.02, 0.1]) if self._is_trouble else 0.0
        self._wheel = Wheel(weights)

    # -- by the clock

    def _run_timers(self) -> None:
        """Timers of processes; those of a stopped one wait until it goes on."""
        while (handle := self.loop.pop_due()) is not None:
            assert handle.life is not None
            node: Node = handle.life.node  # type: ignore[attr-defined]
            if self.is_paused(node):
                self.loop.push_timer(node.paused_until_us, handle)
            else:
                self.guarded(node, handle.run)

    def _by_the_clock(self) -> None:
        now_us = self.clock.now_us
        for interval_us, act in self._clocked.items():
            if now_us >= self._due_us[interval_us]:
                self._due_us[interval_us] = now_us + interval_us
                act()
        self._next_due_us = min(self._due_us.values())

    def _heartbeats(self) -> None:
        for node in self.nodes:
            if self.acts(node):
                if not self.is_cut_off(node) and not self.dice.happens(0.05):
                    self.guarded(node, node.heartbeat)
                node.close_if_idle()
            if node.mastership is not None and self.is_zombie(node):
                self._zombies.add((node.name, node.mastership.epoch))
        for client in self.clients:
            client.step()
        self._sweep_doors()

    def _look(self) -> None:
        self.controllers.elect(self._alive(), error_rate=self._error_rate)
        self._answer_probes()

    def _each_second(self) -> None:
        for node in self.nodes:
            if self.acts(node):
                self.guarded(node, node.tell_floor)
                self.guarded(node, node.clean)
                if self.dice.happens(0.5):
                    self.guarded(node, node.keep_projections)

    def _probe_nodes(self) -> None:
        """What `/v1/status` would say."""
        for node in self.nodes:
            if self.acts(node):
                log = node.log
                self.recorder.add(
                    Probe,
                    node=node.name,
                    group="g1",
                    replica=node.replica_id,
                    incarnation=node.incarnation,
                    role=node.state.value,
                    epoch=node.identity.epoch,
                    is_open=node.mastership is not None and node.mastership.is_open,
                    start=log.start,
                    end=log.end,
                    flushed=log.flushed,
                    confirm=log.confirm,
                )

    # -- afterwards

    def _repair(self) -> None:
        """No more faults, everything is delivered: the group must come to rest, complete."""
        self.coverage.saw("zombie_masters", len(self._zombies))
        self.recorder.add(Phase, name="heal")
        self.note("repaired")
        self._flush_rate = 1.0
        self._error_rate = 0.0
        self._cut_until_us = 0
        self.is_over = True
        self.controllers.heal()
        for node in self.nodes:
            node.paused_until_us = node.deaf_until_us = 0
            node.disk.forget_failures()
        for number in range(ROUNDS_MAX):
            self._fair_round(number)
            if self._is_at_rest() and self._are_producers_idle():
                self._check_end()
                return
            reason = self._why_operator()
            if reason is not None:
                self.note(f"nobody is electable ({reason}): the operator decides")
                self.is_given_up = True
                self.coverage.saw("given_up")
                self.coverage.saw(f"given_up_{reason}")
                return
        raise StalledError(f"seed {self.seed}: no rest after {ROUNDS_MAX} rounds")

    def _fair_round(self, number: int) -> None:
        """Everything that can act acts once, and everything under way arrives, in order."""
        self.clock.now_us += ROUND_US
        self._run_timers()
        for node in self.nodes:
            if node.wants_restart:
                self._kill_process(node)
            if not node.is_up:
                self.guarded(node, node.boot)
        while self.controllers.requests:
            self.controllers.deliver_request(0)
        self._exchange()
        if number % 10 == 9:
            for node in self.nodes:
                self.guarded(node, node.ask_again)
        if number % 5 == 4:
            self.controllers.elect(self._alive(), error_rate=0.0)

    def _are_producers_idle(self) -> bool:
        return all(client.is_idle for client in self.clients if isinstance(client, ProducerClient))

    def _is_at_rest(self) -> bool:
        masters = [node for node in self.nodes if node.mastership is not None]
        if len(masters) != 1:
            return False
        master = masters[0]
        assert master.mastership is not None
        end = master.log.end
        group = self.controllers.group_view()
        return (
            group is not None
            and group.master == master.replica_id
            and master.mastership.is_open
            and master.mastership.term.can_accept()
            and all(node.log.end == end and node.log.confirm == end for node in self.nodes)
            and len(group.sync_state_set) == sum(not node.is_learner for node in self.nodes)
        )

    def _why_operator(self) -> str | None:
        """Why the group needs its operator; None if it can go on."""
        group = self.controllers.group
        if group is None:
            return None
        members = group.sync_state_set
        return why_operator(group, present={m for m in members if self.node_of(m) is not None})

    def _boot_all(self) -> None:
        """Whoever is down starts once more, so that every log can be read; a fuse may still burn
        in the first try."""
        for node in self.nodes:
            while not node.is_up:
                self.guarded(node, node.boot)

    def _check_end(self) -> None:
        for node in self.nodes:
            if (
                content(node.log, node.log.start, node.log.end)
                != self.judge.truth[node.log.start :]
            ):
                raise ViolationError(f"INV-3: the log of {node.name} differs at rest")
            self.judge.same_state(node.name, node.store)
            self.coverage.saw("logs_cut_short", node.log.start > 0)
            if node.is_learner:
                self.coverage.saw("learners_whole")
