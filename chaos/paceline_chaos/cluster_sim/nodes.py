"""The servers of a world: machines with disks, and on them the incarnations of real programs.

A node starts its program as the operating system would: the same `serve` as the entry points, on
the machine's disk, clock and a generator of this incarnation. A node whose process ended by itself
is started again, as a service manager does; one that a fault has taken waits for the fault's end.
An exit that no fault explains, and whatever no task has caught, is a bug of the product.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson

from paceline.errors import CorruptLogError, PacelineError, StorageError
from paceline.platform.address import Address
from paceline.platform.disk_memory import MemoryDisk, PowerLost
from paceline.platform.node_process import serve
from paceline.platform.ports import read_whole
from paceline.platform.runtime import SeededRandom
from paceline.platform.secret import ClusterSecrets
from paceline.platform.telemetry import Node as LogNode
from paceline.platform.telemetry import become_node
from paceline_broker.app import Broker
from paceline_broker.config import HOUR_MS, BrokerConfig
from paceline_chaos.cluster_sim import refusing
from paceline_chaos.cluster_sim.addresses import (
    CLIENT_PORT,
    CONTROLLER_PORT,
    REPLICATION_PORT,
    Addresses,
)
from paceline_chaos.cluster_sim.topology import MIB, Topology
from paceline_chaos.sim.machine import Machine
from paceline_chaos.sim.process import Process, State
from paceline_chaos.verdict import Violation, code_or_harness
from paceline_controller.app import serve as serve_controller
from paceline_controller.config import ControllerConfig
from paceline_controller.node import ControllerNode

DATA = "/data"
_CONTENT = ("log", "projections")
"""Folders of a broker that hold what it stores."""
SECRETS = ClusterSecrets(b"simulated-world-secret-of-32-bytes")
RESTART_MS = 300
"""A service manager's pause before it starts a process that ended by itself."""
UNHEALTHY_MS = 3_000
"""`/healthz` may say 503 for so long."""
TRANSACTION_TIME_OUT_MS = 1_000
TRANSACTION_CHECK_MS = 2_000
"""Checks come while the world lasts (S24)."""
TRANSACTION_CHECKS = 3
"""Few, so that what nobody decides goes to the check-max topic."""
CLEAN_MS = 500
"""Between two looks at what may be deleted: a world lasts as long as three of the usual."""
WELL_MS = 3_000
"""Who has worked for so long has got over the faults of its disk."""
_DAMAGED = "damaged"
"""In the sentence of a refusal that is for damage."""
FLOODED_BYTES_MAX, FLOODED_PLACES = 4 * MIB, 64
"""What brokers have for all clients where one is hostile: less than it sends and opens."""
_REMOVED = "was removed from the quorum"
_BROKEN_INVARIANT = "an invariant is broken"
_FAILING = frozenset({"disk_fail", "disk_full"})
"""Then calls of the disk fail."""


class Node:
    """One server: owner of its machine, disk and process. `program` runs in the process."""

    def __init__(
        self,
        name: str,
        machine: Machine,
        topology: Topology,
        addresses: Addresses,
        bugs: list[Violation],
    ) -> None:
        self.name = name
        self.machine = machine
        self.topology = topology
        self.addresses = addresses
        self.disk = MemoryDisk()
        self.disk.sync_delay_ms = topology.sync_ms
        self.chance = SeededRandom(f"{topology.seed}/disk/{name}")
        self.process: Process | None = None
        self.incarnation = 0
        self.boots = 1
        self.holds = 0
        """Faults that want it down; it starts when there are none."""
        self.is_powerless = False
        self.excuses: set[str] = set()
        """Faults of the disk that may explain why it stops, until it is well again; see
        `is_explained`."""
        self.is_damaged = False
        """Its disk was damaged: when it refuses to start, the operator empties the folder."""
        self.has_lost_disk = False
        """It came back empty once: a controller never votes again after that (R18)."""
        self.discarded: list[MemoryDisk] = []
        """Disks that the operator has thrown away: what is on them is judged, too."""
        self.exits: list[str] = []
        self.on_exit: Callable[[Node, str], None] = lambda node, reason: None
        self.on_emptied: Callable[[Node], None] = lambda node: None
        """The operator has emptied a folder that its program refused."""
        self._bugs = bugs
        self._well_since_ms: int | None = None

    @property
    def is_running(self) -> bool:
        return self.process is not None and not self.process.is_dead

    @property
    def is_answering(self) -> bool:
        return self.process is not None and self.is_running and not self.process.is_paused

    async def program(self) -> None:
        """What the process runs."""
        raise NotImplementedError

    def random(self) -> SeededRandom:
        """The generator of this incarnation."""
        return SeededRandom(f"{self.topology.seed}/node/{self.name}/{self.incarnation}")

    def forget_program(self) -> None:
        """The program's object of the process before speaks for nobody."""
        raise NotImplementedError

    # -- life --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the program, unless it runs or a fault wants it down."""
        if self.is_running or self.holds:
            return
        if self.incarnation:
            # Open files of the process before are void; after power loss, pages are lost as well.
            self.disk.crash(self.chance, keep_page_cache=not self.is_powerless)
        if self.is_powerless:
            self.is_powerless = False
            self.boots += 1
        self.incarnation += 1
        self.forget_program()
        self.process = self.machine.start(self._main, name=self.name)
        self.disk.on_blocked = self.process.block
        self.process.on_end.append(self._ended)

    def hold(self) -> None:
        """A fault takes the node; `release` gives it back."""
        self.holds += 1

    def release(self) -> None:
        self.holds -= 1
        self.start()

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            self.process.kill()

    def power_off(self) -> None:
        """Power loss of the machine; what was not synced is lost or torn at the next start."""
        self.is_powerless = True
        self.machine.power_off()

    async def _main(self) -> None:
        become_node(LogNode(name=self.name))
        await self.program()

    def _ended(self, process: Process) -> None:
        """The process is over. By itself: with a reason, and it will be started again."""
        if process is not self.process or process.state is State.KILLED:
            return
        error = process.error
        if process.state is State.EXITED or isinstance(error, PowerLost):
            return
        reason = f"{type(error).__name__}: {error}"
        if self.may_end(reason):
            return
        self.exits.append(reason)
        is_refusal = isinstance(error, PacelineError) and _BROKEN_INVARIANT not in reason
        if not is_refusal or not self.is_explained(error):
            assert error is not None
            self._bugs.append(code_or_harness(error, of=f"{self.name} ended: "))
        self.on_exit(self, reason)
        if is_refusal and self._is_by_damage(error):
            self.discarded.append(self.disk)
            self.empty_disk()
            self.on_emptied(self)
        self._start_later()

    def may_end(self, reason: str) -> bool:
        """Whether it is to end now, for good."""
        return False

    def retire(self) -> None:
        """Its machine is switched off for ever; what is on its disk is judged as thrown away."""
        self.hold()
        self.kill()

    # -- excuses -----------------------------------------------------------------------------------

    def excuse(self, kind: str) -> None:
        """A fault of its disk begins."""
        self.excuses.add(kind)
        self._well_since_ms = None

    def is_explained(self, error: BaseException | None) -> bool:
        """Whether what was done to its disk, and nothing else, leads to such an error."""
        if error is None or self.is_powerless:
            return self.is_powerless
        chain = [error]
        while chain[-1].__cause__ is not None:
            chain.append(chain[-1].__cause__)
        if any(isinstance(one, PowerLost) for one in chain):
            return True
        if any(isinstance(one, CorruptLogError) for one in chain):
            return self.is_damaged
        if any(isinstance(one, StorageError) for one in chain):
            return bool(self.excuses & _FAILING)
        is_refusal = any(isinstance(one, PacelineError) for one in chain)
        return is_refusal and bool(self.excuses - {"disk_flip"} or self._is_by_damage(error))

    def _is_by_damage(self, error: BaseException | None) -> bool:
        """Whether it was refused because of its flipped bit, and says so."""
        if not self.is_damaged or not isinstance(error, PacelineError):
            return False
        one: BaseException | None = error
        while one is not None:
            if isinstance(one, CorruptLogError) or _DAMAGED in str(one):
                return True
            one = one.__cause__
        return False

    def is_well(self) -> bool:
        """Whether it does its work."""
        raise NotImplementedError

    def check_health(self, now_ms: int) -> None:
        """Looked at from time to time: who has been well for a while has no excuse any more."""
        is_sick = self.disk.is_failing or self.disk.capacity_bytes is not None
        if is_sick or not self.is_well():
            self._well_since_ms = None
        elif self._well_since_ms is None:
            self._well_since_ms = now_ms
        elif now_ms - self._well_since_ms >= WELL_MS:
            self.excuses.clear()

    def _start_later(self) -> None:
        loop = self.machine.loop
        loop.kernel_at(loop.now_ns + RESTART_MS * 1_000_000, lambda _: self.start(), None)

    def empty_disk(self) -> None:
        """The disk is replaced by an empty one. The process must be dead."""
        assert not self.is_running
        self.has_lost_disk = True
        before, self.disk = self.disk, MemoryDisk()
        self.disk.sync_delay_ms = before.sync_delay_ms
        self.disk.capacity_bytes = None
        self.disk.observer = before.observer
        self.is_damaged = False


class BrokerNode(Node):
    """A broker."""

    def __init__(
        self,
        name: str,
        group: str,
        machine: Machine,
        topology: Topology,
        addresses: Addresses,
        bugs: list[Violation],
    ) -> None:
        super().__init__(name, machine, topology, addresses, bugs)
        self.group = group
        self.address = addresses.broker(name)
        self.on_built: Callable[[BrokerNode, Broker], None] = lambda me, broker: None
        self._broker: Broker | None = None
        self._unhealthy_since_ms: int | None = None

    @property
    def broker(self) -> Broker | None:
        """The program's object while it runs."""
        return self._broker if self.is_running else None

    def status(self) -> dict[str, Any] | None:
        """What the broker says of itself; None while nobody is there to say it."""
        broker = self.broker
        return None if broker is None or not self.is_answering else broker.role.status()

    def is_well(self) -> bool:
        status = self.status()
        return (
            status is not None
            and bool(status["is_healthy"])
            and status["role"] in ("master", "replica")
        )

    def check_health(self, now_ms: int) -> None:
        """A service manager's liveness check: a process that is unhealthy for long is killed.

        A broker whose disk has failed acknowledges nothing more until it is started again (R22).
        """
        super().check_health(now_ms)
        status = self.status()
        if status is None or status["is_fit"]:
            self._unhealthy_since_ms = None
            return
        if self._unhealthy_since_ms is None:
            self._unhealthy_since_ms = now_ms
        elif now_ms - self._unhealthy_since_ms >= UNHEALTHY_MS:
            self._unhealthy_since_ms = None
            self.kill()
            self.on_exit(self, f"killed as unhealthy: {status['stopped']}")
            self._start_later()

    def store_id(self) -> str:
        """Of the store on its disk; "" while it has none."""
        path = f"{DATA}/identity.json"
        if self.is_powerless or not self.disk.exists(path):
            return ""
        return str(orjson.loads(read_whole(self.disk, path))["store_id"])

    def segment_files(self) -> list[str]:
        """Names of the files of its log, in order."""
        if self.is_powerless or not self.disk.exists(f"{DATA}/identity.json"):
            return []
        names = self.disk.list(f"{DATA}/log")
        return [name for name in names if name.endswith(".log") and name[:20].isdigit()]

    def wipe_log(self) -> None:
        """Log and projections are gone; what says who it is stays. The process must be dead."""
        assert not self.is_running
        if self.is_powerless or not self.disk.exists(f"{DATA}/identity.json"):
            return
        for folder in _CONTENT:
            for name in self.disk.list(f"{DATA}/{folder}"):
                self.disk.lose(f"{DATA}/{folder}/{name}")

    def forget_program(self) -> None:
        self._broker = None

    async def program(self) -> None:
        self._broker = Broker(
            self._config(),
            disk=self.disk,
            clock=self.machine.clock,
            random=self.random(),
            secrets=SECRETS,
            boot=f"boot-{self.name}-{self.boots}",
            node=LogNode(name=self.name),
        )
        self.on_built(self, self._broker)
        await serve(self._broker)

    def _config(self) -> BrokerConfig:
        topology, timers, ip = self.topology, self.topology.timers, self.machine.ip
        config = BrokerConfig(
            group=self.group,
            data_dir=DATA,
            secret_file="",
            controllers=self.addresses.controller_addresses(),
            listen=Address(ip, CLIENT_PORT),
            replication_listen=Address(ip, REPLICATION_PORT),
            segment_size_bytes=max(MIB, topology.segment_size_bytes),
            heartbeat_interval_ms=timers.heartbeat_interval_ms,
            replica_lag_ms_max=timers.replica_lag_ms_max,
            slave_timeout_ms=timers.slave_timeout_ms,
            checkpoint_interval_ms=timers.checkpoint_interval_ms,
            lock_lease_ms=topology.lock_lease_ms,
            scrub_interval_hours=topology.scrub_ms / HOUR_MS,
            log_size_bytes_max=topology.log_bytes_max,
            is_learner=self.name in topology.learners,
            clean_resource_interval_ms=CLEAN_MS,
            transaction_time_out_ms=TRANSACTION_TIME_OUT_MS,
            transaction_check_interval_ms=TRANSACTION_CHECK_MS,
            transaction_check_max=TRANSACTION_CHECKS,
            enable_remote_escape=topology.escapes,
            access_message_in_memory_max_ratio=0 if topology.reads_replicas else 40,
            hooks=(refusing.NAME,) if topology.has_hooks else (),
            # Else every send to a topic that was deleted would make it again.
            auto_create_topic_enable=False,
        )
        config.validate()
        # Smaller than is allowed: files of a log come and go while a world lasts (R25).
        config = replace(config, segment_size_bytes=topology.segment_size_bytes)
        if topology.has_floods:
            config = replace(
                config, request_bytes_max=FLOODED_BYTES_MAX, connections_max=FLOODED_PLACES
            )
        return config


class ControllerServer(Node):
    """A controller."""

    def __init__(
        self,
        name: str,
        machine: Machine,
        topology: Topology,
        addresses: Addresses,
        bugs: list[Violation],
    ) -> None:
        super().__init__(name, machine, topology, addresses, bugs)
        self.address = addresses.controller(name)
        self.is_leaving = False
        """The operator replaces it: it ends when it has heard that it is no member any more."""
        self.on_built: Callable[[ControllerServer, ControllerNode], None] = lambda me, node: None
        self.applied_index = 0
        """Of the last command that its state holds; known without a call that reads its clock."""
        self._node: ControllerNode | None = None

    @property
    def controller(self) -> ControllerNode | None:
        """The program's object while it runs."""
        return self._node if self.is_running else None

    def may_end(self, reason: str) -> bool:
        return self.is_leaving and _REMOVED in reason

    def is_explained(self, error: BaseException | None) -> bool:
        return self.may_end(str(error)) or super().is_explained(error)

    @property
    def is_leader(self) -> bool:
        """Whether it says that it leads."""
        node = self.controller
        return node is not None and node.quorum.status().is_leader

    def is_well(self) -> bool:
        """Whether it follows or leads."""
        node = self.controller
        return node is not None and self.is_answering and node.quorum.status().applied_index > 0

    def forget_program(self) -> None:
        self._node = None

    async def program(self) -> None:
        await serve_controller(
            self._config(),
            disk=self.disk,
            clock=self.machine.clock,
            random=self.random(),
            secrets=SECRETS,
            on_built=self._built,
        )

    def _built(self, node: ControllerNode) -> None:
        self._node = node
        self.applied_index = 0
        node.quorum.on_applied(lambda command, result, events, index: self._has_applied(index))
        node.quorum.on_restored(self._has_applied)
        self.on_built(self, node)

    def _has_applied(self, index: int) -> None:
        self.applied_index = index

    def _config(self) -> ControllerConfig:
        topology, timers = self.topology, self.topology.timers
        config = ControllerConfig(
            controller_id=self.name,
            data_dir=DATA,
            secret_file="",
            peers=tuple(f"{peer}={at}" for peer, at in self.addresses.peers(self.name).items()),
            controllers=self.addresses.controller_addresses(self.name),
            listen=Address(self.machine.ip, CONTROLLER_PORT),
            heartbeat_timeout_ms=timers.heartbeat_timeout_ms,
            election_open_timeout_ms=timers.election_open_timeout_ms,
            progress_timeout_ms=timers.progress_timeout_ms,
            acting_settle_ms=timers.acting_settle_ms,
            total_replicas=topology.replicas,
            min_in_sync_replicas=topology.min_in_sync_replicas,
            durability="memory" if topology.durability == "memory" else "fsync",
        )
        config.validate()
        return config
