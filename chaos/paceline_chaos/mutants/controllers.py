"""Rules of whole controllers, taken out: Raft on a disk, reads, sessions, who is asked (R38).

Caught in the world: only there do controllers run on PySyncObj, behind HTTP and WebSockets.
"""

import asyncio
from typing import Any

from paceline.errors import NotLeaderError
from paceline.types import GroupName
from paceline_chaos.mutants.mutant import Mutant, Patch
from paceline_controller import liveness as liveness_module
from paceline_controller.election import Standing
from paceline_controller.liveness import Liveness
from paceline_controller.proposer import Proposer
from paceline_controller.raft.core import RaftCore
from paceline_controller.raft.host import RaftHost
from paceline_controller.raft.journal import Journal
from paceline_controller.raft.overrides import SafeNode
from paceline_controller.session_server import SessionServer
from paceline_controller.state.machine import Machine

_RAFT = frozenset({"CODE", "S1", "S13", "S14", "S18", "S30", "S32", "INV-12"})
"""Committed entries are gone, or two logs are: whatever was decided by them falls apart."""


def _journal_not_synced() -> list[Patch]:
    """The journal is written and called durable."""

    async def sync_forever(host: RaftHost) -> None:
        assert host._core is not None
        while not host._is_stopped:
            await host._sync_wanted.wait()
            host._sync_wanted.clear()
            ticket = None if host._is_stopped else host._core.journal.begin_sync()
            if ticket is not None:
                host._core.synced(ticket)
                host._kick()

    return [(RaftHost, "_sync_forever", sync_forever)]


def _answers_before_sync() -> list[Patch]:
    """Messages leave at once: votes and acknowledgements of what is not on disk yet."""

    def let_go(core: RaftCore) -> None:
        while core._held:
            _, peer, message = core._held.popleft()
            core._shell.send(peer, message)

    return [(RaftCore, "_let_go", let_go)]


def _term_forgotten() -> list[Patch]:
    """A restarted controller knows neither its term nor its vote."""
    recover = Journal._recover

    def recover_without(journal: Journal) -> Any:
        recovered = recover(journal)
        recovered.term = recovered.entries[-1][2] if recovered.entries else 0
        recovered.voted_for = None
        return recovered

    return [(Journal, "_recover", recover_without)]


def _tail_cut_by_any_append() -> list[Patch]:
    """As in the library: an append cuts whatever follows it, also what is committed."""
    return [(SafeNode, "_without_known_entries", lambda node, message: message)]


def _no_barrier() -> list[Patch]:
    """Who believes to lead answers at once."""

    async def read_barrier(host: RaftHost, *, timeout_ms: int) -> None:
        host._ensure_leading()

    return [(RaftHost, "read_barrier", read_barrier)]


def _anybody_answers() -> list[Patch]:
    """Every controller answers what it has, also to who asks for the newest."""
    from paceline_controller.http import HttpApi

    async def read_point(api: Any, request: Any) -> None:
        return

    return [(HttpApi, "_read_point", read_point)]


CONTROLLERS = ()
