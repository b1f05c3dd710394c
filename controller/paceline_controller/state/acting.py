"""Pure: the acting master of a group that nobody can lead (R36).

It is no member, and its epoch is a master epoch of its own: every number that a real election or a
broker compares with is higher by it, so that any later election ends it. The sync state set and the
confirm floor stay as they are, because an acting master appends nothing.
"""

from paceline.types import MasterEpoch
from paceline.wire.session_commands import OpenActingLocks
from paceline_controller.state.commands import AppointActing
from paceline_controller.state.model import Group, State
from paceline_controller.state.outcome import Outcome, RefusedError, numbers
from paceline_controller.state.replicas import (
    check_members,
    check_numbers,
    group_of,
    incarnation_of,
    vacate,
)


def appoint(state: State, command: AppointActing, outcome: Outcome) -> None:
    """A decision of the leader: compare and set on all that it was decided on (R15, R36)."""
    group = group_of(state, command.group)
    check_numbers(state, group, command)
    _check_appointment(group, command)
    if group.master is not None:
        vacate(group, outcome, reason="nobody_electable")
    group.master_epoch = MasterEpoch(group.master_epoch + 1)
    group.is_unclean = False
    group.acting = command.acting
    group.acting_incarnation = group.replicas[command.acting].incarnation
    outcome.record(
        group,
        "acting_master_appointed",
        acting=command.acting,
        incarnation=group.acting_incarnation,
        master_epoch=group.master_epoch,
        set_epoch=group.set_epoch,
        sync_state_set=sorted(group.sync_state_set),
        reason=command.reason,
    )
    outcome.result.update(acting=group.acting, **numbers(group))


def open_locks(state: State, command: OpenActingLocks, outcome: Outcome) -> None:
    """It has waited a full lease and begins to grant, or asks whether it still may (R36).

    From the first time on it is on record that such leases may run, until an epoch has opened whose
    start record withholds them.
    """
    group = group_of(state, command.group)
    asks = (command.replica_id, command.incarnation, command.master_epoch)
    if asks != (group.acting, group.acting_incarnation, group.master_epoch):
        raise RefusedError(
            "NOT_ACTING",
            f"replica {command.replica_id} does not act for {group.group} in epoch "
            f"{command.master_epoch}",
            **numbers(group),
        )
    if command.leases_ms > group.acting_leases_ms:
        group.acting_leases_ms = command.leases_ms
        outcome.record(
            group, "acting_locks_opened", acting=group.acting, master_epoch=group.master_epoch
        )
    outcome.result.update(**numbers(group))


def _check_appointment(group: Group, command: AppointActing) -> None:
    if not group.wanted_settings.enable_slave_acting_master:
        raise RefusedError(
            "ACTING_DISABLED",
            f"enable_slave_acting_master is false for {group.group}",
            **numbers(group),
        )
    if group.master_epoch == 0:
        raise RefusedError("NO_MASTER_YET", f"{group.group} never had a master", **numbers(group))
    check_members(group, command)
    recorded = incarnation_of(group, command.acting)
    if recorded != command.incarnation:
        raise RefusedError(
            "STALE_INCARNATION",
            f"replica {command.acting} is in incarnation {recorded} now",
            **numbers(group),
        )
    if command.acting in group.sync_state_set:
        raise RefusedError("IS_MEMBER", f"replica {command.acting} is a member", **numbers(group))
    if group.replicas[command.acting].is_learner:
        raise RefusedError("LEARNER", f"replica {command.acting} is a learner", **numbers(group))
