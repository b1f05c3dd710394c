"""Pure: whom to propose as master (R15 R16 R17 R18 R23).

Knows the group as recorded and, for every replica, what the leader believes of it now. Who is alive
is `liveness`'s business; whether the decision still fits is the state machine's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from paceline.types import MasterEpoch, ReplicaId
from paceline_controller.state.commands import ElectMaster
from paceline_controller.state.model import MEMBERS_AFTER_SUSPICION_MIN, Group, Replica


class ReplicaStatus(Enum):
    """What the leader believes of one replica, in its recorded incarnation."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    """It reports, but its disk failed or stalls (R22)."""
    GONE = "gone"
    """Its port refused, or another incarnation answered (R19)."""
    SILENT = "silent"
    """Nothing heard for heartbeat_timeout_ms."""
    UNKNOWN = "unknown"
    """Not heard of yet, and that time has not passed: wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaHealth:
    """A replica as the leader sees it."""

    standing: ReplicaStatus
    end: int = 0
    """End of its log as its present incarnation reported (R16)."""
    last_epoch: MasterEpoch = MasterEpoch(0)
    """Of the newest record in that log; 0: it has none, or did not say."""
    failures_count: int = 0
    """Epochs that it could not open lately: the fewer, the better a choice (R6)."""
    view_version: int = 0
    """Of the newest view it had when it reported; 0: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoElection:
    """Why nobody is proposed now."""

    reason: str
    is_nobody: bool = False
    """Every member was looked at, and none can lead: who is silent may be dead."""


_LEAVE_ORDER = (ReplicaStatus.GONE, ReplicaStatus.SILENT, ReplicaStatus.UNHEALTHY)


def choose(
    group: Group,
    beliefs: Mapping[ReplicaId, ReplicaHealth],
    *,
    term: int,
    reason: str,
    leaving: ReplicaId | None = None,
    preferred: ReplicaId | None = None,
) -> ElectMaster | NoElection:
    """The election to propose for a group that has a set: healthy, then preferred, then furthest.

    Furthest is the log that reaches into the latest epoch, of these the longest. `leaving` is a
    master that asked to be replaced: never the winner, left out of the new set if min allows.
    `preferred` only orders the candidates. Waits while a member that could still report has not, so
    that a whole cluster that restarts elects the log that came furthest.
    """
    members = group.members()
    standings = {member: beliefs[member].standing for member in members}
    if ReplicaStatus.UNKNOWN in standings.values():
        return NoElection(reason="members have not reported yet")
    candidates = [
        member
        for member in members
        if member != leaving
        and standings[member] is ReplicaStatus.HEALTHY
        and _is_electable(group, beliefs, member)
    ]
    if not candidates:
        return NoElection(reason="no member is electable", is_nobody=True)

    winner = min(candidates, key=lambda member: _rank(group, beliefs, member, preferred))
    without = _to_leave_out(group, standings, winner=winner, leaving=leaving)
    return ElectMaster(
        spreads_system_topics=True,
        group=group.group,
        term=term,
        master_epoch=group.master_epoch,
        set_epoch=group.set_epoch,
        members=members,
        winner=winner,
        position=beliefs[winner].end,
        floor=group.confirm_floor,
        without=without,
        causes=tuple((member, _cause(group, standings, member, leaving)) for member in without),
        is_first=False,
        is_unclean=False,
        have_all_reported=_have_all_reported(group, beliefs, since=winner),
        reason=reason,
    )


def _to_leave_out(
    group: Group,
    standings: Mapping[ReplicaId, ReplicaStatus],
    *,
    winner: ReplicaId,
    leaving: ReplicaId | None,
) -> tuple[ReplicaId, ...]:
    """Members that should not be in the new set, those to leave out first in front."""
    kept = (winner, leaving)
    without = [
        member
        for standing in _LEAVE_ORDER
        for member in standings
        if standings[member] is standing and member not in kept
    ]
    # A suspect comes back by growing, which proves that its log reaches confirm (R23). But not one
    # whose absence would leave a single member: that one may start as a suspect next.
    spare = max(len(standings) - len(without) - MEMBERS_AFTER_SUSPICION_MIN, 0)
    suspects = [
        member
        for member in standings
        if group.replicas[member].is_suspect and member not in (*kept, *without)
    ]
    without += suspects[:spare]
    if leaving is not None and leaving in standings:
        without.append(leaving)
    return tuple(without)


def _cause(
    group: Group,
    standings: Mapping[ReplicaId, ReplicaStatus],
    member: ReplicaId,
    leaving: ReplicaId | None,
) -> str:
    """Why it is left out of the new set, for the history."""
    if standings[member] is not ReplicaStatus.HEALTHY:
        return standings[member].value
    return "leaving" if member == leaving else "suspect"


def _is_electable(
    group: Group, beliefs: Mapping[ReplicaId, ReplicaHealth], member: ReplicaId
) -> bool:
    replica = group.replicas[member]
    if replica.is_lost or replica.is_learner:
        return False
    is_accepted = group.is_unclean_due  # by the operator who recovered the group from it (R18)
    if replica.is_suspect and not (is_accepted or _is_suspect_safe(group, beliefs, member)):
        return False
    # A position below the floor is a report from before the floor rose: a newer one follows. That a
    # log really ends below it shows when the replica registers, and then it leaves the set (R16).
    return beliefs[member].end >= group.confirm_floor


def _is_suspect_safe(
    group: Group, beliefs: Mapping[ReplicaId, ReplicaHealth], suspect: ReplicaId
) -> bool:
    """Whether nobody has what it may have cut: also one that is ill or leaves may come back (R23).

    What it has cut may be left only on a replica that was removed from the set.
    """
    if group.is_incomplete:
        return False
    longest_end = max(beliefs[member].end for member in group.sync_state_set)
    has_longest = beliefs[suspect].end >= longest_end
    return has_longest and _have_all_reported(group, beliefs, since=suspect)


def _have_all_reported(
    group: Group, beliefs: Mapping[ReplicaId, ReplicaHealth], *, since: ReplicaId
) -> bool:
    """Whether every member is there and has reported since that replica's present start (R23).

    What a member told before may be from before it got the last of what the replica's former start
    had confirmed. A member that knows of the new start gets nothing from the old one any more.
    """
    return all(
        beliefs[member].standing in (ReplicaStatus.HEALTHY, ReplicaStatus.UNHEALTHY)
        and beliefs[member].view_version >= group.replicas[since].view_version
        for member in group.sync_state_set
    )


def _rank(
    group: Group,
    beliefs: Mapping[ReplicaId, ReplicaHealth],
    member: ReplicaId,
    preferred: ReplicaId | None,
) -> tuple[bool, tuple[int, int], int, bool, int, tuple[int, int], int]:
    """What orders the candidates: the least is elected (R17)."""
    belief, replica = beliefs[member], group.replicas[member]
    is_other = preferred is not None and member != preferred
    # Of suspects only the longest is sure to have what was acknowledged: nothing comes before that,
    # neither who is preferred nor who could not open an epoch lately (R23). A member had everything
    # confirmed, whichever leads; but a tail of an earlier epoch that nobody confirmed must not come
    # before what was answered early in a later one (R37), as between replicas outside of the set.
    furthest = -belief.last_epoch, -belief.end
    of_suspects = furthest if replica.is_suspect else (0, 0)
    return (
        replica.is_suspect,
        of_suspects,
        belief.failures_count,
        is_other,
        replica.election_priority,
        furthest,
        member,
    )


def choose_first(
    group: Group, beliefs: Mapping[ReplicaId, ReplicaHealth], *, term: int, has_waited: bool
) -> ElectMaster | NoElection:
    """The first election of a group: all of its empty stores begin as members (R18).

    At once when total_replicas of them are there, with min of them after a while.
    """
    if group.is_claimed:
        return NoElection(reason="stores with its records wait to be recovered")
    settings = group.settings
    begin = [
        replica
        for replica in group.replicas.values()
        if replica.is_empty
        and not replica.is_learner
        and beliefs[replica.replica_id].standing is ReplicaStatus.HEALTHY
    ]
    begin.sort(key=lambda replica: replica.replica_id)
    is_complete = len(begin) >= settings.total_replicas
    is_enough = has_waited and len(begin) >= settings.required_in_sync_replicas
    if not is_complete and not is_enough:
        return NoElection(reason=f"{len(begin)} of {settings.total_replicas} replicas registered")
    chosen = begin[: settings.total_replicas]
    return ElectMaster(
        spreads_system_topics=True,
        group=group.group,
        term=term,
        master_epoch=group.master_epoch,
        set_epoch=group.set_epoch,
        members={replica.replica_id: replica.incarnation for replica in chosen},
        winner=min(chosen, key=_first_rank).replica_id,
        position=0,
        floor=group.confirm_floor,
        without=(),
        is_first=True,
        is_unclean=False,
        have_all_reported=True,
        reason="first",
    )


def _first_rank(replica: Replica) -> tuple[int, ReplicaId]:
    return replica.election_priority, replica.replica_id


def preferred_member(
    group: Group, beliefs: Mapping[ReplicaId, ReplicaHealth], *, than: ReplicaId
) -> ReplicaId | None:
    """The healthy member whose operator prefers it to the master `than`, if there is one (R17)."""
    least = group.replicas[than].election_priority
    better = [
        (group.replicas[member].election_priority, member)
        for member in group.sync_state_set
        if beliefs[member].standing is ReplicaStatus.HEALTHY
        and beliefs[member].failures_count == 0
        and not group.replicas[member].is_suspect
        and group.replicas[member].election_priority < least
    ]
    return min(better)[1] if better else None


def choose_unclean(
    group: Group, beliefs: Mapping[ReplicaId, ReplicaHealth], winner: ReplicaId, *, term: int
) -> ElectMaster | NoElection:
    """What an operator orders who accepts the loss: `winner` alone is the new set (R21)."""
    replica = group.replicas.get(winner)
    if replica is None or replica.is_learner:
        return NoElection(reason=f"{group.group} has no electable replica {winner}")
    if beliefs[winner].standing is not ReplicaStatus.HEALTHY:
        return NoElection(reason=f"replica {winner} is {beliefs[winner].standing.value}")
    return ElectMaster(
        spreads_system_topics=True,
        group=group.group,
        term=term,
        master_epoch=group.master_epoch,
        set_epoch=group.set_epoch,
        members={winner: replica.incarnation},
        winner=winner,
        position=beliefs[winner].end,
        floor=group.confirm_floor,
        without=(),
        is_first=False,
        is_unclean=True,
        have_all_reported=False,
        reason="unclean",
    )
