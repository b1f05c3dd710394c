"""One `RaftCore` whose peers are the test: messages in by hand, messages out in a list."""

import orjson

from paceline.platform.disk_memory import MemoryDisk
from paceline.platform.runtime import ManualClock, SeededRandom
from paceline.types import ControllerId
from paceline_controller.raft.core import RaftCore
from paceline_controller.raft.log.entries import COMMAND_ENTRY, NO_OP_ENTRY, Entry
from paceline_controller.raft.log.journal import Journal
from paceline_controller.raft.log.snapshot import Snapshot, encode_snapshot
from paceline_controller.raft.members import Members
from paceline_controller.raft.peers.frames import Message, encode_message, parse_message
from paceline_controller.raft.settings import RaftSettings

C1, C2, C3 = (ControllerId(f"c{number}") for number in (1, 2, 3))


class Gate:
    def __init__(self, *, may_vote: bool = True) -> None:
        self.may_vote = may_vote

    def caught_up(self) -> None:
        self.may_vote = True

    def admitted(self, store: str) -> None:
        self.may_vote = self.may_vote or self.is_own_store(store)

    def is_own_store(self, store: str) -> bool:
        return store in ("", "51" * 16)

    def remembered_store(self, peer: ControllerId) -> str:
        return f"{int(peer[1:]):02x}" * 16


class Single:
    """Controller c1 with peers c2 and c3. `auto_sync`: the journal syncs as soon as asked."""

    def __init__(
        self,
        disk: MemoryDisk | None = None,
        *,
        may_vote: bool = True,
        auto_sync: bool = True,
        settings: RaftSettings | None = None,
    ) -> None:
        self.clock = ManualClock(monotonic_ms=10_000)
        self.sent: list[tuple[ControllerId, Message]] = []
        self.applied: list[str] = []
        self.restored: list[int] = []
        self.generations: list[tuple[int, str, int]] = []
        self.snapshots_wanted = 0
        self.auto_sync = auto_sync
        self.gate = Gate(may_vote=may_vote)
        self.disk = disk or MemoryDisk()
        self.disk.make_folder("/raft")
        if not Journal.exists(self.disk, "/raft"):
            Journal.create(self.disk, "/raft", controller_id=C1)
        self.core = RaftCore(
            self,
            controller_id=C1,
            peers=[C2, C3],
            folder="/raft",
            disk=self.disk,
            clock=self.clock,
            random=SeededRandom("single"),
            gate=self.gate,
            settings=settings or RaftSettings(),
        )
        self.core.apply_committed()
        for peer in (C2, C3):
            self.core.connected(peer)
        self.sync()

    # -- the core's shell --------------------------------------------------------------------------

    def send(self, peer: ControllerId, message: Message) -> None:
        parsed = parse_message(encode_message(message))
        assert parsed is not None
        self.sent.append((peer, parsed))

    def wants_sync(self) -> None:
        pass

    def apply(self, payload: bytes, index: int) -> None:
        self.applied.append(orjson.loads(payload))

    def wants_snapshot(self) -> None:
        self.snapshots_wanted += 1

    def take_snapshot(self) -> bytes:
        return orjson.dumps(self.applied)

    def restore(self, machine: bytes, index: int) -> None:
        self.applied = orjson.loads(machine)
        self.restored.append(index)

    def members_applied(self, members: Members, proposal: str, index: int) -> None:
        self.generations.append((members.generation, proposal, index))

    # -- by hand -----------------------------------------------------------------------------------

    def sync(self) -> None:
        ticket = self.core.journal.begin_sync()
        if ticket is not None:
            self.core.journal.sync_ticket_now(ticket)
            self.core.synced(ticket)

    def receive(self, peer: ControllerId, message: Message) -> list[Message]:
        """Messages sent in answer (after a tick and, unless it is held, a sync)."""
        before = len(self.sent)
        self.core.receive(peer, message)
        self.tick()
        return [answer for _, answer in self.sent[before:]]

    def pass_time(self, milliseconds: int) -> None:
        """Its loop runs all the while."""
        for _ in range(milliseconds // 10):
            self.clock.advance(10)
            self.tick()

    def tick(self) -> None:
        self.core.tick()
        if self.auto_sync:
            self.sync()

    def append(
        self, entries: list[Entry], *, term: int, previous: tuple[int, int], commit: int = 1
    ) -> list[Message]:
        """An append of leader c2; `previous` is (index, term)."""
        message: Message = {
            "type": "append_entries",
            "term": term,
            "commit_index": commit,
            "prevLogIdx": previous[0],
            "prevLogTerm": previous[1],
            "entries": entries,
        }
        return self.receive(C2, message)

    def become_leader(self) -> None:
        """Win pre-vote and vote of c2."""
        self.clock.advance(2_000)
        self.tick()
        asked = self.last("pre_vote")
        self.receive(
            C2, {"type": "pre_vote_granted", "term": asked["term"], "round": asked["round"]}
        )
        self.receive(C2, {"type": "response_vote", "term": self.core.term})
        assert self.core.is_leading

    def acknowledge(self, peer: ControllerId, index: int, *, term: int | None = None) -> None:
        answer: Message = {
            "type": "next_node_idx",
            "term": self.core.term if term is None else term,
            "next_node_idx": index + 1,
            "reset": False,
            "success": True,
        }
        self.receive(peer, answer)

    def last(self, kind: str) -> Message:
        return next(message for _, message in reversed(self.sent) if message["type"] == kind)

    def kinds(self) -> list[str]:
        return [message["type"] for _, message in self.sent]

    def log_indexes(self) -> list[tuple[int, int]]:
        return [(entry[1], entry[2]) for entry in self.core.journal[:]]


def command(name: str, index: int, term: int) -> Entry:
    return (COMMAND_ENTRY + orjson.dumps(name), index, term)


def no_op(index: int, term: int) -> Entry:
    return (NO_OP_ENTRY, index, term)


def commands(first: int, last: int, *, term: int, prefix: str = "x") -> list[Entry]:
    return [command(f"{prefix}{index}", index, term) for index in range(first, last + 1)]


def snapshot_at(index: int, *, term: int, applied: list[str]) -> bytes:
    return encode_snapshot(
        Snapshot(
            last=command(f"x{index}", index, term),
            previous=command(f"x{index - 1}", index - 1, term),
            machine=orjson.dumps(applied),
        )
    )


def snapshot_chunk(content: bytes, offset: int, size: int, *, term: int, commit: int) -> Message:
    return {
        "type": "append_entries",
        "term": term,
        "commit_index": commit,
        "serialized": (content[offset : offset + size], offset, len(content)),
    }
