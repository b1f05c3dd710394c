"""Rules of whole controllers, taken out: Raft on a disk, and sessions (INV-10, R38).

Mostly caught in the world: only there do controllers run on PySyncObj, behind HTTP and WebSockets.
"""

from typing import Any

from paceline_broker.controllers.session import NEVER_APPLIED, ControllerLinks
from paceline_chaos.mutants.mutant import Mutant, Patch, of_moment
from paceline_controller.raft.host import RaftQuorum
from paceline_controller.raft.overrides import SafeNode
from paceline_controller.state import Machine

_RAFT = frozenset({"L1", "S1", "S13", "S14", "S18", "S30", "S32", "INV-12"})
"""Committed entries are gone, or two logs are: whatever was decided by them falls apart."""


def _journal_not_synced() -> list[Patch]:
    """The journal is written and called durable."""

    async def sync_forever(host: RaftQuorum) -> None:
        assert host._core is not None
        while not host._is_stopped:
            await host._sync_wanted.wait()
            host._sync_wanted.clear()
            ticket = None if host._is_stopped else host._core.journal.begin_sync()
            if ticket is not None:
                host._core.synced(ticket)
                host._kick()

    return [(RaftQuorum, "_sync_forever", sync_forever)]


def _tail_cut_by_any_append() -> list[Patch]:
    """As in the library: an append cuts whatever follows it, also what is committed."""
    return [(SafeNode, "_without_known_entries", lambda node, message: message)]


def _sequence_stands() -> list[Patch]:
    """Every command of a session has the sequence of its first: the answer is the first one's."""

    async def until_definite(links: ControllerLinks, command: Any) -> dict[str, Any]:
        while True:
            if not links._session:
                await links._open_session()
            session, sequence = links._session, links._next_sequence
            result = await links._repeat(session, sequence, command)
            if result.get("reason") not in NEVER_APPLIED:
                return result
            links._session = ""
            await links._pause(50)

    return [(ControllerLinks, "_until_definite", until_definite)]


def _applied_again() -> list[Patch]:
    """A command that comes again is carried out again."""
    admit = Machine._admit

    def admit_anew(machine: Machine, envelope: Any, command: Any) -> tuple[Any, None]:
        session, _ = admit(machine, envelope, command)
        return session, None

    return [(Machine, "_admit", admit_anew)]


CONTROLLERS = (
    Mutant(
        rule="R38-again",
        meaning="a command that comes twice is applied twice",
        caught_by=frozenset({"R38"}),
        patches=_applied_again,
    ),
    Mutant(
        rule="INV-10-fsync",
        meaning="the Raft journal is not fsynced",
        patches=_journal_not_synced,
        **of_moment("dark", "moments:dark", *_RAFT),
    ),
    Mutant(
        rule="INV-10-tail",
        meaning="late appends cut committed entries; the node stops itself first, so CODE shows it",
        caught_by=_RAFT | {"CODE"},
        patches=_tail_cut_by_any_append,
        bed="world",
    ),
    Mutant(
        rule="R38-sequence",
        meaning="commands of a session share a sequence",
        caught_by=frozenset({"L1", "S17", "S30"}),
        patches=_sequence_stands,
        bed="world",
    ),
)
"""Judged by the seeds of their beds, like the product."""
