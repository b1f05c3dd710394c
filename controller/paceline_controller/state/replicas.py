"""Pure: registration of replicas, and members that fall out of the set (R9 R13 R16 R18 R19 R23)."""

from paceline.types import GroupName, Incarnation, ReplicaId, SetEpoch
from paceline.wire.calls.request import U32_MAX
from paceline.wire.cluster import GroupSettings
from paceline.wire.commands import MEMBERS_MAX
from paceline.wire.session_commands import RegisterReplica
from paceline_controller.state import presenting
from paceline_controller.state.commands import Decision, Registration
from paceline_controller.state.model import MEMBERS_AFTER_SUSPICION_MIN, Group, Replica, State
from paceline_controller.state.outcome import Outcome, RefusedError, numbers

GROUPS_MAX = 1024


def group_of(state: State, name: GroupName) -> Group:
    """Raises RefusedError(GROUP_UNKNOWN)."""
    group = state.groups.get(name)
    if group is None:
        raise RefusedError("GROUP_UNKNOWN", f"no broker group {name} is registered")
    return group


def register(state: State, command: Registration, outcome: Outcome) -> None:
    """One start of a replica."""
    request = command
    is_foreign = command.cluster_id not in (None, state.cluster_id)
    if is_foreign:
        assert command.cluster_id is not None
        presenting.check_foreign(
            state, request.group, request.store_id, cluster_id=command.cluster_id
        )
    group = _group_to_join(state, request, command.defaults)
    replica = _recorded(group, request)
    if is_foreign:
        _check_old_copy(request, replica)
    _check_demotion(group, request, replica)
    view_version = state.version + 1  # the machine raises it: a registration is published
    if replica is None:
        replica = _add(group, request, view_version=view_version)
    elif request.incarnation <= replica.incarnation:  # R9, whichever store it is
        if group.master == replica.replica_id:
            vacate(group, outcome, reason="stale_incarnation")
        end_acting(group, replica.replica_id, outcome, reason="stale_incarnation")
        remove_member(group, replica.replica_id, outcome, reason="stale_incarnation")
        outcome.refuse(
            "INCARNATION_STALE",
            f"incarnation {request.incarnation} of replica {replica.replica_id} is not above the "
            f"recorded {replica.incarnation}; raise the counter and register again",
            incarnation=replica.incarnation,
            **numbers(group),
        )
        return
    else:
        _renew(group, replica, request, outcome)
        replica.view_version = view_version
    state.groups[group.group] = group
    outcome.note(
        "replica_registered",
        group=group.group,
        replica=replica.replica_id,
        incarnation=replica.incarnation,
    )
    outcome.publish(group)
    outcome.result.update(
        replica_id=replica.replica_id, cluster_id=state.cluster_id, **numbers(group)
    )
    if replica.recovered_from is not None:
        outcome.result["replaces_cluster"] = replica.recovered_from


def _check_old_copy(request: RegisterReplica, replica: Replica | None) -> None:
    """A store that still says it is of the replaced cluster, and is older than the one on record,
    was put back from before: it says nothing of the replica, which nobody loses by it (R9)."""
    if replica is not None and request.incarnation <= replica.incarnation:
        raise RefusedError(
            "STORE_TWICE",
            f"store {request.store_id} has registered in incarnation {replica.incarnation}: this "
            "is an old copy of its folder; move it away",
        )


def _check_demotion(group: Group, request: RegisterReplica, replica: Replica | None) -> None:
    """A learner is no member (R18), and a set is never empty (R9)."""
    if replica is None or not request.is_learner:
        return
    if group.sync_state_set == {replica.replica_id}:
        raise RefusedError(
            "LAST_MEMBER",
            f"replica {replica.replica_id} is the only member of {group.group}: it cannot become "
            "a learner before another one is in sync",
            **numbers(group),
        )


def remove_member(group: Group, member: ReplicaId, outcome: Outcome, *, reason: str) -> None:
    """Its log is not what the set relies on: out of the set, but never to empty (R9).

    The last one stays and is marked lost: nobody is electable until the operator accepts the loss.
    If it leaves one alone, that one does not lead as a suspect before the set has grown (R23).
    """
    if member not in group.sync_state_set:
        return
    if len(group.sync_state_set) == 1:
        group.replicas[member].is_lost = True
        outcome.record(group, "last_member_lost", replica=member, reason=reason)
        return
    group.sync_state_set.remove(member)
    group.is_narrowed = True
    group.set_epoch = SetEpoch(group.set_epoch + 1)
    outcome.record(
        group,
        "member_removed",
        replica=member,
        reason=reason,
        set_epoch=group.set_epoch,
        sync_state_set=sorted(group.sync_state_set),
    )


def vacate(group: Group, outcome: Outcome, *, reason: str) -> None:
    """Nobody is master any more; the epoch stays, the next election takes the next one (R1)."""
    outcome.record(
        group,
        "master_vacated",
        replica=group.master,
        incarnation=group.master_incarnation,
        master_epoch=group.master_epoch,
        reason=reason,
    )
    group.master = group.master_incarnation = None
    group.is_open = False


def end_acting(group: Group, replica: ReplicaId, outcome: Outcome, *, reason: str) -> None:
    """It acts as master no more, if it did; as with `vacate` the epoch stays (R36)."""
    if group.acting != replica:
        return
    outcome.record(
        group,
        "acting_master_ended",
        acting=replica,
        incarnation=group.acting_incarnation,
        master_epoch=group.master_epoch,
        reason=reason,
    )
    group.acting = group.acting_incarnation = None


def check_numbers(state: State, group: Group, decision: Decision) -> None:
    """What a leader decided on is still so (R15). Raises RefusedError."""
    if decision.term < state.term:
        raise RefusedError(
            "STALE_TERM", f"judged in term {decision.term}, {state.term} leads", **numbers(group)
        )
    if decision.master_epoch != group.master_epoch:
        raise RefusedError(
            "STALE_MASTER_EPOCH",
            f"master epoch {decision.master_epoch} is not the present {group.master_epoch}",
            **numbers(group),
        )
    if decision.set_epoch != group.set_epoch:
        raise RefusedError(
            "STALE_SET_EPOCH",
            f"set epoch {decision.set_epoch} is not the present {group.set_epoch}",
            **numbers(group),
        )
    if group.master_epoch >= U32_MAX:
        raise RefusedError("EPOCH_EXHAUSTED", "the master epoch has reached its last value")


def check_members(group: Group, decision: Decision) -> None:
    """The same members, in the same starts (R9, R15). Raises RefusedError."""
    if decision.members != group.members():
        raise RefusedError(
            "STALE_INCARNATION",
            "the decision names other members or incarnations than are recorded",
            **numbers(group),
        )


def _group_to_join(state: State, request: RegisterReplica, defaults: GroupSettings) -> Group:
    group = state.groups.get(request.group)
    is_founded = group is not None and group.master_epoch > 0
    if not is_founded and not request.is_empty:
        raise presenting.needed(request.group)  # R18
    if group is not None:
        return group
    if len(state.groups) >= GROUPS_MAX:
        raise RefusedError("TOO_MANY_GROUPS", f"there are {GROUPS_MAX} broker groups already")
    if request.replica_id is not None:
        raise RefusedError(
            "REPLICA_UNKNOWN", f"no broker group {request.group}, so no replica of it either"
        )
    group = state.new_group(request.group, defaults)
    presenting.claim(state, group)
    return group


def _recorded(group: Group, request: RegisterReplica) -> Replica | None:
    """The replica that registers; None = a new one."""
    recovered = presenting.recovered_replica(group, request.store_id)
    if recovered is not None:
        return recovered  # it may not know yet how it is called here
    if request.replica_id is not None:
        replica = group.replicas.get(request.replica_id)
        if replica is None:
            raise RefusedError(
                "REPLICA_UNKNOWN",
                f"{group.group} has no replica {request.replica_id}",
                **numbers(group),
            )
        return replica
    for replica in group.replicas.values():
        if replica.store_id == request.store_id:
            return replica  # its first registration was applied, the answer was lost
    if not request.is_empty:
        raise RefusedError(
            "STORE_UNKNOWN",
            f"store {request.store_id} has records, but {group.group} does not know it",
            **numbers(group),
        )
    if len(group.replicas) >= MEMBERS_MAX:
        raise RefusedError("TOO_MANY_REPLICAS", f"{group.group} has {MEMBERS_MAX} replicas")
    return None


def _add(group: Group, request: RegisterReplica, *, view_version: int) -> Replica:
    replica = Replica(
        replica_id=ReplicaId(group.next_replica_id),
        store_id=request.store_id,
        incarnation=request.incarnation,
        client_address=request.client_address,
        replication_address=request.replication_address,
        is_learner=request.is_learner,
        is_empty=request.is_empty,
        is_suspect=request.is_suspect,
        is_lost=False,
        end=request.end,
        election_priority=request.election_priority,
        view_version=view_version,
    )
    group.next_replica_id += 1
    group.replicas[replica.replica_id] = replica
    return replica


def _renew(group: Group, replica: Replica, request: RegisterReplica, outcome: Outcome) -> None:
    """A known replica starts again: what it lost on the way decides whether it stays a member."""
    reason = _why_not_member(group, replica, request)
    replica.store_id = request.store_id
    assert request.incarnation > replica.incarnation  # INV-4: numbers only rise
    replica.incarnation = request.incarnation
    replica.client_address = request.client_address
    replica.replication_address = request.replication_address
    replica.is_learner = request.is_learner
    replica.is_empty = request.is_empty
    replica.is_suspect = request.is_suspect
    replica.end = request.end
    replica.election_priority = request.election_priority
    if group.master == replica.replica_id:
        vacate(group, outcome, reason="restarted")  # R19
    end_acting(group, replica.replica_id, outcome, reason="restarted")
    if reason is not None:
        remove_member(group, replica.replica_id, outcome, reason=reason)
    elif request.is_suspect and group.master is not None and _can_spare_a_member(group):
        remove_member(group, replica.replica_id, outcome, reason="suspect")  # R23


def _can_spare_a_member(group: Group) -> bool:
    """The recorded master may be dead, and the suspects of one power cut are many (R8)."""
    least = max(group.settings.required_in_sync_replicas, MEMBERS_AFTER_SUSPICION_MIN)
    return len(group.sync_state_set) > least


def _why_not_member(group: Group, replica: Replica, request: RegisterReplica) -> str | None:
    if replica.store_id != request.store_id:
        return "other_store"  # R9
    is_lossy = group.settings.durability == "memory" and not group.is_unclean_due
    if request.is_unclean and is_lossy:
        return "unclean"  # R13; what fsync acknowledged is still there after a power loss
    if request.is_learner:
        return "learner"  # R18
    if request.end < group.confirm_floor:
        return "below_confirm_floor"  # R16
    if request.last_epoch < group.opened_epoch:
        return "before_opened_epoch"  # R16; long enough, but its tail is not what was confirmed
    return None


def incarnation_of(group: Group, replica: ReplicaId) -> Incarnation:
    """Raises RefusedError(REPLICA_UNKNOWN)."""
    recorded = group.replicas.get(replica)
    if recorded is None:
        raise RefusedError(
            "REPLICA_UNKNOWN", f"{group.group} has no replica {replica}", **numbers(group)
        )
    return recorded.incarnation
