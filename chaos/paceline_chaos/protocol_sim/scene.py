"""The scene of a run: nodes, connections, controllers, and what of them can reach what."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from paceline.errors import CorruptLogError, StorageError
from paceline.platform.disk_memory import PowerLost
from paceline.types import Incarnation, ReplicaId
from paceline.wire.cluster import GroupSettings
from paceline_broker.replication.master.ports import TermSettings
from paceline_chaos.history.model import FaultEvent
from paceline_chaos.history.recorder import Recorder
from paceline_chaos.protocol_sim.clock import BedClock
from paceline_chaos.protocol_sim.controllers import GROUP, Controllers, Request
from paceline_chaos.protocol_sim.coverage import Coverage
from paceline_chaos.protocol_sim.dice import Dice
from paceline_chaos.protocol_sim.doors import Door
from paceline_chaos.protocol_sim.judge import Judge
from paceline_chaos.protocol_sim.network import Connection
from paceline_chaos.protocol_sim.node import Node
from paceline_chaos.protocol_sim.process import Process, StepDown
from paceline_chaos.protocol_sim.shape import (
    copies_min,
    draw_learners,
    draw_log_bytes,
    draw_settings,
    told_to_checkers,
)
from paceline_chaos.protocol_sim.turns import TurnLoop

AIMING_SEEDS = 3
"""One in so many: the others get further in between."""
AIMED_SHARE = 0.2
AIMED_OPERATIONS = 16
"""A cut of two segments and its two notes."""


class Scene:
    """State of a run. `trace` collects one line for each event worth reading."""

    def __init__(self, seed: int, *, changes: Mapping[str, Any] | None = None) -> None:
        """`changes`: members of the group's settings that are not the seed's own."""
        self.seed = seed
        self.dice = Dice(f"core bed {seed}")
        self._aims = Dice(f"aimed crashes {seed}")
        """Apart: what the other dice draw stays what it was."""
        self.clock = BedClock()
        self.loop = TurnLoop(lambda: self.clock.now_us)
        self.coverage = Coverage()
        self.trace: list[str] = []
        self.settings: GroupSettings = replace(draw_settings(self.dice), **(changes or {}))
        self.segment_bytes = self.dice.one_of([4096, 16384, 65536])
        self.log_bytes_max = draw_log_bytes(seed, self.segment_bytes)
        """Above this size a master gives up the oldest segments (R26); 0: nothing is given up."""
        self.lag_ms_max = self.dice.one_of([600, 1200, 2000])
        self.unconfirmed_bytes_max = self.dice.one_of([3000, 1 << 20])
        frame_bytes, window_bytes = self.dice.one_of(
            [(600, 1200), (2000, 6000), (1 << 18, 1 << 20)]
        )
        self.term_settings = TermSettings(
            catch_up_frame_bytes=frame_bytes, window_bytes=window_bytes
        )
        """Small pieces: who lags is behind for long enough to be mistaken for a member (R10)."""
        self.lease_ms = self.dice.one_of([1000, 3000, 10_000])
        self.tells_floor = self.dice.happens(0.6)
        """Whether masters keep the controllers' confirm floor up to date (R16)."""
        total, learners = self.settings.total_replicas, draw_learners(seed)
        self.recorder = Recorder(
            lambda: self.clock.now_us,
            {
                "bed": "core",
                "seed": seed,
                "groups": {str(GROUP): []},
                **told_to_checkers(self.settings),
                "total_replicas": total,
                "learners": [f"g1-b{n}" for n in range(total + 1, total + learners + 1)],
                "lock_lease_ms": self.lease_ms,
            },
        )
        self.judge = Judge(copies_min=copies_min(self.settings))
        self.controllers = Controllers(
            self.dice, self.settings, self.clock, self.coverage, self.recorder
        )
        self.nodes = [Node(self, f"g1-b{n}") for n in range(1, total + learners + 1)]
        for node in self.nodes[total:]:
            node.is_learner = True
        self.connections: list[Connection[Node]] = []
        self.doors: list[Door] = []
        """Connections of clients."""
        self.is_over = False
        """No new messages are made any more."""
        self._connections_count = 0
        self.step_downs: list[StepDown] = []
        """Masters that have asked to be replaced and were not heard yet."""
        self.step_down_answers: list[tuple[StepDown, str | None]] = []
        self._probes: list[tuple[Node, int, ReplicaId, Incarnation, asyncio.Future[bool]]] = []
        self._cut: set[str] = set()
        self._cut_clients: set[str] = set()
        """Who is with the nodes that are cut off; the controllers are with the others."""
        self._cut_until_us = 0

    # -- for the nodes

    def aim(self, node: Process) -> None:
        """A step of several parts begins on a disk (a cut, a new beginning, a recovery): at times
        the power fails within it. Random fuses seldom meet one."""
        if self.seed % AIMING_SEEDS != AIMING_SEEDS - 1:
            return
        is_meant = self.settings.durability == "fsync" and not self.is_over
        if is_meant and node.disk.fuse is None and self._aims.happens(AIMED_SHARE):
            node.disk.fuse = self._aims.below(AIMED_OPERATIONS)
            self.coverage.saw("crashes_aimed")

    def note(self, line: str) -> None:
        self.trace.append(f"{self.clock.now_us / 1_000_000:8.3f} {line}")

    def fault(self, kind: str, target: str, *, is_begin: bool = True, detail: str = "") -> None:
        """A fault begins or ends: for the trace and the history."""
        self.note(f"{kind} of {target} {'begins' if is_begin else 'ends'} {detail}".rstrip())
        self.recorder.add(FaultEvent, kind=kind, target=target, is_begin=is_begin, detail=detail)

    def ask(self, request: Request) -> None:
        """A node's command to the controllers; what a cut node says may arrive after the cut."""
        if request.node not in self._cut or self._cut_until_us <= self.clock.now_us:
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

    def connect(self, replica: Node, master: Node) -> Connection[Node]:
        self._connections_count += 1
        connection = Connection(self._connections_count, replica, master)
        self.connections.append(connection)
        return connection

    def probe(
        self, master: Any, replica: ReplicaId, incarnation: Incarnation
    ) -> "asyncio.Future[bool]":
        """Ask for that start of a replica: True if it is surely gone."""
        answer: asyncio.Future[bool] = self.loop.create_future()
        self._probes.append((master, master.generation, replica, incarnation, answer))
        return answer

    def node_named(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def restart(self, name: str) -> None:
        """The process ends and another begins; the machine stays on."""
        node = self.node_named(name)
        self._stop(node)
        node.disk.crash(self.dice.random, keep_page_cache=True)
        self.guarded(node, node.boot)

    # -- who can do what

    def is_paused(self, node: Process) -> bool:
        return node.paused_until_us > self.clock.now_us

    def _is_deaf(self, node: Process) -> bool:
        return node.deaf_until_us > self.clock.now_us or self.is_paused(node)

    def acts(self, node: Process) -> bool:
        return node.is_up and not self.is_paused(node)

    def _are_parted(self, one: Node, other: Node) -> bool:
        is_on = self._cut_until_us > self.clock.now_us
        return is_on and (one.name in self._cut) != (other.name in self._cut)

    def is_cut_off(self, node: Process) -> bool:
        """Whether the controllers do not reach it."""
        return self._cut_until_us > self.clock.now_us and node.name in self._cut

    @property
    def cut_clients(self) -> set[str]:
        """Clients that do not reach the controllers now."""
        return self._cut_clients if self._cut_until_us > self.clock.now_us else set()

    def is_out_of_reach(self, client: str, node: Process) -> bool:
        """Whether a client is on the other side of a partition."""
        is_on = self._cut_until_us > self.clock.now_us
        return is_on and (client in self._cut_clients) != (node.name in self._cut)

    def is_zombie(self, node: Process) -> bool:
        """It leads in an epoch that the controllers have ended."""
        group = self.controllers.group
        mastership = node.mastership
        return (
            mastership is not None and group is not None and mastership.epoch < group.master_epoch
        )

    # -- ends of processes

    def _kill_process(self, node: Process) -> None:
        """What it has written stays in the page cache; after a failed fsync that proves nothing."""
        self.note(f"{node.name} is killed")
        self.coverage.saw("kills")
        self._stop(node)
        node.disk.crash(self.dice.random, keep_page_cache=True)

    def _lose_power(self, node: Process) -> None:
        self.note(f"{node.name} loses power")
        self.coverage.saw("power_losses")
        self._stop(node)
        node.boots_count += 1
        is_memory = self.settings.durability == "memory"  # a clean loss is the meaner one there
        survival = self.dice.one_of([0.0, 0.0, 0.5] if is_memory else [0.0, 0.5, 1.0])
        node.disk.crash(self.dice.random, keep_page_cache=False, survival=survival)

    def _stop(self, node: Process) -> None:
        """The process is gone; what it sent may still arrive."""
        node.is_up = False
        node.life.is_over = True
        node.paused_until_us = 0
        self.controllers.forget_registrations(node.name)
        for connection in self.connections:
            end = connection.end_of(node)
            if end.node is node and end.generation == node.generation:
                connection.break_off(self.dice)
                end.is_open = False
                end.inbox.clear()
        self.connections = [c for c in self.connections if not c.is_over]
        for door in self.doors:
            if door.node is node:
                door.break_off(self.dice)

    def guarded(self, node: Process, act: Callable[[], None]) -> None:
        """One turn of a process, and what becomes of it."""
        loop = self.loop
        before, loop.life = loop.life, node.life
        try:
            act()
            loop.run_ready()
        except PowerLost:
            loop.abandon_turn()
            self.coverage.saw("crash_points")
            self.fault("power_at", node.name)
            self._lose_power(node)
        except CorruptLogError:
            raise  # no fault of this bed damages what was written
        except StorageError as error:
            if node.is_up:
                node.fail(error)
                loop.run_ready()
            else:
                self._kill_process(node)
        finally:
            loop.life = before

    def at_some(self, act: Callable[[Node], None], is_meant: Callable[[Node], bool]) -> None:
        """`act` on one of the nodes that can act and are meant, if there is one."""
        nodes = [node for node in self.nodes if self.acts(node) and is_meant(node)]
        if nodes:
            node = self.dice.one_of(nodes)
            self.guarded(node, lambda: act(node))


def is_master(node: Node) -> bool:
    return node.mastership is not None
