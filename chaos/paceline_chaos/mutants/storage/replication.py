"""Rules of the sync state set and of confirm, taken out (R7 to R13, INV-1, INV-6)."""

from typing import Any

from paceline.errors import InSyncReplicasNotEnoughError
from paceline.types import PhysicalOffset
from paceline.wire.cluster import GroupSettings
from paceline_broker.log.commit_log import CommitLog
from paceline_broker.replication.master import relaxed_acks
from paceline_broker.replication.master.events import (
    NOTHING,
    MasterReady,
    ProposalUnknown,
    ReplicaAcked,
)
from paceline_broker.replication.master.master import MasterReplication
from paceline_broker.replication.master.peer import Peer
from paceline_broker.replication.replica.replica import ReplicaReady, ReplicaReplication
from paceline_broker.role import mastership as broker_mastership
from paceline_broker.role.mastership import Mastership
from paceline_chaos.mutants.mutant import NOT_WHERE_IT_MUST_BE, Mutant, Patch
from paceline_controller.state import mastership, replicas


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


def _appends_without_members() -> list[Patch]:
    """Sends are appended whoever acknowledges, and wait."""
    ensure_can_append = Mastership.ensure_can_append

    def ensure_without(led: Mastership, *, is_freeing: bool = False) -> None:
        try:
            ensure_can_append(led, is_freeing=is_freeing)
        except InSyncReplicasNotEnoughError:
            return

    return [(Mastership, "ensure_can_append", ensure_without)]


def _registration_removes_nobody() -> list[Patch]:
    """A store that is not the recorded one keeps the recorded one's place in the set."""

    def remove_member(group: Any, member: Any, outcome: Any, *, reason: str) -> None:
        return

    return [
        (replicas, "remove_member", remove_member),
        (mastership, "remove_member", remove_member),
    ]


def grow_without_catching_up() -> list[Patch]:
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


def _fastest_counts() -> list[Patch]:
    """The acknowledgement of one replica counts for every member."""
    advance = MasterReplication._advanced

    def advanced(master: MasterReplication) -> MasterReady:
        live = dict(master._live)
        if live:
            fastest = max(live.values(), key=lambda peer: peer.position)
            master._live = dict.fromkeys(master._others, fastest)
        ready = advance(master)
        master._live = live
        return ready

    return [(MasterReplication, "_advanced", advanced)]


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


def _confirm_beyond_own_log() -> list[Patch]:
    """A replica shows the confirm of a frame, whether it has the bytes or not.

    The log's own assertion goes with the rule: what reaches readers has to be noticed.
    """
    moved = ReplicaReplication._moved

    def moved_to_any(replica: ReplicaReplication) -> ReplicaReady:
        ready = moved(replica)
        if replica._is_joined and replica._master_confirm > replica.confirm:
            replica.confirm = replica._master_confirm
            return ready._replace(confirm=replica.confirm)
        return ready

    def set_confirm(log: CommitLog, position: PhysicalOffset) -> None:
        log._confirm = max(log._confirm, position)

    return [
        (ReplicaReplication, "_moved", moved_to_any),
        (CommitLog, "set_confirm", set_confirm),
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


def _shrink_counts_at_once() -> list[Patch]:
    """A smaller set is used as soon as it is proposed."""
    changed = MasterReplication._set_changed

    def set_changed(master: MasterReplication) -> None:
        changed(master)
        if master._proposal is not None:
            members = master._proposal.sync_state_set
            master._others = tuple(sorted(members - {master.replica_id}))

    return [(MasterReplication, "_set_changed", set_changed)]


def _answers_do_not_wait() -> list[Patch]:
    """A send is answered as soon as it is appended."""

    def wait_confirmed(
        led: Mastership, position: PhysicalOffset, callback: Any, *, timeout_ms: int
    ) -> None:
        callback(None)

    return [(Mastership, "wait_confirmed", wait_confirmed)]


def _answers_early_always() -> list[Patch]:
    """Answers leave before confirm whatever the group has chosen, and say so."""

    def answers_early(settings: Any) -> bool:
        return True

    return [
        (relaxed_acks, "answers_early", answers_early),
        (broker_mastership, "answers_early", answers_early),
    ]


def _copies_not_counted() -> list[Patch]:
    """What `in_sync_replicas` asks for binds answers before confirm only."""
    required = property(lambda settings: settings.min_in_sync_replicas)
    return [(GroupSettings, "required_in_sync_replicas", required)]


LOST_BY_SET = NOT_WHERE_IT_MUST_BE | {"R8", "S10", "S16"}
"""... and the set of replicas was at fault."""

REPLICATION = (
    Mutant(
        rule="R37-settings",
        meaning="answers leave early in any group",
        caught_by=frozenset({"R37"}),
        patches=_answers_early_always,
    ),
    Mutant(
        rule="R37-copies",
        meaning="a set smaller than in_sync_replicas confirms",
        caught_by=LOST_BY_SET,
        patches=_copies_not_counted,
    ),
    Mutant(
        rule="R7",
        meaning="an unknown set change is a no",
        caught_by=LOST_BY_SET | {"S17"},
        patches=_unknown_means_no,
    ),
    Mutant(
        rule="R8",
        meaning="sets shrink below min",
        caught_by=LOST_BY_SET,
        patches=_no_minimum,
    ),
    Mutant(
        rule="R8-append",
        meaning="sends are appended without enough members",
        caught_by=frozenset({"R8"}),
        patches=_appends_without_members,
    ),
    Mutant(
        rule="R9",
        meaning="another store keeps its place",
        caught_by=LOST_BY_SET | {"S15", "S30"},
        patches=_registration_removes_nobody,
    ),
    Mutant(
        rule="R10",
        meaning="absent members count",
        caught_by=LOST_BY_SET,
        patches=_missing_member_ignored,
    ),
    Mutant(
        rule="R10-grow",
        meaning="members need not catch up",
        caught_by=LOST_BY_SET | {"S11", "S17", "S30"},
        patches=grow_without_catching_up,
    ),
    Mutant(
        rule="R10-twice",
        meaning="one replica counts for all",
        caught_by=LOST_BY_SET,
        patches=_fastest_counts,
    ),
    Mutant(
        rule="R10-confirm",
        meaning="a replica shows what it does not have",
        caught_by=frozenset({"INV-2", "INV-8"}),
        patches=_confirm_beyond_own_log,
    ),
    Mutant(
        rule="R11",
        meaning="appended counts as durable",
        caught_by=LOST_BY_SET | {"S11", "S17"},
        patches=_appended_counts,
    ),
    Mutant(
        rule="R11-own",
        meaning="own appended counts",
        caught_by=LOST_BY_SET | {"INV-2", "S17"},
        patches=_own_appended_counts,
    ),
    Mutant(
        rule="R13",
        meaning="lost memory is not told",
        caught_by=LOST_BY_SET,
        patches=_lost_memory_not_told,
    ),
    Mutant(
        rule="INV-6",
        meaning="a smaller set counts at once",
        caught_by=LOST_BY_SET | {"S17"},
        patches=_shrink_counts_at_once,
    ),
    Mutant(
        rule="INV-1",
        meaning="a send is answered before it is replicated",
        caught_by=frozenset({"S1", "S2"}),
        patches=_answers_do_not_wait,
    ),
)
