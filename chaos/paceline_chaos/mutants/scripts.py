"""Rules whose absence costs time or a needless change, taken out (R6, R12, R20 to R22, R24 to R26).

Caught by the scripts of `cluster_sim/scripts`: each waits for the moment that its rule is about.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from paceline.types import PhysicalOffset, ReplicaId
from paceline.wire.calls.offsets import ResetsOf
from paceline_broker.integrity.repair import LogRepairer
from paceline_broker.log.commit_log import CommitLog
from paceline_broker.projections.projections import epoch_start_document
from paceline_broker.replication.master.events import MasterEvent, MasterReady
from paceline_broker.replication.master.lag import Paces
from paceline_broker.replication.master.master import MasterReplication
from paceline_broker.role import mastership as mastership_module
from paceline_broker.role.controller_requests import ControllerRequests
from paceline_broker.role.mastership import Mastership
from paceline_broker.role.role import BrokerRole
from paceline_broker.service.groups.offset_calls import OffsetCalls
from paceline_broker.storage.confirmed_reader import StoreReader
from paceline_broker.storage.identity import StoreIdentity
from paceline_chaos.mutants.mutant import Mutant, Patch, of_moment
from paceline_controller.election import unclean as unclean_module
from paceline_controller.election.contacts import Contact
from paceline_controller.election.election import ReplicaHealth
from paceline_controller.election.group_watch import GroupWatch
from paceline_controller.election.liveness import Liveness
from paceline_controller.state.model import Group, Replica


def _left_alone() -> list[Patch]:
    """A master that opens nothing, or confirms nothing, is as good as another."""
    why = Liveness._why

    def why_not(liveness: Liveness, *of: Any) -> str | None:
        reason = why(liveness, *of)
        return None if reason in ("not_open", "no_progress") else reason

    return [(Liveness, "_why", why_not)]


def _resets_at_once() -> list[Patch]:
    """A member is told of resets that nobody has confirmed."""

    async def resets(calls: OffsetCalls, asked: Any) -> ResetsOf:
        return ResetsOf(calls._role.projections.offsets.resets(asked.group))

    return [(OffsetCalls, "resets", resets)]


def _refused_is_idle() -> list[Patch]:
    """Only sends that wait are waiting work: neither those refused beforehand, nor what is
    unconfirmed and nobody waits for any more."""
    return [(Mastership, "waiting_count", property(lambda mine: mine.term.waiting_count))]


def _unheard_is_refused() -> list[Patch]:
    """No answer for a moment is as good as a refusal."""
    step_down = ControllerRequests.step_down

    async def impatient(requests: ControllerRequests, *of: Any, **named: Any) -> str | None:
        try:
            async with asyncio.timeout(0.1):
                return await step_down(requests, *of, **named)
        except TimeoutError:
            return "nobody answers"

    return [(ControllerRequests, "step_down", impatient)]


def _lag_at_once() -> list[Patch]:
    """Who is silent for a moment has left."""
    is_keeping_up = Paces.is_keeping_up

    def is_up(paces: Paces, replica: Any) -> bool:
        is_behind = paces._now_ms - paces.of(replica).caught_up_ms > 100
        return not is_behind and is_keeping_up(paces, replica)

    return [(Paces, "is_keeping_up", is_up)]


def _lost_is_gone() -> list[Patch]:
    """Nobody asks the port: a connection that ended is a replica that has died."""

    async def probe(repairer: LogRepairer, *of: Any) -> bool:
        return True

    return [(LogRepairer, "probe", probe)]


def _own_stall_counts() -> list[Patch]:
    """What the master did not hear while it stood still is held against its replicas."""

    def ran(paces: Paces, elapsed_ms: int) -> None:
        paces._now_ms += elapsed_ms

    return [(Paces, "ran", ran)]


def _own_sync_counts() -> list[Patch]:
    """A member is behind by what the master has yet to sync itself."""
    step, of_own = MasterReplication.step, Paces.acked
    ends: dict[Paces, PhysicalOffset] = {}

    def step_of(machine: MasterReplication, event: MasterEvent) -> MasterReady:
        ends[machine.paces] = machine._end
        return step(machine, event)

    def acked(paces: Paces, replica: Any, *, position: PhysicalOffset, own: PhysicalOffset) -> None:
        of_own(paces, replica, position=position, own=max(own, ends[paces]))

    return [(MasterReplication, "step", step_of), (Paces, "acked", acked)]


def _slow_is_well() -> list[Patch]:
    """Whoever acknowledges anything is caught up."""
    of_own = Paces.acked

    def acked(paces: Paces, replica: Any, *, position: PhysicalOffset, own: PhysicalOffset) -> None:
        of_own(paces, replica, position=max(position, own), own=own)

    return [(Paces, "acked", acked)]


def _stalls_uncompared() -> list[Patch]:
    """A master whose disk stalls is replaced, whatever the others' disks do."""
    return [(Contact, "is_outdone", lambda contact, others: contact.stalled_ms is not None)]


def _scrubbed_meanwhile() -> list[Patch]:
    """The scrubber mends files of an epoch that is just being written, with the one before."""
    return [(StoreIdentity, "is_adopting", property(lambda store: False))]


def _impatient() -> list[Patch]:
    """A master has as long for its epoch as one with a fast disk."""
    due_ms = GroupWatch.due_ms

    def due_soon(watch: GroupWatch, *of: Any, sync_ms: int, **more: Any) -> int:
        return due_ms(watch, *of, sync_ms=0, **more)

    return [(GroupWatch, "due_ms", due_soon)]


def _stalls_ignored() -> list[Patch]:
    """A master whose disk stalls leads on."""
    return [(Contact, "is_outdone", lambda contact, others: False)]


def _unclean_untold() -> list[Patch]:
    """The start record of an unclean epoch looks like any other."""

    def document(*, is_unclean: bool, **more: int) -> dict[str, Any]:
        return epoch_start_document(is_unclean=False, **more)

    return [(mastership_module, "epoch_start_document", document)]


def _longest_first() -> list[Patch]:
    """Of replicas outside of the set the longest leads, in whatever epoch it ends."""

    def rank(replica: Replica, beliefs: Mapping[ReplicaId, ReplicaHealth]) -> tuple[int, ...]:
        end = beliefs[replica.replica_id].end
        return -end, replica.election_priority, replica.replica_id

    return [(unclean_module, "_rank", rank)]


def _setting_waits() -> list[Patch]:
    """The setting counts from the next epoch on, which nobody begins while nobody can lead."""
    choose = unclean_module.choose_other

    def choose_by_present(
        group: Group, beliefs: Mapping[ReplicaId, ReplicaHealth]
    ) -> ReplicaId | None:
        return choose(replace(group, next_settings=None), beliefs)

    return [(unclean_module, "choose_other", choose_by_present)]


def _damage_ignored() -> list[Patch]:
    """What the scrubber finds is not followed up."""

    def damaged(care: LogRepairer, *of: Any) -> None:
        return

    return [(LogRepairer, "damaged", damaged)]


def _damaged_is_healthy() -> list[Patch]:
    """A damaged replica may be elected as any other."""
    return [(BrokerRole, "is_healthy", lambda role: role.exclusion.reason is None)]


def _damage_served() -> list[Patch]:
    """Readers get whatever stands there."""
    return [(StoreReader, "is_damaged", lambda reader, start, end: False)]


def _any_spare_used() -> list[Patch]:
    """Nobody looks for which opening of the log a segment was made ahead, nor waits for it."""

    def give_spare(commit_log: CommitLog, wanted: Any, file: Any) -> None:
        commit_log._segments.give_spare(file)

    def is_idle(role: BrokerRole) -> bool:
        return role._mastership is None and role._client is None and role._machine.is_registered

    return [(CommitLog, "give_spare", give_spare), (BrokerRole, "is_idle", property(is_idle))]


def _disks_unsaid() -> list[Patch]:
    """A send is refused for too few members, whatever keeps them from acknowledging."""
    return [(Mastership, "_members_without_room", lambda mastership: [])]


MOMENTS = (
    Mutant(
        rule="R26-full",
        meaning="refusals do not speak of full disks of members",
        patches=_disks_unsaid,
        **of_moment("replicas-full"),
    ),
    Mutant(
        rule="R25-spare",
        meaning="a repair opens the log while its next segment is made, and that one is used",
        patches=_any_spare_used,
        **of_moment("spare"),
    ),
    Mutant(
        rule="R28-resets",
        meaning="members are told of a reset before it is confirmed",
        patches=_resets_at_once,
        **of_moment("reset-lost"),
    ),
    Mutant(
        rule="R6-open",
        meaning="a master that opens nothing is left alone",
        patches=_left_alone,
        **of_moment("opens-nothing"),
    ),
    Mutant(
        rule="R6-progress",
        meaning="a master that confirms nothing is left alone",
        patches=_left_alone,
        **of_moment("confirms-nothing"),
    ),
    Mutant(
        rule="R6-refused",
        meaning="refused sends are no waiting work",
        patches=_refused_is_idle,
        **of_moment("confirms-nothing"),
    ),
    Mutant(
        rule="R12-lag",
        meaning="silence of a moment is lag",
        patches=_lag_at_once,
        **of_moment("short-silence"),
    ),
    Mutant(
        rule="R12-probe",
        meaning="a connection that ended is a replica that has died",
        patches=_lost_is_gone,
        **of_moment("short-silence"),
    ),
    Mutant(
        rule="R12-stall",
        meaning="the master's own stall is lag of its replicas",
        patches=_own_stall_counts,
        **of_moment("own-stall"),
    ),
    Mutant(
        rule="R12-own",
        meaning="members are behind by what the master has yet to sync itself",
        patches=_own_sync_counts,
        **of_moment("slow-disks"),
    ),
    Mutant(
        rule="R12-slow",
        meaning="a member that acknowledges is caught up, however far behind it is",
        patches=_slow_is_well,
        **of_moment("slow-member"),
    ),
    Mutant(
        rule="R2-scrub",
        meaning="an epoch that is being written is taken for damage, and mended",
        patches=_scrubbed_meanwhile,
        **of_moment("slow-failover"),
    ),
    Mutant(
        rule="R6-syncs",
        meaning="a master is replaced while its slow disk writes that it has the epoch",
        patches=_impatient,
        **of_moment("slow-failover"),
    ),
    Mutant(
        rule="R22-all",
        meaning="a master whose disk stalls is replaced although all disks do",
        patches=_stalls_uncompared,
        **of_moment("slow-disks"),
    ),
    Mutant(
        rule="R22-alone",
        meaning="a master whose disk stalls alone leads on",
        patches=_stalls_ignored,
        **of_moment("slow-alone"),
    ),
    Mutant(
        rule="R20",
        meaning="a drained master that hears no answer takes messages again",
        patches=_unheard_is_refused,
        **of_moment("asked-unheard"),
    ),
    Mutant(
        rule="R24-found",
        meaning="damage that was found is left alone",
        patches=_damage_ignored,
        **of_moment("damage"),
    ),
    Mutant(
        rule="R24-elected",
        meaning="a damaged replica calls itself healthy, so it may be elected",
        patches=_damaged_is_healthy,
        **of_moment("damage"),
    ),
    Mutant(
        rule="R24-served",
        meaning="damaged bytes are served",
        patches=_damage_served,
        **of_moment("damage"),
    ),
    Mutant(
        rule="R21-record",
        meaning="an unclean epoch does not say so",
        patches=_unclean_untold,
        **of_moment("unclean"),
    ),
    Mutant(
        rule="R21-rank",
        meaning="a longer log comes before one of a later epoch",
        patches=_longest_first,
        **of_moment("latest-epoch"),
    ),
    Mutant(
        rule="R21-setting",
        meaning="the setting for unclean elections waits for an epoch that nobody begins",
        patches=_setting_waits,
        **of_moment("latest-epoch"),
    ),
)
"""Each with the script of its rule."""
