"""Pure: when a group needs its operator: then no bed may demand liveness of it."""

from collections.abc import Collection

from paceline.types import ReplicaId
from paceline_controller.state.model import Group


def why_operator(group: Group, *, present: Collection[ReplicaId]) -> str | None:
    """Why nobody is electable so that only an operator can go on; None: the group may go on.

    `present`: the replicas whose disks are there; a member that is not among them never reports.
    "lost": registrations of dead processes that were applied late removed the members, to the last
    (R9). "suspect": each member that is there cut its log at recovery, and one that is away would
    have to report first, or those that were removed have what it cut (R23).
    """
    members = [group.replicas[member] for member in group.sync_state_set]
    if not members:
        return None
    away = {member.replica_id for member in members} - set(present)
    gone = [member.is_lost or member.replica_id in away for member in members]
    if all(gone):
        return "lost"
    is_waiting = (bool(away) or group.is_incomplete) and all(
        is_gone or member.is_suspect for is_gone, member in zip(gone, members, strict=True)
    )
    return "suspect" if is_waiting else None
