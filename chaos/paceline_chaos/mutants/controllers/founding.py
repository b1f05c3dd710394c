"""Who counts, leads or votes without the right to, against R18; caught by the scripts `learner`,
`forgotten` and `amnesia` of the moments."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from msgspec import structs

from paceline.types import ControllerId, ReplicaId
from paceline.wire.cluster import GroupSettings
from paceline.wire.session_commands import RegisterReplica
from paceline_broker.replication.master.peer import Peer
from paceline_broker.storage.identity import StoreIdentity
from paceline_chaos.mutants.mutant import Mutant, Patch, of_moment
from paceline_controller.election import liveness as liveness_module
from paceline_controller.election.election import choose_unclean
from paceline_controller.raft.identity import Identity
from paceline_controller.state import mastership as mastership_module
from paceline_controller.state import presenting as presenting_module
from paceline_controller.state import replicas as replicas_module
from paceline_controller.state.model import Group, Replica, State
from paceline_controller.state.outcome import RefusedError


def _never(of: type[Any], name: str) -> Patch:
    """The field reads False, whatever is put there."""
    return (of, name, property(lambda mine: False, lambda mine, value: None))


def _first_of_all() -> list[Patch]:
    """A learner is a replica like any other, and begins the group with them."""
    return [_never(Replica, "is_learner")]


def _grows() -> list[Patch]:
    """A learner that has caught up is proposed as a member, and taken."""
    check = mastership_module._check_new_members

    def without_learners(group: Group, *of: Any) -> None:
        _unlearnt(lambda: check(group, *of))

    return [
        _never(Peer, "is_learner"),
        (mastership_module, "_check_new_members", without_learners),
    ]


def _ordered() -> list[Patch]:
    """Who orders an unclean election may have a learner as the master."""
    check = mastership_module._check_winner

    def choose_any(group: Group, beliefs: Any, winner: ReplicaId, *, term: int) -> Any:
        learner = group.replicas.get(winner)
        if learner is None or not learner.is_learner:
            return choose_unclean(group, beliefs, winner, term=term)
        replicas = {**group.replicas, winner: replace(learner, is_learner=False)}
        return choose_unclean(replace(group, replicas=replicas), beliefs, winner, term=term)

    def check_any(group: Group, *of: Any) -> None:
        _unlearnt(lambda: check(group, *of))

    return [
        (liveness_module, "choose_unclean", choose_any),
        (mastership_module, "_check_winner", check_any),
    ]


def _unlearnt(check: Callable[[], None]) -> None:
    """Nobody is refused for being a learner."""
    try:
        check()
    except RefusedError as error:
        if error.reason != "LEARNER":
            raise


def _on_records() -> list[Patch]:
    """A store with records begins a group as an empty one does."""
    join, recorded = replicas_module._group_to_join, replicas_module._recorded

    def as_new(group: Group | None, request: RegisterReplica) -> RegisterReplica:
        is_founded = group is not None and group.master_epoch > 0
        return request if is_founded else structs.replace(request, is_empty=True, replica_id=None)

    def join_any(state: State, request: RegisterReplica, defaults: GroupSettings) -> Group:
        return join(state, as_new(state.groups.get(request.group), request), defaults)

    def record_any(group: Group, request: RegisterReplica) -> Replica | None:
        return recorded(group, as_new(group, request))

    return [
        (presenting_module, "check_foreign", lambda *of, **named: None),
        (replicas_module, "_group_to_join", join_any),
        (replicas_module, "_recorded", record_any),
    ]


def _anew() -> list[Patch]:
    """... and a store forgets the cluster that it is of, so the group is really founded again."""
    add = replicas_module._add
    join = StoreIdentity.join_cluster

    def join_any(
        mine: StoreIdentity, *, cluster_id: str, replica_id: ReplicaId, **told: str | None
    ) -> None:
        if mine.identity.cluster_id not in (None, cluster_id):
            mine._store(replace(mine.identity, cluster_id=None, replica_id=None))
        join(mine, cluster_id=cluster_id, replica_id=replica_id, **told)

    def add_empty(group: Group, request: RegisterReplica, **named: int) -> Replica:
        return add(group, structs.replace(request, is_empty=True), **named)

    return [
        *_on_records(),
        (StoreIdentity, "join_cluster", join_any),
        (replicas_module, "_add", add_empty),
    ]


def _amnesia_forgiven() -> list[Patch]:
    """A controller that comes with an empty disk may vote at once."""

    def meet(identity: Identity, peer: ControllerId, **_: Any) -> None:
        identity._unmet.discard(peer)

    return [(Identity, "may_vote", property(lambda identity: True)), (Identity, "meet", meet)]


FOUNDING = (
    Mutant(
        rule="R18-first",
        meaning="a learner begins the group as a member",
        patches=_first_of_all,
        **of_moment("learner"),
    ),
    Mutant(
        rule="R18-grow",
        meaning="a learner that has caught up becomes a member",
        patches=_grows,
        **of_moment("learner"),
    ),
    Mutant(
        rule="R18-ordered",
        meaning="a learner is made master by order",
        patches=_ordered,
        **of_moment("learner"),
    ),
    Mutant(
        rule="R18-amnesia",
        meaning="a controller that lost its disk votes at once",
        patches=_amnesia_forgiven,
        **of_moment("amnesia"),
    ),
    Mutant(
        rule="R18-records",
        meaning="stores with records found a group",
        patches=_on_records,
        **of_moment("forgotten"),
    ),
    Mutant(
        rule="R18-anew",
        meaning="stores with records found a group, and forget their cluster",
        patches=_anew,
        **of_moment("forgotten"),
    ),
)
"""Each with the script of its rule."""
