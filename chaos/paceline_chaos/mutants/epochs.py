"""Rules of mastership, epochs and elections, taken out (R1 to R6, R15 to R19, INV-5)."""

from typing import Any

from paceline.types import MasterEpoch, PhysicalOffset
from paceline_broker.identity import StoreIdentity
from paceline_broker.log_reader import StoreReader
from paceline_broker.replication import master as master_module
from paceline_broker.replication import replica as replica_module
from paceline_broker.replication.master import MasterReplication
from paceline_broker.replication.master_events import MasterReady
from paceline_broker.replication.replica import ReplicaReplication
from paceline_broker.store import lock_data_folder, open_store
from paceline_chaos.core import controllers as controllers_module
from paceline_chaos.core.node import Node
from paceline_chaos.core.process import DATA
from paceline_chaos.mutants.mutant import Mutant, Patch
from paceline_controller import election
from paceline_controller.state import mastership, replicas


def _nothing(*arguments: Any, **named: Any) -> None:
    return


def _failure_resumed() -> list[Patch]:
    """A master whose disk failed opens its log again and goes on in its epoch."""

    def fail(node: Node, error: Exception) -> None:
        identity, led = node.identity, node.mastership
        node.disk.crash(node.world.dice.random, keep_page_cache=False, survival=0.0)
        node.ticket = None
        node.store = open_store(
            node.disk,
            DATA,
            lock=lock_data_folder(node.disk, DATA),
            identity=identity,
            segment_size_bytes=node.world.segment_bytes,
        )
        node.reader = StoreReader(node.store)
        if led is None:
            node.leave("its disk failed")
            return
        term: Any = led.term
        led._store, led._log, term._log = node.store, node.log, node.log
        node.store.fold_to(node.log.end)
        machine = term._machine
        machine._end, machine._flushed = node.log.end, node.log.flushed
        machine.confirm = min(machine.confirm, node.log.end)
        for link in list(node.links.values()):
            link.pair.close(link.pair.master)
        node.links.clear()
        term._pushes.clear()
        machine._peers.clear()
        machine._live.clear()

    return [(Node, "fail", fail)]


def _old_connections_live_on() -> list[Patch]:
    """A replica that adopts an epoch keeps its connection to the old master, and feeds it."""

    def leave(node: Node, reason: str) -> None:
        node.leader = None
        node.end_mastership(reason)

    return [(Node, "leave", leave)]


def _epoch_not_persisted() -> list[Patch]:
    def adopt_epoch(store: StoreIdentity, epoch: MasterEpoch) -> None:
        store._epoch = epoch

    return [(StoreIdentity, "adopt_epoch", adopt_epoch)]


def _open_at_once() -> list[Patch]:
    """A new master answers from the confirm it happens to know."""
    lead = Node.lead

    def lead_and_open(node: Node, group: Any) -> None:
        lead(node, group)
        led = node.mastership
        if led is not None and not led.is_open:
            led.term._machine.is_open = True
            node.mastership_opened(led)

    return [(Node, "lead", lead_and_open)]


def _rounds_not_waited_for() -> list[Patch]:
    def on_round_requested(master: MasterReplication) -> MasterReady:
        master._round_wanted = master._round_sent + 1
        return MasterReady(confirmed_round=master._round_wanted)

    return [(MasterReplication, "_on_round_requested", on_round_requested)]


def _parting_by_length() -> list[Patch]:
    """A replica is cut at the shorter end, whatever epochs wrote it."""

    def parting_point(*, here_end: int, there_end: int, **_: Any) -> PhysicalOffset:
        return PhysicalOffset(min(here_end, there_end))

    return [
        (master_module, "parting_point", parting_point),
        (replica_module, "parting_point", parting_point),
    ]


def _election_checks_nothing() -> list[Patch]:
    """An election is applied whatever has changed since it was decided."""

    def remaining_set(group: Any, command: Any) -> set[Any]:
        members: set[Any] = group.sync_state_set | {command.winner}
        return members - set(command.without)

    def is_below_floor(*arguments: Any) -> bool:
        return False  # the floor that it names has moved as well

    return [
        (mastership, "_check_numbers", _nothing),
        (mastership, "_is_below_floor", is_below_floor),
        (mastership, "_check_winner", _nothing),
        (mastership, "_check_members", _nothing),
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
        (controllers_module, "choose", choose_from_all),
        (mastership, "_check_winner", _nothing),
        (mastership, "_check_members", _nothing),
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
        import dataclasses

        return on_introduced(
            master,
            event._replace(introduction=dataclasses.replace(event.introduction, confirm=known)),
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


EPOCHS = (
    Mutant(
        rule="R1",
        meaning="a failed master goes on in its epoch",
        caught_by=frozenset({"INV-3", "INV-4", "INV-12", "CODE", "R23"}),
        patches=_failure_resumed,
    ),
    Mutant(
        rule="R2",
        meaning="old connections outlive an epoch",
        caught_by=frozenset({"INV-3", "INV-4", "INV-12", "CODE"}),
        patches=_old_connections_live_on,
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
        caught_by=frozenset({"INV-3", "INV-4", "INV-12", "CODE"}),
        patches=_parting_by_length,
    ),
    Mutant(
        rule="R15",
        meaning="elections check nothing",
        caught_by=frozenset({"INV-3", "INV-4", "INV-12", "S15", "CODE"}),
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
