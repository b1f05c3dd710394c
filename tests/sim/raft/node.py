"""One simulated controller: a disk for ever, a `RaftCore` for one life; see `world.py`."""

import asyncio
from typing import TYPE_CHECKING, Any

import orjson

from paceline.platform.disk_memory import MemoryDisk
from paceline.types import ControllerId
from paceline_controller.raft.core import RaftCore
from paceline_controller.raft.identity import Identity
from paceline_controller.raft.log.journal import Journal
from paceline_controller.raft.members import Members
from paceline_controller.raft.peers.directory import Directory
from paceline_controller.raft.peers.frames import Message, encode_message, parse_message

if TYPE_CHECKING:
    from tests.sim.raft.world import World

FOLDER = "/raft"


class SimNode:
    """One controller: its disk for ever, its core for one life."""

    def __init__(
        self, world: "World", name: ControllerId, configured: list[ControllerId] | None = None
    ) -> None:
        self.world = world
        self.configured = configured
        self.directory: Directory | None = None
        self.is_removed = False
        self.name = name
        self.disk = MemoryDisk()
        self.disk.make_folder(FOLDER)
        self.core: RaftCore | None = None
        self.identity: Identity | None = None
        self.life = 0
        self.applied: list[str] = []
        self.proposed: dict[str, int] = {}  # waiting in this life -> term
        self.is_sync_scheduled = False
        self.error: BaseException | None = None

    # -- the core's shell --------------------------------------------------------------------------

    def send(self, peer: ControllerId, message: Message) -> None:
        self.world.transmit(self.name, peer, encode_message(message))

    def wants_sync(self) -> None:
        if self.is_sync_scheduled:
            return
        self.is_sync_scheduled = True
        self.world.at(0.0, self, self._begin_sync)

    def apply(self, payload: bytes, index: int) -> None:
        name = orjson.loads(payload)
        self.applied.append(name)
        self.world.check_applied(self)
        if name in self.proposed:
            del self.proposed[name]
            self.world.acknowledged.append(name)

    def wants_snapshot(self) -> None:
        self.world.at(0.0, self, self._compact)

    def _compact(self) -> None:
        assert self.core is not None
        asyncio.run(self.core.compact())  # this disk has no delay, so it does not suspend

    def take_snapshot(self) -> bytes:
        return orjson.dumps(self.applied)

    def restore(self, machine: bytes, index: int) -> None:
        self.applied = orjson.loads(machine)
        self.world.restores += 1
        self.world.check_applied(self)

    def members_applied(self, members: Members, proposal: str, index: int) -> None:
        if self.core is not None:  # not while it recovers
            self.world.generations.setdefault(members.generation, members.to_json())
            self.follow()

    def follow(self) -> None:
        """The directory goes by the log; links to strangers are closed."""
        assert self.core is not None
        assert self.directory is not None
        self.directory.follow(latest=self.core.members, committed=self.core.committed_members)
        for pair in self.world.links:
            (peer,) = pair - {self.name} if self.name in pair else (self.name,)
            if peer != self.name and not self.directory.knows(peer):
                self.world.flap(pair)

    # -- life --------------------------------------------------------------------------------------

    def start(self) -> None:
        world = self.world
        self.life += 1
        self.applied, self.proposed, self.is_sync_scheduled = [], {}, False
        peers = [name for name in self.configured or world.founders if name != self.name]
        self.directory = Directory(self.name, {peer: ("sim", 1) for peer in peers})
        self.identity = Identity.open(
            self.disk,
            f"{FOLDER}/identity",
            controller_id=self.name,
            cluster="sim",
            peers=peers,
            random=world.random,
        )
        if not Journal.exists(self.disk, FOLDER):
            assert not self.identity.has_journal
            Journal.create(self.disk, FOLDER, controller_id=self.name)
        self.identity.journal_created()
        self.core = RaftCore(
            self,
            controller_id=self.name,
            peers=peers,
            folder=FOLDER,
            disk=self.disk,
            clock=world.clock,
            random=world.random,
            gate=self.identity,
            settings=world.settings,
        )
        self.core.apply_committed()
        self.follow()
        self.tick()

    def tick(self) -> None:
        """A tick now, and the next one in time."""
        assert self.core is not None
        self.core.tick()
        self.follow()
        self.world.check_leader(self)
        core = self.core
        if not core.is_leading or any(term != core.term for term in self.proposed.values()):
            self.proposed.clear()
        self.world.schedule_tick(self, self.core.next_tick_s() * 1000)

    def receive(self, peer: ControllerId, payload: bytes) -> None:
        assert self.core is not None
        message = parse_message(payload)
        assert message is not None
        self.core.receive(peer, message)
        self.tick()

    def propose(self, name: str) -> None:
        assert self.core is not None
        self.proposed[name] = self.core.term
        self.core.append(orjson.dumps(name))
        self.tick()

    def _begin_sync(self) -> None:
        assert self.core is not None
        self.is_sync_scheduled = False
        ticket = self.core.journal.begin_sync()
        if ticket is None:
            return
        self.is_sync_scheduled = True
        self.world.at(
            self.world.random.uniform(*self.world.sync_ms_of.get(self.name, self.world.sync_ms)),
            self,
            lambda: self._end_sync(ticket),
        )

    def _end_sync(self, ticket: Any) -> None:
        assert self.core is not None
        self.core.journal.sync_ticket_now(ticket)
        self.is_sync_scheduled = False
        self.core.synced(ticket)
        self.tick()


def meet(node: SimNode, peer: SimNode, heard: Members) -> None:
    """What a hello of the peer tells a node."""
    assert node.directory is not None
    assert node.identity is not None
    node.directory.hear(peer.name, heard)
    node.identity.met_generation(heard.generation)
    node.identity.learn(peer.name, node.directory.store_of(peer.name))
    node.is_removed = node.directory.is_removed and node.identity.may_vote
