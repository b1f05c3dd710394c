"""One controller's log on a machine of its own: disk for ever, process for a life."""

import asyncio
from collections.abc import Callable
from typing import Any

from paceline.errors import CorruptLogError, StorageError
from paceline.platform.disk_memory import MemoryDisk, PowerLost
from paceline.platform.runtime import SeededRandom
from paceline.platform.secret import ClusterSecrets
from paceline.types import ControllerId
from paceline_chaos.raft.judge import Judge
from paceline_chaos.raft.machine import ListMachine
from paceline_chaos.raft.plan import Shape
from paceline_chaos.sim.machine import Machine
from paceline_chaos.sim.process import Process, State
from paceline_chaos.verdict import Violation, code_or_harness
from paceline_controller.raft.host import RaftQuorum
from paceline_controller.raft.members import Members
from paceline_controller.raft.peers.frames import Message

DATA = "/data"
FOLDER = f"{DATA}/raft"
PORT = 7001
SECRETS = ClusterSecrets(b"secret of the simulated quorum")
RESTART_MS = 120
"""A service manager's pause before it starts a process that ended by itself."""


class WatchedQuorum(RaftQuorum):
    """The quorum, and at each step of it: the judge looks, and the process may die."""

    def __init__(self, node: "RaftNode", machine: ListMachine, **options: Any) -> None:
        super().__init__(machine, **options)
        self._node = node
        self._list = machine

    def send(self, peer: ControllerId, message: Message) -> None:
        self._node.step()
        self._node.judge.sent(self._node.name, peer, message)
        if message["type"] == "append_entries":
            self._judge_commit(message)
        super().send(peer, message)

    def _judge_commit(self, message: Message) -> None:
        assert self._core is not None
        term, index = message["term"], message["commit_index"]
        entry = self._core.journal.entry(index)
        if entry is not None:
            self._node.judge.committed(self._node.name, term, index, entry_term=entry[2])

    def apply(self, payload: bytes, index: int) -> None:
        self._node.step()
        super().apply(payload, index)
        judge, machine = self._node.judge, self._list
        judge.counts["applied"] += 1
        judge.applied(self._node.name, index, mark=machine.mark, count=len(machine.values))

    def members_applied(self, members: Members, proposal: str, index: int) -> None:
        self._node.step()
        super().members_applied(members, proposal, index)
        self._node.judge.generation(self._node.name, members, index)

    def take_snapshot(self) -> bytes:
        self._node.step()
        self._node.judge.counts["compactions"] += 1
        return super().take_snapshot()

    def restore(self, machine: bytes, index: int) -> None:
        self._node.step()
        super().restore(machine, index)
        judge, values = self._node.judge, self._list.values
        judge.restored(self._node.name, index, mark=self._list.mark, count=len(values))
        judge.counts["snapshots_installed" if self._links else "snapshots_loaded"] += 1


class RaftNode:
    """A controller of the bed."""

    def __init__(
        self,
        name: ControllerId,
        machine: Machine,
        *,
        peers: dict[ControllerId, tuple[str, int]],
        shape: Shape,
        seed: str,
        judge: Judge,
    ) -> None:
        self.name = name
        self.machine = machine
        self.judge = judge
        self.shape = shape
        self.seed = seed
        self.peers = peers
        self.chance = SeededRandom(f"{seed}/disk/{name}")
        self.disk = self._new_disk()
        self.process: Process | None = None
        self.quorum: WatchedQuorum | None = None
        self.list = ListMachine()
        self.life = 0
        self.holds = 0
        """Faults that want it down; it starts when there are none."""
        self.is_powerless = False
        self.is_out = False
        """It lost its disk, or a part of it: it may not take part again (R18)."""
        self.is_flipped = False
        self.is_spare = False
        """It has not joined yet."""
        self.is_removed = False
        """It has heard that it is no member any more, and has ended."""
        self.has_bad_disk = False
        """Calls of its disk fail, or have failed in this life."""
        self.steps_left: int | None = None
        self.dies_with_power = False
        self.bugs: list[Violation] = []
        self.on_end: Callable[[], None] = lambda: None
        self._over: asyncio.Future[None] | None = None
        self._segments = 0

    # -- what is seen ------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        return self.process is not None and not self.process.is_dead

    @property
    def is_leading(self) -> bool:
        return self.is_running and self.quorum is not None and self.quorum.status().is_leader

    # -- life --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the program, unless it runs or a fault wants it down."""
        if self.is_running or self.holds or self.is_spare or self.is_removed:
            return
        if self.life:
            self.disk.crash(self.chance, keep_page_cache=not self.is_powerless)
        self._renew_disk_faults()
        self.is_powerless = False
        self.life += 1
        self.judge.counts["starts"] += 1
        self.process = self.machine.start(self._main, name=self.name)
        self.disk.on_blocked = self.process.block
        self.process.on_end.append(self._ended)

    def _renew_disk_faults(self) -> None:
        self.disk.observer = None
        self.steps_left = None
        self.has_bad_disk = self.disk.capacity_bytes is not None

    async def _main(self) -> None:
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._over = over
        failures: list[Exception] = []

        def fail(error: Exception) -> None:
            failures.append(error)
            if not over.done():
                over.set_result(None)

        self.list = ListMachine()
        quorum = self.quorum = WatchedQuorum(
            self,
            self.list,
            controller_id=self.name,
            listen=(self.machine.ip, PORT),
            peers=self.peers,
            data_folder=DATA,
            disk=self.disk,
            clock=self.machine.clock,
            random=SeededRandom(f"{self.seed}/node/{self.name}/{self.life}"),
            secrets=SECRETS,
            settings=self.shape.settings,
            on_fatal=fail,
        )
        await quorum.start()
        self._count_truncations(quorum)
        self.judge.started(self.name, quorum.status().term)
        await over
        if not failures:
            await quorum.stop()
        if failures:
            raise failures[0]

    def _count_truncations(self, quorum: RaftQuorum) -> None:
        assert quorum._core is not None
        journal = quorum._core.journal
        truncate = journal.deleteEntriesFrom

        def counted(entryFrom: int) -> None:  # noqa: N803 - the library's name
            self.judge.counts["truncations"] += 1
            truncate(entryFrom)

        journal.deleteEntriesFrom = counted  # type: ignore[method-assign]

    def _ended(self, process: Process) -> None:
        """The process is over; by itself: it is started again, unless it must not."""
        if process is not self.process:
            return
        self._count_segments()
        self.on_end()
        if process.state is State.FAILED and not isinstance(process.error, PowerLost):
            assert process.error is not None
            self._weigh(process.error)
        if process.state is not State.KILLED and not self.is_out and not self.is_removed:
            self._start_later()

    def _weigh(self, error: BaseException) -> None:
        """Whether its end is what a fault explains."""
        if isinstance(error, CorruptLogError) and self.is_flipped:
            self.judge.counts["refusals"] += 1
            self.is_out = True
            self.judge.lost_disk(self.name)
        elif isinstance(error, StorageError) and "was removed from the quorum" in error.message:
            self.judge.counts["left"] += 1
            self.is_removed = True
        elif isinstance(error, StorageError) and self.has_bad_disk:
            self.judge.counts["ends_by_disk"] += 1
        elif isinstance(error, CorruptLogError):
            sentence = f"{self.name} found damage that no fault made: {error.message}"
            self.bugs.append(Violation(property="R23", sentence=sentence))
        else:
            self.bugs.append(code_or_harness(error, of=f"{self.name} ended: "))

    def _start_later(self) -> None:
        loop = self.machine.loop
        loop.kernel_at(loop.now_ns + RESTART_MS * 1_000_000, lambda _: self.start(), None)

    def _count_segments(self) -> None:
        core = None if self.quorum is None else self.quorum._core
        if core is not None:
            newest = core.journal._segments[-1].number
            self.judge.counts["segments_begun"] += max(0, newest - max(1, self._segments))
            self._segments = max(self._segments, newest)

    def release(self) -> None:
        self.holds -= 1
        self.start()

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            self.process.kill()

    def power_off(self) -> None:
        self.is_powerless = True
        self.machine.power_off()

    def stop(self) -> None:
        """SIGTERM."""
        if self._over is not None and self.is_running and not self._over.done():
            assert self.process is not None
            with self.machine.loop.acting_as(self.process):
                self._over.set_result(None)

    # -- death at a point --------------------------------------------------------------------------

    def step(self) -> None:
        """A step of the quorum begins: it may be the last."""
        if self.steps_left is None:
            return
        if self.steps_left > 0:
            self.steps_left -= 1
            return
        self.steps_left = None
        self.judge.counts["deaths_in_step"] += 1
        self._die()
        self.disk.fuse = 0  # what unwinds now writes nothing any more
        raise PowerLost

    def arm_fuse(self, operations: int) -> None:
        """Lose power inside the disk operations that follow, after so many."""
        disk = self.disk
        disk.fuse = operations

        def observe(_operation: str, _path: str) -> None:
            if disk.fuse == 0 and self.is_running:
                self.judge.counts["deaths_by_disk"] += 1
                self.dies_with_power = True
                self._die()

        disk.observer = observe

    def _die(self) -> None:
        if self.dies_with_power:
            self.power_off()
        else:
            self.kill()

    # -- the disk ----------------------------------------------------------------------------------

    def _new_disk(self) -> MemoryDisk:
        disk = MemoryDisk()
        disk.sync_delay_ms = self.shape.sync_ms
        return disk

    def lose_disk(self) -> None:
        """Dead, and back with an empty disk."""
        self.kill()
        self.disk = self._new_disk()
        self.is_out = True
        self.judge.lost_disk(self.name)

    def flip_old_segment(self) -> bool:
        """Damage a segment that another follows: what must be found. Whether there is one."""
        segments = [name for name in self.disk.list(FOLDER) if name.startswith("journal-")]
        if len(segments) < 2:
            return False
        path = f"{FOLDER}/{segments[int(self.chance.uniform(0, len(segments) - 1))]}"
        file = self.disk.open(path)
        size = self.disk.size(file)
        file.close()
        self.disk.flip_bit(path, int(self.chance.uniform(0, size)), 3)
        self.is_flipped = True
        return True
