"""Rules of mastership, epochs and elections, taken out (R1 to R6, R15 to R19, INV-5)."""

from dataclasses import replace
from typing import Any

from msgspec import structs

from paceline.types import MasterEpoch, PhysicalOffset, SetEpoch
from paceline_broker.replication.master import peer as peer_module
from paceline_broker.replication.master.events import MasterReady
from paceline_broker.replication.master.master import MasterReplication
from paceline_broker.replication.replica import replica as replica_module
from paceline_broker.replication.replica.replica import ReplicaReplication
from paceline_broker.role.role import BrokerRole
from paceline_broker.storage.identity import StoreIdentity
from paceline_chaos.mutants.mutant import Mutant, Patch, of_moment
from paceline_controller.election import election, liveness
from paceline_controller.election.election import NoElection
from paceline_controller.state import mastership, replicas
from paceline_controller.state.commands import ElectMaster


def _nothing(*arguments: Any, **named: Any) -> None:
    return


def _epoch_not_persisted() -> list[Patch]:
    async def adopt_epoch(store: StoreIdentity, epoch: MasterEpoch, **how: bool) -> None:
        store._epoch = epoch

    return [(StoreIdentity, "adopt_epoch", adopt_epoch)]


def _open_at_once() -> list[Patch]:
    """A new master answers from the confirm it happens to know."""
    init = MasterReplication.__init__

    def init_open(master: MasterReplication, **arguments: Any) -> None:
        init(master, **arguments)
        master.is_open = True

    return [(MasterReplication, "__init__", init_open)]


def _rounds_not_waited_for() -> list[Patch]:
    def on_round_requested(master: MasterReplication) -> MasterReady:
        master._round_wanted = master._round_sent + 1
        return MasterReady(confirmed_round=master._round_wanted)

    return [(MasterReplication, "_on_round_requested", on_round_requested)]


def _divergence_by_length() -> list[Patch]:
    """A replica is cut at the shorter end, whatever epochs wrote it."""

    def divergence_point(*, here_end: int, there_end: int, **_: Any) -> PhysicalOffset:
        return PhysicalOffset(min(here_end, there_end))

    return [
        (peer_module, "divergence_point", divergence_point),
        (replica_module, "divergence_point", divergence_point),
    ]


def _unclean_without_an_order() -> list[Patch]:
    """Where no member is electable, the leader takes who is there, as if it had been ordered."""
    choose = election.choose

    def choose_anybody(
        group: Any, beliefs: Any, *, term: int, reason: str, **wishes: Any
    ) -> ElectMaster | NoElection:
        choice = choose(group, beliefs, term=term, reason=reason, **wishes)
        healthy = [r for r, b in beliefs.items() if b.standing is election.ReplicaStatus.HEALTHY]
        if isinstance(choice, ElectMaster) or not healthy:
            return choice
        winner = max(healthy, key=lambda replica: beliefs[replica].end)
        choice = election.choose_unclean(group, beliefs, winner, term=term)
        return structs.replace(choice, reason=reason) if isinstance(choice, ElectMaster) else choice

    return [
        (liveness, "choose", choose_anybody),
        (election, "choose", choose_anybody),
    ]


def _election_checks_nothing() -> list[Patch]:
    """An election is applied whatever has changed since it was decided."""

    def remaining_set(group: Any, command: Any) -> set[Any]:
        members: set[Any] = group.sync_state_set | {command.winner}
        return members - set(command.without)

    def is_below_floor(*arguments: Any) -> bool:
        return False  # the floor that it names has moved as well

    return [
        (mastership, "check_numbers", _nothing),
        (mastership, "_is_below_floor", is_below_floor),
        (mastership, "_check_winner", _nothing),
        (mastership, "check_members", _nothing),
        (mastership, "_remaining_set", remaining_set),
    ]


def _anybody_is_elected() -> list[Patch]:
    """The candidates are all replicas, not the members of the set."""
    choose = election.choose

    def choose_from_all(group: Any, beliefs: Any, **how: Any) -> Any:
        members = set(group.sync_state_set)
        group.sync_state_set = set(group.replicas)
        try:
            return choose(group, beliefs, **how)
        finally:
            group.sync_state_set = members

    def remaining_set(group: Any, command: Any) -> set[Any]:
        return set(group.sync_state_set) - set(command.without) | {command.winner}

    return [
        (election, "choose", choose_from_all),
        (mastership, "_check_winner", _nothing),
        (mastership, "check_members", _nothing),
        (mastership, "_remaining_set", remaining_set),
    ]


def _stale_copy_welcome() -> list[Patch]:
    """Nobody compares a store's end with what was confirmed: an old copy is as good as any."""
    why_not_member = replicas._why_not_member

    def why_not(group: Any, replica: Any, request: Any) -> str | None:
        reason = why_not_member(group, replica, request)
        return None if reason == "below_confirm_floor" else reason

    def is_below_floor(*arguments: Any) -> bool:
        return False

    on_introduced = MasterReplication._on_introduced

    def introduced(master: MasterReplication, event: Any) -> MasterReady:
        known = min(event.introduction.confirm, master._end)
        return on_introduced(
            master,
            event._replace(introduction=structs.replace(event.introduction, confirm=known)),
        )

    init = ReplicaReplication.__init__

    def init_without(replica: ReplicaReplication, **arguments: Any) -> None:
        init(replica, **arguments)
        replica.confirm = PhysicalOffset(0)

    return [
        (replicas, "_why_not_member", why_not),
        (mastership, "_is_below_floor", is_below_floor),
        (election, "_is_electable", lambda *a, **k: True),
        (MasterReplication, "_on_introduced", introduced),
        (ReplicaReplication, "__init__", init_without),
    ]


def _ill_candidates_elected() -> list[Patch]:
    """Who is silent, dead or has a failed disk is as good a master as any."""
    choose = election.choose

    def choose_any(group: Any, beliefs: Any, **how: Any) -> Any:
        healthy = {
            replica: replace(belief, standing=election.ReplicaStatus.HEALTHY)
            for replica, belief in beliefs.items()
        }
        return choose(group, healthy, **how)

    return [(election, "choose", choose_any)]


def _restarted_master_stays() -> list[Patch]:
    """The registration of a new start leaves mastership with the dead one."""
    return [(replicas, "vacate", _nothing)]


def _older_views_taken() -> list[Patch]:
    """A view is taken in whatever order it comes: older sets replace newer ones.

    The role looks at versions, and the machine of a mastership at the epoch of the set: both go.
    """
    view_arrived = BrokerRole.view_arrived

    def any_arrived(role: BrokerRole, view: Any) -> None:
        if view.cluster_id == role.identity.cluster_id:
            role._machine.view = None
        view_arrived(role, view)

    on_committed = MasterReplication._on_committed

    def on_any_committed(master: MasterReplication, view: Any) -> MasterReady:
        if master._proposal is None and view.master_epoch == master.epoch:
            master._set_epoch = min(master._set_epoch, SetEpoch(view.set_epoch - 1))
        return on_committed(master, view)

    return [
        (BrokerRole, "view_arrived", any_arrived),
        (MasterReplication, "_on_committed", on_any_committed),
    ]


EPOCHS = (
    Mutant(
        rule="R21-order",
        meaning="the leader elects uncleanly, unasked",
        caught_by=frozenset({"S15"}),
        patches=_unclean_without_an_order,
    ),
    Mutant(
        rule="R17",
        meaning="candidates need not be healthy",
        caught_by=frozenset({"L1", "L6"}),
        patches=_ill_candidates_elected,
    ),
    Mutant(
        rule="R19",
        meaning="a restart does not vacate mastership",
        caught_by=frozenset({"L1"}),
        patches=_restarted_master_stays,
    ),
    Mutant(
        rule="R38-views",
        meaning="older views are taken",
        patches=_older_views_taken,
        **of_moment("old-news"),
    ),
    Mutant(
        rule="R2-persist",
        meaning="an epoch is not fsynced",
        caught_by=frozenset({"INV-4", "S14"}),
        patches=_epoch_not_persisted,
    ),
    Mutant(
        rule="R3",
        meaning="answers before the epoch is open",
        caught_by=frozenset({"INV-2", "R4", "S20", "S22"}),
        patches=_open_at_once,
    ),
    Mutant(
        rule="R4",
        meaning="reads wait for no round",
        caught_by=frozenset({"R4", "S20", "S22"}),
        patches=_rounds_not_waited_for,
    ),
    Mutant(
        rule="R5",
        meaning="logs part by length",
        caught_by=frozenset({"INV-3", "INV-4", "INV-12"}),
        patches=_divergence_by_length,
    ),
    Mutant(
        rule="R15",
        meaning="elections check nothing",
        caught_by=frozenset({"INV-3", "INV-4", "INV-12", "S15"}),
        patches=_election_checks_nothing,
    ),
    Mutant(
        rule="INV-5",
        meaning="anybody is elected, not only members",
        caught_by=frozenset({"INV-3", "INV-4", "INV-12", "S15"}),
        patches=_anybody_is_elected,
    ),
    Mutant(
        rule="R16",
        meaning="a younger old copy keeps its place in the set",
        caught_by=frozenset({"INV-3", "INV-4", "INV-12", "R8"}),
        patches=_stale_copy_welcome,
    ),
)
