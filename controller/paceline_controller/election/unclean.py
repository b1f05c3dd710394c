"""Pure: elections that lose records, where a group has asked for them (R21).

RocketMQ's enableElectUncleanMaster: when no member of the set can be elected, and none is about to
come back, the best other replica leads alone. Without the setting only an operator orders that.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from paceline.types import ReplicaId
from paceline_controller.election.debounce import Settling
from paceline_controller.election.election import ReplicaHealth, ReplicaStatus, choose_unclean
from paceline_controller.state.commands import ElectMaster
from paceline_controller.state.model import Group, Replica

SETTLE_MS = 3000
"""As for an acting master: a member that comes back in that time loses nothing."""


@dataclass(slots=True)
class UncleanElections(Settling):
    """Since when only others than members could lead."""

    def decide(
        self,
        group: Group,
        beliefs: Mapping[ReplicaId, ReplicaHealth],
        *,
        term: int,
        floor_ms: int,
        now_ms: int,
    ) -> ElectMaster | None:
        """Nobody can be elected cleanly at this moment: the unclean election that is due, if any.

        `floor_ms`: no time before it counts.
        """
        winner = choose_other(group, beliefs)
        if winner is None:
            self.forget(group.group)
            return None
        if not self.has_lasted(group.group, floor_ms=floor_ms, now_ms=now_ms):
            return None
        choice = choose_unclean(group, beliefs, winner, term=term)
        return choice if isinstance(choice, ElectMaster) else None


def choose_other(group: Group, beliefs: Mapping[ReplicaId, ReplicaHealth]) -> ReplicaId | None:
    """The healthy replica whose log came furthest, if the group wants it and no member is there.

    A member that is there but ill may get well; one that is known to lack records, or a suspect
    that nobody stands for, is as good as any other replica. The log that reaches into the latest
    epoch comes first, and only of those the longest: what a log has above the others from an
    earlier epoch is a tail that the masters since then never had, so nobody confirmed it.

    Settings count as soon as they are put: they wait for an epoch, and nobody else can begin one.
    """
    if not group.wanted_settings.enable_elect_unclean_master or _awaits_the_named(group):
        return None
    for member in group.sync_state_set:
        is_there = beliefs[member].standing in (ReplicaStatus.HEALTHY, ReplicaStatus.UNHEALTHY)
        replica = group.replicas[member]
        if is_there and not (replica.is_lost or replica.is_suspect):
            return None
    candidates = [
        replica
        for replica in group.replicas.values()
        if not replica.is_learner and beliefs[replica.replica_id].standing is ReplicaStatus.HEALTHY
    ]
    if not candidates:
        return None
    return min(candidates, key=lambda replica: _rank(replica, beliefs)).replica_id


def _rank(
    replica: Replica, beliefs: Mapping[ReplicaId, ReplicaHealth]
) -> tuple[int, int, int, ReplicaId]:
    """What orders the candidates: the least is elected."""
    belief = beliefs[replica.replica_id]
    return -belief.last_epoch, -belief.end, replica.election_priority, replica.replica_id


def _awaits_the_named(group: Group) -> bool:
    """It was recovered from a store that an operator named, and nobody has led since: that store
    takes a moment to come, and no setting overrules the operator (R18)."""
    has_led = group.opened_epoch > 0 or group.unclean_elections_count > 0
    return group.recovered_store is not None and not has_led
