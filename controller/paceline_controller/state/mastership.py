"""Pure: elections, set changes and what a master reports of its epoch (R1 R6-R9 R15-R18 R21).

Each is a compare and set on the numbers it was decided on; liveness is never judged here.
"""

from paceline.types import Incarnation, MasterEpoch, ReplicaId, SetEpoch
from paceline.wire.session_commands import AlterSyncStateSet, OpenEpoch, RaiseConfirmFloor
from paceline_controller.state import topics
from paceline_controller.state.commands import ElectMaster, SetGroupSettings, SetWritePermission
from paceline_controller.state.model import Group, State
from paceline_controller.state.outcome import Outcome, RefusedError, numbers
from paceline_controller.state.replicas import (
    check_members,
    check_numbers,
    end_acting,
    group_of,
    incarnation_of,
    remove_member,
    vacate,
)


def elect(state: State, command: ElectMaster, outcome: Outcome) -> None:
    """A new master epoch. A refused election bumps nothing (R1)."""
    group = group_of(state, command.group)
    check_numbers(state, group, command)
    _check_winner(group, command)
    if command.is_first:
        members = _first_set(group, command)
    elif command.is_unclean:
        members = {command.winner}
    else:
        check_members(group, command)
        if _is_below_floor(group, command, outcome):
            return
        members = _remaining_set(group, command)
    before = set(group.sync_state_set)
    _begin_epoch(group, command, members)
    outcome.record(
        group,
        "master_elected",
        master=command.winner,
        incarnation=group.master_incarnation,
        master_epoch=group.master_epoch,
        set_epoch=group.set_epoch,
        sync_state_set=sorted(members),
        is_unclean=group.is_unclean,
        left=[[member, cause] for member, cause in command.causes if member in before - members],
        reason=command.reason,
    )
    if command.spreads_system_topics:
        topics.spread_system(state, outcome)
    outcome.result.update(master=group.master, **numbers(group))


def alter_set(state: State, command: AlterSyncStateSet, outcome: Outcome) -> None:
    """The master's compare and set of its sync state set."""
    group = group_of(state, command.group)
    check_master(group, command.master, command.master_incarnation, command.master_epoch)
    if command.set_epoch != group.set_epoch:
        raise RefusedError(
            "STALE_SET_EPOCH",
            f"set epoch {command.set_epoch} is not the present {group.set_epoch}",
            **numbers(group),
        )
    _check_new_members(group, command)
    members = set(command.members)
    added, left = members - group.sync_state_set, group.sync_state_set - members
    for member in added:
        # It has grown up to confirm again, whatever its log lacked before (R9, R10, R23).
        group.replicas[member].is_suspect = group.replicas[member].is_lost = False
    if added:
        group.is_narrowed = False  # there is one more that has all that was confirmed
    group.sync_state_set = members
    group.set_epoch = SetEpoch(group.set_epoch + 1)
    group.confirm_floor = max(group.confirm_floor, command.confirm)
    outcome.record(
        group,
        "set_changed",
        master_epoch=group.master_epoch,
        set_epoch=group.set_epoch,
        sync_state_set=sorted(members),
        joined=sorted(added),
        left=sorted(left),
        reason=command.reason,
    )
    outcome.result.update(**numbers(group))


def open_epoch(state: State, command: OpenEpoch, outcome: Outcome) -> None:
    """The epoch's start record is confirmed (R6). Saying it twice is no harm."""
    group = group_of(state, command.group)
    check_master(group, command.master, command.master_incarnation, command.master_epoch)
    group.is_open = True
    # The start record, which withholds locks where it was due, is confirmed (R36).
    if group.acting_leases_ms:
        group.acting_leases_ms = 0
        outcome.publish(group)
    group.opened_epoch = group.master_epoch
    group.is_unclean_due = False
    group.confirm_floor = max(group.confirm_floor, command.confirm)
    outcome.note("epoch_opened", group=group.group, master_epoch=group.master_epoch)
    outcome.result.update(**numbers(group))


def raise_floor(state: State, command: RaiseConfirmFloor, outcome: Outcome) -> None:
    """No candidate that ends below it may lead (R16); it never falls but in an unclean election."""
    group = group_of(state, command.group)
    check_master(group, command.master, command.master_incarnation, command.master_epoch)
    group.confirm_floor = max(group.confirm_floor, command.confirm)
    outcome.result.update(confirm_floor=group.confirm_floor, **numbers(group))


def set_settings(state: State, command: SetGroupSettings, outcome: Outcome) -> None:
    """They change with an epoch (R8): at once only if there never was one.

    Whether somebody acts is decided at once too: while nobody can lead no epoch begins (R36).
    """
    group = group_of(state, command.group)
    if group.master_epoch == 0:
        group.settings = command.settings
        outcome.publish(group)
    else:
        is_change = command.settings != group.settings
        group.next_settings = command.settings if is_change else None
        if group.acting is not None and not command.settings.enable_slave_acting_master:
            end_acting(group, group.acting, outcome, reason="settings")
    outcome.note("settings_set", group=group.group, settings=command.settings.to_json())
    outcome.result.update(**numbers(group))


def set_write_permission(state: State, command: SetWritePermission, outcome: Outcome) -> None:
    """At once, and whatever master there is: routes change, and masters refuse what still comes."""
    group = group_of(state, command.group)
    if group.is_write_wiped == command.is_writable:
        group.is_write_wiped = not command.is_writable
        outcome.record(group, "write_permission_set", is_writable=command.is_writable)
        outcome.publish_all()  # of each topic there it shows no queue to write to, or all again
    outcome.result.update(**numbers(group))


def _check_winner(group: Group, command: ElectMaster) -> None:
    recorded = incarnation_of(group, command.winner)
    if command.members.get(command.winner) != recorded:
        raise RefusedError(
            "STALE_INCARNATION",
            f"replica {command.winner} is in incarnation {recorded} now",
            **numbers(group),
        )
    winner = group.replicas[command.winner]
    if winner.is_learner:
        raise RefusedError("LEARNER", f"replica {command.winner} is a learner", **numbers(group))
    if command.is_unclean:
        return
    if not command.is_first and command.winner not in group.sync_state_set:
        raise RefusedError("NOT_IN_SET", f"replica {command.winner} is no member", **numbers(group))
    if command.winner in command.without:
        raise RefusedError("WINNER_LEFT_OUT", f"replica {command.winner} is named as dead")
    if winner.is_lost:
        raise RefusedError(
            "MEMBER_LOST", f"replica {command.winner} has lost records", **numbers(group)
        )
    is_doubtful = group.is_incomplete or not command.have_all_reported
    if winner.is_suspect and is_doubtful and not group.is_unclean_due:
        raise RefusedError(
            "SUSPECT", f"replica {command.winner} cut its log at recovery", **numbers(group)
        )


def _first_set(group: Group, command: ElectMaster) -> set[ReplicaId]:
    """All named begin as members: their stores are empty, hence equal (R18)."""
    if group.master_epoch != 0 or group.sync_state_set:
        raise RefusedError("NOT_FIRST", f"{group.group} had a master before", **numbers(group))
    if group.is_claimed:  # R18
        raise RefusedError(
            "RECOVERY_NEEDED", f"stores with records of {group.group} wait to be recovered"
        )
    required = group.settings.required_in_sync_replicas
    if len(command.members) < required:
        raise RefusedError(
            "BELOW_MIN",
            f"{len(command.members)} replicas are fewer than the required {required}",
            **numbers(group),
        )
    for member, incarnation in command.members.items():
        if incarnation_of(group, member) != incarnation:
            raise RefusedError("STALE_INCARNATION", f"replica {member} restarted", **numbers(group))
        replica = group.replicas[member]
        if replica.is_learner or not replica.is_empty:
            raise RefusedError("NOT_EMPTY", f"replica {member} cannot begin a group")
    return set(command.members)


def _is_below_floor(group: Group, command: ElectMaster, outcome: Outcome) -> bool:
    """Such a candidate is refused and removed, if it was compared with the present floor (R16)."""
    if command.floor != group.confirm_floor:
        raise RefusedError(
            "STALE_FLOOR",
            f"the confirm floor is {group.confirm_floor} now, not {command.floor}",
            **numbers(group),
        )
    if command.position >= group.confirm_floor:
        return False
    if group.master == command.winner:
        vacate(group, outcome, reason="below_confirm_floor")
    remove_member(group, command.winner, outcome, reason="below_confirm_floor")
    outcome.refuse(
        "BELOW_CONFIRM_FLOOR",
        f"replica {command.winner} ends at {command.position}, below {group.confirm_floor}",
        **numbers(group),
    )
    return True


def _remaining_set(group: Group, command: ElectMaster) -> set[ReplicaId]:
    """The set without those named, as far as min allows (R8, R15)."""
    settings = group.wanted_settings
    members = set(group.sync_state_set)
    for member in command.without:
        if member in members and len(members) > settings.required_in_sync_replicas:
            members.remove(member)
    assert command.winner in members  # INV-5
    return members


def _begin_epoch(group: Group, command: ElectMaster, members: set[ReplicaId]) -> None:
    group.settings, group.next_settings = group.wanted_settings, None
    group.acting = group.acting_incarnation = None  # any higher epoch ends it (R36)
    group.master = command.winner
    group.master_incarnation = group.replicas[command.winner].incarnation
    group.master_epoch = MasterEpoch(group.master_epoch + 1)
    group.sync_state_set = members
    group.set_epoch = SetEpoch(group.set_epoch + 1)
    group.is_open = False
    # A recovered group may have lost something: its first start record says so, however often it
    # takes to have one confirmed (R18, R21).
    group.is_unclean = command.is_unclean or group.is_unclean_due
    group.unclean_elections_count += group.is_unclean
    if command.is_unclean:
        # What the winner has is all there is now; others truncate towards it (R16, R21).
        group.confirm_floor = command.position
        group.opened_epoch = MasterEpoch(0)
        group.is_narrowed = False
        group.replicas[command.winner].is_lost = False
    group.replicas[command.winner].is_suspect = False


def check_master(
    group: Group, master: ReplicaId, incarnation: Incarnation, epoch: MasterEpoch
) -> None:
    if epoch != group.master_epoch:
        raise RefusedError(
            "STALE_MASTER_EPOCH",
            f"master epoch {epoch} is not the present {group.master_epoch}",
            **numbers(group),
        )
    if group.master != master or group.master_incarnation != incarnation:
        raise RefusedError(
            "NOT_MASTER",
            f"replica {master} in incarnation {incarnation} is not master of epoch {epoch}",
            **numbers(group),
        )


def _check_new_members(group: Group, command: AlterSyncStateSet) -> None:
    for member, incarnation in sorted(command.members.items()):
        recorded = incarnation_of(group, member)
        if recorded != incarnation:
            raise RefusedError(
                "STALE_INCARNATION",
                f"replica {member} is in incarnation {recorded}, not {incarnation}",
                **numbers(group),
            )
        if group.replicas[member].is_learner:
            raise RefusedError("LEARNER", f"replica {member} is a learner", **numbers(group))
    members = frozenset(command.members)
    if command.master not in members:
        raise RefusedError("MASTER_MISSING", "a master cannot leave its own set this way")
    if members == group.sync_state_set:
        raise RefusedError("NO_CHANGE", "that is the present set", **numbers(group))
    required = group.settings.required_in_sync_replicas
    if len(members) < required and not members > group.sync_state_set:
        raise RefusedError(  # R8
            "BELOW_MIN",
            f"{len(members)} members are fewer than the required {required}",
            **numbers(group),
        )
