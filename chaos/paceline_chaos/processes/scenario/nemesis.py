"""Carries faults out on real processes, and takes them back.

Targets are resolved when a fault begins: whoever is master then. Faults may overlap: a node is up
again when the last fault that keeps it down has ended, a link works when the last cut has healed.
What was done, and to whom in the end, goes into the history.
"""

import asyncio
import contextlib
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from paceline.platform.ports import Random
from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline_chaos.faults.plan import Fault
from paceline_chaos.history.model import FaultEvent
from paceline_chaos.history.recorder import Recorder
from paceline_chaos.processes.cluster import Cluster, Node
from paceline_chaos.processes.network import Network, Pair, reset_connections
from paceline_chaos.processes.node import power
from paceline_chaos.processes.node.fork_server import NodeProcess
from paceline_chaos.processes.node.slots import SLOTS, slot_of
from paceline_chaos.processes.rolling import roll
from paceline_chaos.processes.scenario import damage
from paceline_chaos.processes.scenario.aim import Aim
from paceline_chaos.processes.watch import Watch

STOP_TIMEOUT_MS = 15_000
KEEPER_INTERVAL_MS = 50
RENEWED_TOLD, RENEWED_PAUSE_MS = 5, 200
"""How often nodes are told to read their certificates, in each step of an exchange."""
RESTART_AFTER_MS = 500
"""What a service manager would wait before it starts a node again that has ended by itself."""


@dataclass(slots=True)
class Ended:
    """A node that ended although no fault had ended it."""

    node: str
    code: int
    words: str
    """The last line of its log."""
    excuse: str = ""
    """Why a fault or the scenario allows it; empty: nothing does, and the run is bad."""


class Nemesis:
    """Owned by the run. `network` is None where the scenario cuts nothing."""

    def __init__(
        self,
        cluster: Cluster,
        watch: Watch,
        recorder: Recorder,
        random: Random,
        *,
        network: Network | None,
        clients: Mapping[str, str],
    ) -> None:
        """`clients`: client -> its address."""
        self._cluster = cluster
        self._watch = watch
        self._recorder = recorder
        self._random = random
        self._network = network
        self._aim = Aim(cluster, watch, random, clients)
        self._down: Counter[str] = Counter()
        self._told_to_stop: dict[str, tuple[NodeProcess, bool]] = {}
        """Node -> the process that a graceful stop is for, and whether it was up by then."""
        self._asleep: Counter[str] = Counter()
        self._fused: dict[str, int] = {}
        """Node whose disk has a fuse -> how long it stays without power, ms."""
        self.ended: list[Ended] = []
        self._broken: Counter[str] = Counter()
        """Node -> faults of its disk that go on."""
        self._hurt: dict[str, NodeProcess | None] = {}
        """Node -> the process that was there when the last fault of its disk ended."""
        self.flipped: set[str] = set()
        """Nodes on whose disks a bit was flipped, and which were not emptied since."""
        self.emptied: list[str] = []
        """Nodes that refused to start because of damage, and were started empty."""
        self.may_empty = 0
        self._keeper: asyncio.Task[None] | None = None
        self._restarts: set[asyncio.Task[None]] = set()

    @property
    def missed(self) -> list[str]:
        """Targets of faults that found nobody to hit."""
        return self._aim.missed

    def start(self) -> None:
        """Begin to look after nodes that end by themselves."""
        self._keeper = spawn(self._keep(), name="keeper")

    async def stop(self) -> None:
        await cancel_and_wait(self._keeper, *self._restarts)

    async def carry_out(self, faults: Iterable[Fault]) -> None:
        """All faults, each at its time from now; returns when the last one has ended."""
        began = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            for fault in faults:
                group.create_task(self._one(fault, began))

    async def heal(self) -> None:
        """Nothing is broken any more: all nodes run, all links work, disks and clocks are good."""
        if self._network is not None:
            await self._network.heal_all()
        self._fused.clear()
        self._down.clear()
        self._asleep.clear()
        for name in list(self._broken):
            self._mend(self._cluster.nodes[name], whole=True)
        for node in self._cluster.nodes.values():
            for slot in ("sync_delay_ms", "is_full", "sync_failures", "write_failures", "fuse"):
                node.control.set(slot, 0)
            self._cluster.signal(node, signal.SIGCONT)
            self._start_again_if_unhealthy(node)
            if node.process is None:
                self._cluster.start(node)

    def _start_again_if_unhealthy(self, node: Node) -> None:
        """A process whose disk has failed never acknowledges again (R22): the next one may."""
        if not self._watch.statuses.get(node.name, {}).get("is_fit", True):
            self._kill_now(node)
            self._cluster.start(node)

    def _kill_now(self, node: Node) -> None:
        """kill -9, unless it has ended by itself meanwhile: that is told, not hidden."""
        self._notice(node)
        self._cluster.kill(node)

    # -- one fault --------------------------------------------------------------------------------

    async def _one(self, fault: Fault, began: float) -> None:
        loop = asyncio.get_running_loop()
        await pause(max(0.0, began + fault.at_ms / 1000 - loop.time()) * 1000)
        kinds: dict[str, Callable[[Fault], contextlib.AbstractAsyncContextManager[None]]] = {
            "kill": self._kill,
            "stop": self._stop,
            "roll": self._roll,
            "renew": self._renew,
            "pause": self._pause,
            "power": self._power,
            "power_at": self._power_at,
            "disk_lost": self._disk_lost,
            "disk_stale": self._disk_stale,
            "disk_flip": self._disk_flip,
        }
        act = kinds.get(fault.kind)
        if act is None:
            act = self._slots if fault.kind in SLOTS else self._links
        async with act(fault):
            await pause(fault.for_ms)

    def _say(
        self,
        fault: Fault,
        target: str,
        *,
        is_begin: bool,
        detail: str = "",
        at_us: int | None = None,
    ) -> None:
        """`at_us`: when it began, if what it did is known only later."""
        self._recorder.add(
            FaultEvent,
            at_us=self._recorder.now_us() if at_us is None else at_us,
            kind=fault.kind,
            target=target,
            is_begin=is_begin,
            detail=detail,
        )

    @asynccontextmanager
    async def _told(self, fault: Fault, nodes: list[Node]) -> AsyncIterator[None]:
        for node in nodes:
            self._say(fault, node.name, is_begin=True)
        try:
            yield
        finally:
            for node in nodes:
                self._say(fault, node.name, is_begin=False)

    # -- processes --------------------------------------------------------------------------------

    @asynccontextmanager
    async def _kill(self, fault: Fault) -> AsyncIterator[None]:
        nodes = await self._aim.nodes(fault.target)
        async with self._told(fault, nodes), self._held_down(nodes, fault.for_ms):
            for node in nodes:
                self._notice(node)
                self._cluster.signal(node, signal.SIGKILL)
            for node in nodes:
                self._cluster.reap(node)
            yield

    @asynccontextmanager
    async def _held_down(self, nodes: list[Node], for_ms: int) -> AsyncIterator[None]:
        """No process of these nodes starts inside the block; after it they run (0 ms: not yet)."""
        for node in nodes:
            self._down[node.name] += 1
        try:
            yield
        finally:
            if for_ms > 0:
                for node in nodes:
                    self._down[node.name] -= 1
                    if self._down[node.name] <= 0 and node.process is None:
                        self._cluster.start(node)

    @asynccontextmanager
    async def _stop(self, fault: Fault) -> AsyncIterator[None]:
        """A graceful stop: the node has to end by itself."""
        nodes = await self._aim.nodes(fault.target)
        async with self._told(fault, nodes), self._held_down(nodes, fault.for_ms):
            for node in nodes:
                self._notice(node)
                if node.process is not None:
                    is_up = node.name in self._watch.statuses
                    self._told_to_stop[node.name] = (node.process, is_up)
                self._cluster.signal(node, signal.SIGTERM)
            waited_ms = 0
            while any(node.is_running for node in nodes) and waited_ms < STOP_TIMEOUT_MS:
                await pause(KEEPER_INTERVAL_MS)
                waited_ms += KEEPER_INTERVAL_MS
            for node in nodes:
                self._cluster.signal(node, signal.SIGKILL)
                self._reap(node)
            yield

    @asynccontextmanager
    async def _roll(self, fault: Fault) -> AsyncIterator[None]:
        """All nodes of the target in turn; over when the last one is back."""
        nodes = await self._aim.nodes(fault.target)
        self.missed.extend(await roll(fault, nodes, self._watch, self._stop))
        yield

    @asynccontextmanager
    async def _renew(self, fault: Fault) -> AsyncIterator[None]:
        """Each step ends when whoever is up has been told of it again and again: a node that starts
        meanwhile may have read what was there before."""
        tls = self._cluster.tls
        assert tls is not None, "there are certificates in secure clusters only"
        is_other = bool(fault.details.get("authority", 0))
        steps = [tls.trust_both, tls.issue_by_other, tls.trust_issuing] if is_other else [tls.renew]
        self._say(fault, fault.target, is_begin=True)
        for step in steps:
            step()
            for _ in range(RENEWED_TOLD):
                for node in self._cluster.nodes.values():
                    if node.name in self._watch.statuses:  # it looks for signals by then
                        self._cluster.signal(node, signal.SIGHUP)
                await pause(RENEWED_PAUSE_MS)
        self._say(fault, fault.target, is_begin=False)
        yield

    @asynccontextmanager
    async def _pause(self, fault: Fault) -> AsyncIterator[None]:
        nodes = await self._aim.nodes(fault.target)
        async with self._told(fault, nodes):
            for node in nodes:
                self._asleep[node.name] += 1
                self._cluster.signal(node, signal.SIGSTOP)
            yield
            for node in nodes:
                self._asleep[node.name] -= 1
                if self._asleep[node.name] <= 0:
                    self._cluster.signal(node, signal.SIGCONT)

    # -- disks ------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _power(self, fault: Fault) -> AsyncIterator[None]:
        nodes = await self._aim.nodes(fault.target)
        async with self._held_down(nodes, fault.for_ms):
            began_us = self._recorder.now_us()
            for node in nodes:  # all at once, then what is left of their disks
                self._notice(node)
                self._cluster.signal(node, signal.SIGKILL)
            for node in nodes:
                self._cluster.reap(node)
                detail = self._cut_power(node, fault)
                self._say(fault, node.name, is_begin=True, detail=detail, at_us=began_us)
            yield
        for node in nodes:
            self._say(fault, node.name, is_begin=False)

    def _cut_power(self, node: Node, fault: Fault | None = None) -> str:
        assert node.shadow is not None, "power faults need shadows; Scenario.needs_shadow"
        survival = 0.5 if fault is None else fault.details.get("survival", 0.5)
        counts = power.cut(node.shadow, self._random, survival=survival)
        node.boots += 1
        return ", ".join(f"{name} {count}" for name, count in counts.items())

    @asynccontextmanager
    async def _power_at(self, fault: Fault) -> AsyncIterator[None]:
        """The node dies of its fuse; the keeper finds it and cuts its power."""
        nodes = await self._aim.nodes(fault.target)
        for node in nodes:
            operations = int(fault.details.get("operations", 10))
            self._say(fault, node.name, is_begin=True, detail=f"after {operations} operations")
            self._fused[node.name] = fault.for_ms
            node.control.set("fuse", operations + 1)
        yield
        for node in nodes:
            self._say(fault, node.name, is_begin=False)

    @asynccontextmanager
    async def _disk_lost(self, fault: Fault) -> AsyncIterator[None]:
        nodes = await self._aim.nodes(fault.target)
        async with self._told(fault, nodes), self._held_down(nodes, fault.for_ms):
            for node in nodes:
                self._kill_now(node)
                self._empty(node)
            yield

    def _empty(self, node: Node) -> None:
        self._cluster.empty(node)
        self.flipped.discard(node.name)

    @asynccontextmanager
    async def _disk_stale(self, fault: Fault) -> AsyncIterator[None]:
        """Killed, copied, started; after `for_ms` killed again and started on the copy."""
        nodes = await self._aim.nodes(fault.target)
        async with self._told(fault, nodes):
            for node in nodes:
                self._kill_now(node)
                power.copy_tree(node.folder, self._old_copy(node))
                if self._down[node.name] <= 0:
                    self._cluster.start(node)
            yield
            for node in nodes:
                self._kill_now(node)
                self._cluster.empty(node)  # flips may be in the copy, too
                self._old_copy(node).rename(node.folder)
                if self._down[node.name] <= 0:
                    self._cluster.start(node)

    def _old_copy(self, node: Node) -> Path:
        return node.folder.with_name(f"{node.name}.old")

    @asynccontextmanager
    async def _disk_flip(self, fault: Fault) -> AsyncIterator[None]:
        """`down` 1: the node is dead while it happens."""
        nodes = await self._aim.nodes(fault.target)
        is_down = bool(fault.details.get("down", 0))
        hit: set[str] = set()
        for node in nodes:
            began_us = self._recorder.now_us()
            if is_down:
                self._kill_now(node)
            is_below_confirm = bool(fault.details.get("region", 1))
            status = self._watch.statuses.get(node.name, {})
            detail = damage.flip(
                node.folder,
                self._random,
                file_class=int(fault.details.get("file", 0)),
                confirm=status.get("confirm") if is_below_confirm else None,
            )
            if detail is None:
                self.missed.append(f"{node.name}: no byte to flip")
            else:
                self.flipped.add(node.name)
                hit.add(node.name)
                self._say(fault, node.name, is_begin=True, detail=detail, at_us=began_us)
            if is_down and self._down[node.name] <= 0:
                self._cluster.start(node)
        yield
        for node in nodes:
            if node.name in hit:
                self._say(fault, node.name, is_begin=False)

    # -- what the node does to itself -------------------------------------------------------------

    @asynccontextmanager
    async def _slots(self, fault: Fault) -> AsyncIterator[None]:
        nodes = await self._aim.nodes(fault.target)
        slot, value = slot_of(fault)
        async with self._told(fault, nodes):
            before = {node.name: node.control.get(slot) for node in nodes}
            is_disk = fault.kind.startswith("disk_")
            for node in nodes:
                self._broken[node.name] += is_disk
                is_sum = slot == "wall_offset_ms"
                node.control.set(slot, value + before[node.name] if is_sum else value)
            yield
            if fault.for_ms > 0:
                for node in nodes:
                    node.control.set(slot, before[node.name])
                    if is_disk:
                        self._mend(node)
                    self._start_again_if_unhealthy(node)

    def _mend(self, node: Node, *, whole: bool = False) -> None:
        """The disk of a node is good again, as far as one fault goes or all of them."""
        self._broken[node.name] -= self._broken[node.name] if whole else 1
        self._hurt[node.name] = node.process

    # -- links ------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _links(self, fault: Fault) -> AsyncIterator[None]:
        assert self._network is not None, "cuts need a namespace; Scenario.needs_network"
        if fault.kind == "reset":
            for node in await self._aim.nodes(fault.target):
                count = reset_connections(node.host)
                self._say(fault, node.name, is_begin=True, detail=f"{count} connections")
                self._say(fault, node.name, is_begin=False)
            yield
            return
        pairs, target = await self._aim.pairs(fault)
        self._say(fault, target, is_begin=True)
        flapping = None
        if fault.kind == "thin_link":
            await self._network.thin(pairs, rate_kbit=int(fault.details["rate_kbit"]))
        elif fault.kind == "flap":
            flapping = spawn(self._flap(self._network, pairs, fault), name="flap")
        else:
            await self._network.cut(pairs)
        yield
        if fault.kind == "thin_link":
            await self._network.widen(pairs)
        elif flapping is not None:
            await cancel_and_wait(flapping)
        else:
            await self._network.heal(pairs)
        self._say(fault, target, is_begin=False)

    async def _flap(self, network: Network, pairs: list[Pair], fault: Fault) -> None:
        half_ms = fault.details.get("period_ms", 200) / 2
        while True:
            await network.cut(pairs)
            try:
                await pause(half_ms)
            finally:
                await network.heal(pairs)
            await pause(half_ms)

    # -- nodes that end by themselves -------------------------------------------------------------

    async def _keep(self) -> None:
        while True:
            await pause(KEEPER_INTERVAL_MS)
            for node in self._cluster.nodes.values():
                if self._down[node.name] <= 0:  # who is held down is the fault's to reap
                    self._notice(node)

    def _notice(self, node: Node) -> None:
        """Whether a node has ended by itself; if so it is told, and started again later."""
        if not node.is_running:
            self._reap(node)

    def _reap(self, node: Node) -> None:
        process, code = node.process, self._cluster.reap(node)
        if process is None:
            return
        assert code is not None
        if not self._is_as_told(node, process, code):
            self._ended(node, process, code)

    def _is_as_told(self, node: Node, process: NodeProcess, code: int) -> bool:
        """Whether a fault has stopped it gracefully, even if another fault finds that first."""
        told, was_up = self._told_to_stop.get(node.name, (None, False))
        # Before a process has come so far as to look for signals, SIGTERM ends it at once.
        return process is told and (code == 0 or (code == -signal.SIGTERM and not was_up))

    def _ended(self, node: Node, process: NodeProcess | None, code: int) -> None:
        if node.name in self._fused and code == -signal.SIGKILL:
            for_ms = self._fused.pop(node.name)
            node.control.set("fuse", 0)
            detail = self._cut_power(node)
            self._recorder.add(
                FaultEvent, kind="power", target=node.name, is_begin=True, detail=detail
            )
            self._start_later(node, for_ms)
            return
        excuse = self._excuse(node, process, code)
        words = damage.last_words(node.log_path)
        self.ended.append(Ended(node.name, code, words, excuse))
        self._start_later(node, RESTART_AFTER_MS)

    def _excuse(self, node: Node, process: NodeProcess | None, code: int) -> str:
        """What allows a node to end by itself; it empties a disk that the node has refused."""
        is_hurt = self._broken[node.name] > 0 or self._hurt.get(node.name) is process
        if is_hurt and process is not None and code != 0:
            return "its disk had failed"
        is_refused = node.name in self.flipped and damage.is_refused_for_damage(node.log_path)
        if not is_refused or len(self.emptied) >= self.may_empty:
            return ""
        self.emptied.append(node.name)
        self._empty(node)  # what its last sentence tells the operator to do
        self._recorder.add(
            FaultEvent,
            kind="disk_lost",
            target=node.name,
            is_begin=True,
            detail="refused to start for damage; started again empty",
        )
        return "it refused a damaged log"

    def _start_later(self, node: Node, after_ms: int) -> None:
        async def start() -> None:
            await pause(after_ms)
            if self._down[node.name] <= 0 and node.process is None:
                self._cluster.start(node)

        task = spawn(start(), name=f"start-{node.name}")
        self._restarts.add(task)
        task.add_done_callback(self._restarts.discard)
