"""Rules taken out, one at a time: what the bed must notice.

A mutant replaces one or a few functions of the real code, or of the glue where the role's own steps
are at stake, by versions without the rule. `target` asserts that what it replaces exists, so a
mutant cannot outlive the code that it is about. Product code has no branch for any of this.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from paceline.types import MasterEpoch, PhysicalOffset
from paceline_broker.log.commit_log import CommitLog
from paceline_broker.replication import master as master_module
from paceline_broker.replication.master import MasterReplication
from paceline_broker.replication.master_events import (
    NOTHING,
    MasterReady,
    ProposalUnknown,
    ReplicaAcked,
)
from paceline_broker.replication.peer import Peer
from paceline_chaos.core.node import Node
from paceline_controller.state import mastership, replicas

Patch = tuple[object, str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One rule, and the code without it."""

    rule: str
    meaning: str
    patches: Callable[[], list[Patch]]

    @contextmanager
    def applied(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, value in self.patches():
                assert hasattr(owner, name), f"{owner} has no {name} any more: {self.rule}"
                stack.enter_context(patch.object(owner, name, value))
            yield


def _failure_resumed() -> list[Patch]:
    """A master whose disk failed opens its log again and goes on in its epoch."""

    def fail(node: Node, error: Exception) -> None:
        master = node.master
        node.disk.crash(node.world.dice.random, keep_page_cache=False, survival=0.0)
        node.log, _ = CommitLog.open(node.disk, "data/log", segment_size_bytes=4096)
        node.ticket = None
        if master is None:
            node.leave()
            return
        master._end, master._flushed = node.log.end, node.log.flushed
        master.confirm = min(master.confirm, node.log.end)
        for link in list(node.links.values()):
            link.connection.close(link.connection.master)
        node.links.clear()
        master._peers.clear()
        master._live.clear()

    return [(Node, "fail", fail)]


def _old_connections_live_on() -> list[Patch]:
    """A replica that adopts an epoch keeps its connection to the old master, and feeds it."""

    def leave(node: Node) -> None:
        node.leader = None
        node.end_mastership()

    return [(Node, "leave", leave)]


def _epoch_not_persisted() -> list[Patch]:
    from paceline_broker.identity import StoreIdentity

    def adopt_epoch(store: StoreIdentity, epoch: MasterEpoch) -> None:
        store._epoch = epoch

    return [(StoreIdentity, "adopt_epoch", adopt_epoch)]


def _open_at_once() -> list[Patch]:
    """A new master answers from the confirm it happens to know."""
    lead = Node.lead

    def lead_and_open(node: Node, group: Any) -> None:
        lead(node, group)
        if node.master is not None and not node.master.is_open:
            node.master.is_open = True
            node.world.judge.opened(node.name, node.master.epoch, node.log.confirm)

    return [(Node, "lead", lead_and_open)]


def _rounds_not_waited_for() -> list[Patch]:
    def on_round_requested(master: MasterReplication) -> MasterReady:
        master._round_wanted = master._round_sent + 1
        return MasterReady(confirmed_round=master._round_wanted)

    return [(MasterReplication, "_on_round_requested", on_round_requested)]


def _unknown_means_no() -> list[Patch]:
    """A set change without an answer is taken as refused."""
    step = MasterReplication.step

    def guess(master: MasterReplication, event: Any) -> MasterReady:
        if isinstance(event, ProposalUnknown) and master._proposal is not None:
            master._proposal = None
            master._set_changed()
            return master._advanced()
        return step(master, event)

    return [(MasterReplication, "step", guess)]


def _no_minimum() -> list[Patch]:
    """Sets shrink to whoever is left, and that is enough to confirm."""
    init = MasterReplication.__init__

    def init_without(master: MasterReplication, **arguments: Any) -> None:
        init(master, **arguments)
        master._min = 1
        master._set_changed()

    def check_new_members(group: Any, command: Any) -> None:
        return

    def remaining_set(group: Any, command: Any) -> set[Any]:
        return set(group.sync_state_set) - set(command.without)

    return [
        (MasterReplication, "__init__", init_without),
        (mastership, "_check_new_members", check_new_members),
        (mastership, "_remaining_set", remaining_set),
    ]


def _registration_removes_nobody() -> list[Patch]:
    """A store that is not the recorded one keeps the recorded one's place in the set."""

    def remove_member(group: Any, member: Any, outcome: Any, *, reason: str) -> None:
        return

    return [
        (replicas, "remove_member", remove_member),
        (mastership, "remove_member", remove_member),
    ]


def _grow_without_catching_up() -> list[Patch]:
    """A replica becomes a member as soon as it is connected."""

    def try_grow(master: MasterReplication, peer: Peer) -> MasterReady:
        if master._proposal is not None:
            return NOTHING
        position, peer.position = peer.position, max(master.confirm, master._start_end)
        ready = grow(master, peer)
        peer.position = position
        return ready

    grow = MasterReplication._try_grow

    def advanced(master: MasterReplication) -> MasterReady:
        """Members that have not caught up are not waited for either."""
        behind = {
            replica: peer.position
            for replica, peer in master._live.items()
            if peer.position < master.confirm
        }
        for replica in behind:
            master._live[replica].position = master._end
        ready = advance(master)
        for replica, position in behind.items():
            master._live[replica].position = position
        return ready

    advance = MasterReplication._advanced
    return [
        (MasterReplication, "_try_grow", try_grow),
        (MasterReplication, "_advanced", advanced),
    ]


def _appended_counts() -> list[Patch]:
    """With fsync durability a replica counts by what it has written."""
    on_acked = MasterReplication._on_acked

    def on_acked_appended(master: MasterReplication, event: ReplicaAcked) -> MasterReady:
        if master._counts_flushed:
            event = event._replace(flushed=event.appended)
        return on_acked(master, event)

    return [(MasterReplication, "_on_acked", on_acked_appended)]


def _own_appended_counts() -> list[Patch]:
    """The master's own position is its end, flushed or not."""
    advance = MasterReplication._advanced

    def advanced(master: MasterReplication) -> MasterReady:
        flushed, master._flushed = master._flushed, master._end
        ready = advance(master)
        master._flushed = flushed
        return ready

    return [(MasterReplication, "_advanced", advanced)]


def _lost_memory_not_told() -> list[Patch]:
    """With memory durability a power loss is not told at registration."""

    def why_not_member(group: Any, replica: Any, request: Any) -> str | None:
        return "other_store" if replica.store_id != request.store_id else None

    return [(replicas, "_why_not_member", why_not_member)]


def _election_checks_nothing() -> list[Patch]:
    """An election is applied whatever has changed since it was decided."""

    def check(*arguments: Any) -> None:
        return

    def remaining_set(group: Any, command: Any) -> set[Any]:
        members: set[Any] = group.sync_state_set | {command.winner}
        return members - set(command.without)

    def is_below_floor(*arguments: Any) -> bool:
        return False  # the floor that it names has moved as well

    return [
        (mastership, "_check_numbers", check),
        (mastership, "_is_below_floor", is_below_floor),
        (mastership, "_check_winner", check),
        (mastership, "_check_members", check),
        (mastership, "_remaining_set", remaining_set),
    ]


def _failed_fsync_forgotten() -> list[Patch]:
    """After a failed fsync the next one counts."""

    def flush_failed(node: Node, error: Exception) -> None:
        node.log._unsynced = [node.log._segments.active]
        node.log._ticket = None

    return [(Node, "flush_failed", flush_failed)]


def _shrink_counts_at_once() -> list[Patch]:
    """A smaller set is used as soon as it is proposed."""
    changed = MasterReplication._set_changed

    def set_changed(master: MasterReplication) -> None:
        changed(master)
        if master._proposal is not None:
            members = master._proposal.sync_state_set
            master._others = tuple(sorted(members - {master.replica_id}))

    return [(MasterReplication, "_set_changed", set_changed)]


def _parting_by_length() -> list[Patch]:
    """A replica is cut at the shorter end, whatever epochs wrote it."""

    def parting_point(*, here_end: int, there_end: int, **_: Any) -> PhysicalOffset:
        return PhysicalOffset(min(here_end, there_end))

    from paceline_broker.replication import replica as replica_module

    return [
        (master_module, "parting_point", parting_point),
        (replica_module, "parting_point", parting_point),
    ]


def _missing_member_ignored() -> list[Patch]:
    """A member without a connection is not waited for."""
    advance = MasterReplication._advanced

    def advanced(master: MasterReplication) -> MasterReady:
        others = master._others
        master._others = tuple(replica for replica in others if replica in master._live)
        ready = advance(master)
        master._others = others
        return ready

    return [(MasterReplication, "_advanced", advanced)]


MUTANTS: dict[str, Mutant] = {
    mutant.rule: mutant
    for mutant in (
        Mutant(rule="R1", meaning="a failed master goes on in its epoch", patches=_failure_resumed),
        Mutant(
            rule="R2", meaning="old connections outlive an epoch", patches=_old_connections_live_on
        ),
        Mutant(rule="R2-persist", meaning="an epoch is not fsynced", patches=_epoch_not_persisted),
        Mutant(rule="R3", meaning="answers before the epoch is open", patches=_open_at_once),
        Mutant(rule="R4", meaning="reads wait for no round", patches=_rounds_not_waited_for),
        Mutant(rule="R5", meaning="logs part by length", patches=_parting_by_length),
        Mutant(rule="R7", meaning="an unknown set change is a no", patches=_unknown_means_no),
        Mutant(rule="R8", meaning="sets shrink below min", patches=_no_minimum),
        Mutant(
            rule="R9", meaning="another store keeps its place", patches=_registration_removes_nobody
        ),
        Mutant(rule="R10", meaning="absent members count", patches=_missing_member_ignored),
        Mutant(
            rule="R10-grow", meaning="members need not catch up", patches=_grow_without_catching_up
        ),
        Mutant(rule="R11", meaning="appended counts as durable", patches=_appended_counts),
        Mutant(rule="R11-own", meaning="own appended counts", patches=_own_appended_counts),
        Mutant(rule="R13", meaning="lost memory is not told", patches=_lost_memory_not_told),
        Mutant(rule="R15", meaning="elections check nothing", patches=_election_checks_nothing),
        Mutant(rule="R22", meaning="a failed fsync is forgotten", patches=_failed_fsync_forgotten),
        Mutant(
            rule="INV-6", meaning="a smaller set counts at once", patches=_shrink_counts_at_once
        ),
    )
}
"""By rule; several of one rule have a suffix."""
