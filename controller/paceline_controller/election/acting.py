"""Pure: when a group gets an acting master, and which replica it is (R36).

Only while nobody can be elected, and that for some time: members that are about to come back, all
of them or the one that was master, make a better end than a stale copy. Whether the decision still
fits is the state machine's business.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from paceline.types import ReplicaId
from paceline_controller.election.debounce import Settling
from paceline_controller.election.election import ReplicaHealth, ReplicaStatus
from paceline_controller.state.commands import AppointActing, ElectMaster
from paceline_controller.state.model import Group

Proposal: TypeAlias = ElectMaster | AppointActing
"""What a leader proposes for a group without a working master."""

SETTLE_MS = 3000
"""A cluster whose processes all died is to be back in as long; the two failures of a machine that
loses its network and of one that reboots look alike for about that time."""


@dataclass(slots=True)
class Appointments(Settling):
    """Since when nobody can be elected and one could act."""

    def decide(
        self,
        group: Group,
        beliefs: Mapping[ReplicaId, ReplicaHealth],
        *,
        term: int,
        floor_ms: int,
        now_ms: int,
    ) -> AppointActing | None:
        """Nobody can be elected at this moment: the appointment that is due, if one is.

        `floor_ms`: no time before it counts, as for every deadline of this judge.
        """
        acting = choose_acting(group, beliefs)
        if acting is None:
            # When a cut of this controller heals, one is heard first: time counts from then on.
            self.forget(group.group)
            return None
        if not self.has_lasted(group.group, floor_ms=floor_ms, now_ms=now_ms):
            return None
        return AppointActing(
            group=group.group,
            term=term,
            master_epoch=group.master_epoch,
            set_epoch=group.set_epoch,
            members=group.members(),
            acting=acting,
            incarnation=group.replicas[acting].incarnation,
            reason="nobody_electable",
        )


def choose_acting(group: Group, beliefs: Mapping[ReplicaId, ReplicaHealth]) -> ReplicaId | None:
    """The live replica with the smallest id that is neither member nor learner (R36).

    None also while the present one lives: another would begin a new lock lease for nothing. The
    setting counts as soon as it is put: no other epoch could begin meanwhile.
    """
    if not group.wanted_settings.enable_slave_acting_master:
        return None
    if group.acting is not None and beliefs[group.acting].standing is ReplicaStatus.HEALTHY:
        return None
    candidates = [
        replica.replica_id
        for replica in group.replicas.values()
        if replica.replica_id not in group.sync_state_set
        and not replica.is_learner
        and beliefs[replica.replica_id].standing is ReplicaStatus.HEALTHY
    ]
    return min(candidates, default=None)
