"""Shell around `Liveness`: the leader's work. Probes ports, proposes elections, keeps time moving.

One per controller; on a follower it only keeps what it hears. Owned by the event loop: every field
is touched by its callbacks and tasks there.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from paceline.errors import NotLeaderError, PacelineError
from paceline.platform.ports import Clock
from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline.security.key_uses import KeyUses
from paceline.types import GroupName, ReplicaId
from paceline.wire.commands import Once
from paceline.wire.session import Heartbeat, StepDown
from paceline_controller.election.acting import Proposal
from paceline_controller.election.contacts import ConnectionId, Inquiry, ProbeTarget, ReplicaKey
from paceline_controller.election.election import NoElection, ReplicaStatus
from paceline_controller.election.liveness import TICK_MS, Liveness
from paceline_controller.election.liveness_events import (
    ElectionFinished,
    Heard,
    LeadershipChanged,
    LivenessEvent,
    LivenessSettings,
    SessionClosed,
    StateChanged,
    Tick,
)
from paceline_controller.election.outages import Beats, Outages
from paceline_controller.leader.inquirer import Inquirer
from paceline_controller.leader.prober import Prober
from paceline_controller.leader.proposer import Proposer
from paceline_controller.leader.transfers import Transfers
from paceline_controller.probe import ControllerMetrics
from paceline_controller.sessions.hub import Hub
from paceline_controller.state import Machine
from paceline_controller.state.commands import ALIVE_SESSIONS_MAX, ElectMaster, Lead
from paceline_controller.state.commands import Tick as TickCommand
from paceline_controller.state.model import Group

log = logging.getLogger("paceline.controller")

TIME_INTERVAL_MS = 30_000
"""The leader moves replicated time this often: half of what one step may move (R38)."""
LEAD_RETRY_MS = 50
REPORTS_WAIT_MS = 200
"""A round trip to every broker, on a busy machine; a refused transfer costs this much."""
REPORTS_LOOK_MS = 2
_ABSENT = (ReplicaStatus.GONE, ReplicaStatus.SILENT)


class Supervisor:
    """See the module. `on_lead` is called when this node has begun to lead."""

    def __init__(
        self,
        machine: Machine,
        *,
        proposer: Proposer,
        prober: Prober,
        inquirer: Inquirer,
        hub: Hub,
        clock: Clock,
        settings: LivenessSettings,
        metrics: ControllerMetrics,
        make_lead: Callable[[int], Lead],
        on_lead: Callable[[], None],
        key_uses: KeyUses,
    ) -> None:
        self.key_uses = key_uses
        self._machine = machine
        self._proposer = proposer
        self._prober = prober
        self._inquirer = inquirer
        self._hub = hub
        self._clock = clock
        self._metrics = metrics
        self._make_lead = make_lead
        self._on_lead = on_lead
        self._liveness = Liveness(lambda: machine.groups, settings)
        self.outages = Outages()
        self.beats = Beats()
        self.transfers = Transfers(machine, hub)
        self._is_looking = False
        self._looked_version = -1
        """Of the state at which groups were looked at last."""
        self._leading: asyncio.Task[None] | None = None
        self._work: set[asyncio.Task[None]] = set()
        self.is_leading = False
        """This node leads and its `lead` command is applied."""

    @property
    def liveness(self) -> Liveness:
        """For reading: beliefs and reports."""
        return self._liveness

    async def stop(self) -> None:
        await cancel_and_wait(self._leading, *self._work)

    # -- what happens -------------------------------------------------------------------------

    def leadership_changed(self, is_leader: bool, term: int) -> None:  # a quorum callback
        log.info("leadership", extra={"is_leader": is_leader, "term": term})
        if self._leading is not None:
            self._leading.cancel()
            self._leading = None
        self.is_leading = False
        self._proposer.end()
        self._step(LeadershipChanged(is_leader=False, term=term))
        if is_leader:
            self._leading = spawn(self._lead(term), name=f"lead:{term}")

    def heard(self, connection: ConnectionId, group: GroupName, heartbeat: Heartbeat) -> None:
        key = ReplicaKey(group, heartbeat.replica_id)
        self.beats.heard(key, self._clock.monotonic_ms())
        self._step(Heard(connection=connection, group=group, heartbeat=heartbeat))

    def session_closed(self, connection: ConnectionId) -> None:
        self._step(SessionClosed(connection=connection))

    def state_changed(self) -> None:
        """The machine applied something; looks once per loop turn, however much it was."""
        if not self._is_looking:
            self._is_looking = True
            asyncio.get_running_loop().call_soon(self._look)

    # -- elections that are asked for -----------------------------------------------------------

    async def step_down(self, command: StepDown) -> dict[str, Any]:
        """A master asks to be replaced (R20). The result is definite; raises as `submit` does."""
        group = self._machine.groups.get(command.group)
        if group is None:
            return _unknown(command.group)
        asks = (command.master, command.master_incarnation, command.master_epoch)
        if asks != (group.master, group.master_incarnation, group.master_epoch):
            return _no("STALE_MASTER_EPOCH", "another epoch or master is on record", group=group)
        return await self._transfer(
            group, reason="transfer", leaving=command.master, preferred=command.preferred
        )

    async def order_transfer(self, group: Group, *, preferred: ReplicaId | None) -> dict[str, Any]:
        """Mastership moves without a failed send, or is refused. Raises as `submit`.

        `is_graceful` in the result: the master itself has handed over.
        """
        leaving, epoch = group.master, group.master_epoch
        if leaving is None:
            return _no("NO_MASTER", f"{group.group} has no master to hand over", group=group)
        if preferred == leaving:
            return _no("ALREADY_MASTER", f"replica {preferred} is the master", group=group)
        decision = await self._decide(
            group, reason="transfer", leaving=leaving, preferred=preferred
        )
        if not isinstance(decision, ElectMaster):
            return decision
        present = self._machine.groups.get(group.group, group)
        outcome = await self.transfers.order(present, preferred=preferred)
        if outcome is not None:
            return outcome
        present = self._machine.groups.get(group.group, group)
        if present.master_epoch != epoch:  # in the very moment in which the waiting ended
            return _no("STALE_MASTER_EPOCH", "another epoch has begun", group=present)
        result = await self._transfer(
            present, reason="transfer", leaving=leaving, preferred=preferred
        )
        return {**result, "is_graceful": False}

    async def order_election(
        self,
        group: Group,
        *,
        preferred: ReplicaId | None,
        is_unclean: bool,
        once: Once | None = None,
    ) -> dict[str, Any]:
        """An operator orders an election. `once` and what is raised: as of `submit`."""
        if not is_unclean:
            if preferred is not None and preferred == group.master:
                told = f"replica {preferred} is the master already, of epoch {group.master_epoch}"
                return _no("ALREADY_MASTER", f"{told}: there is nothing to elect", group=group)
            leaving = None if preferred is not None else group.master
            return await self._transfer(
                group, reason="operator", leaving=leaving, preferred=preferred, once=once
            )
        assert preferred is not None, "checked at the edge"
        decision = self._liveness.decide_unclean(
            group, self._clock.monotonic_ms(), winner=preferred
        )
        self._check_leading()
        if isinstance(decision, NoElection):
            return _no("NO_ELECTION", decision.reason, group=group)
        return await self._proposer.submit(decision, once=once)

    async def _transfer(
        self,
        group: Group,
        *,
        reason: str,
        leaving: ReplicaId | None,
        preferred: ReplicaId | None,
        once: Once | None = None,
    ) -> dict[str, Any]:
        decision = await self._decide(group, reason=reason, leaving=leaving, preferred=preferred)
        if not isinstance(decision, ElectMaster):
            return decision
        return await self._proposer.submit(decision, once=once)

    async def _decide(
        self,
        group: Group,
        *,
        reason: str,
        leaving: ReplicaId | None,
        preferred: ReplicaId | None,
    ) -> ElectMaster | dict[str, Any]:
        """The election to propose, or the refusal; raises NotLeaderError.

        Members may be electable only by reports that are newer than the confirm floor, or than
        their start: before a refusal they are asked for them.
        """
        name, epoch = group.group, group.master_epoch
        deadline_ms: int | None = None
        while True:
            now_ms = self._clock.monotonic_ms()
            decision = self._liveness.decide_transfer(
                group, now_ms, reason=reason, leaving=leaving, preferred=preferred
            )
            self._check_leading()
            if isinstance(decision, ElectMaster):
                return decision
            if deadline_ms is None:
                deadline_ms = now_ms + REPORTS_WAIT_MS
                self._hub.ask_reports(name)
            if now_ms >= deadline_ms:
                return _no("NO_ELECTION", decision.reason, group=group)
            await pause(REPORTS_LOOK_MS)
            present = self._machine.groups.get(name)
            if present is None:
                return _unknown(name)
            group = present
            if group.master_epoch != epoch:  # the one that wanted to leave has left (R15)
                return _no("STALE_MASTER_EPOCH", "another epoch has begun", group=group)

    def _check_leading(self) -> None:
        if not self.is_leading:
            raise NotLeaderError("this controller does not lead", leader=None)

    # -- tasks --------------------------------------------------------------------------------

    async def _tick(self) -> None:
        """Judge by the clock, while this node leads; a follower judges nothing."""
        told_ms = self._clock.monotonic_ms()
        while True:
            await pause(TICK_MS)
            self._step(Tick())
            now = self._clock.monotonic_ms()
            if now - told_ms >= TIME_INTERVAL_MS:
                told_ms = now
                self._spawn(self._move_time(), name="move_time")

    async def _lead(self, term: int) -> None:
        """Announce this leadership; until that is applied, nothing is judged (R15). Then judge."""
        while True:
            try:
                result = await self._proposer.begin(self._make_lead(term))
                break
            except NotLeaderError:
                # It is handing over, and may lead on; if it is over, that ends this task.
                await pause(LEAD_RETRY_MS)
            except PacelineError as error:
                log.warning("lead_failed", extra={"term": term, "why": error.message})
                await pause(LEAD_RETRY_MS)
        if not result["ok"]:
            log.warning("lead_refused", extra={"term": term, "reason": result["reason"]})
            return
        self.is_leading = True
        self._metrics.leaderships.inc()
        log.info("leading", extra={"term": term})
        self._on_lead()
        self._step(LeadershipChanged(is_leader=True, term=term))
        await self._tick()

    async def _probe(self, target: ProbeTarget) -> None:
        finished = await self._prober.probe(target)
        outcome = "refused" if finished.is_refused else "answered" if finished.answer else "unclear"
        self._metrics.probes.labels(outcome=outcome).inc()
        self._step(finished)

    async def _ask_others(self, inquiry: Inquiry) -> None:
        self._step(await self._inquirer.ask(inquiry))

    async def _elect(self, command: Proposal) -> None:
        began_ms = self._clock.monotonic_ms()
        chosen = command.winner if isinstance(command, ElectMaster) else command.acting
        fields = {"command": command.kind, "winner": chosen, "reason": command.reason}
        fields["group"] = command.group
        outcome = "unknown"
        try:
            result = await self._proposer.submit(command)
            outcome = "elected" if result["ok"] else "refused"
            elapsed_ms = self._clock.monotonic_ms() - began_ms
            log.info("election", extra={**fields, "result": result, "elapsed_ms": elapsed_ms})
        except PacelineError as error:
            log.warning("election_unknown", extra={**fields, "why": error.message})
        finally:
            self._metrics.elections.labels(outcome=outcome, reason=command.reason).inc()
            self._step(ElectionFinished(group=command.group))

    async def _prefer(self, group: Group, preferred: ReplicaId) -> None:
        """The member that is preferred has been well for long: mastership goes back to it."""
        fields = {"group": group.group, "preferred": preferred}
        try:
            result = await self.order_transfer(group, preferred=preferred)
            log.info("preferred_master", extra={**fields, "result": result})
        except PacelineError as error:
            log.info("preferred_master_unknown", extra={**fields, "why": error.message})

    async def _move_time(self) -> None:
        alive = self._hub.session_ids()[:ALIVE_SESSIONS_MAX]
        uses = self.key_uses.due()
        try:
            await self._proposer.submit(TickCommand(alive=alive, key_uses=uses))
            self.key_uses.told(uses)
        except PacelineError as error:
            log.info("time_not_moved", extra={"why": error.message})

    # -- the pure core ------------------------------------------------------------------------

    def _look(self) -> None:
        self._is_looking = False
        self.transfers.look()
        changed = self._machine.changed_since(self._looked_version)
        self._looked_version = self._machine.version
        self._step(StateChanged(groups=None if changed is None else frozenset(changed.groups)))

    def _step(self, event: LivenessEvent) -> None:
        ready = self._liveness.step(event, self._clock.monotonic_ms())
        for target in ready.probes:
            self._spawn(self._probe(target), name=f"probe:{target.key}")
        for inquiry in ready.inquiries:
            self._spawn(self._ask_others(inquiry), name=f"ask_others:{inquiry.key}")
        for transfer, preferred in ready.transfers:
            self._spawn(self._prefer(transfer, preferred), name=f"prefer:{transfer.group}")
        for group in ready.ask_reports:
            self._hub.ask_reports(group)
        for election in ready.elections:
            self._spawn(self._elect(election), name=f"elect:{election.group}")
        if not isinstance(event, Heard):
            self._count_outages()

    def _count_outages(self) -> None:
        if not self.is_leading:
            self.outages.stop()
            return
        now_ms = self._clock.monotonic_ms()

        def is_served(group: Group) -> bool:
            if group.master is None or not group.is_open:
                return False
            if self._liveness.is_calm(group, now_ms):
                return True
            return self._liveness.belief(group, group.master, now_ms).standing not in _ABSENT

        self.outages.look(self._machine.groups.values(), is_served, now_ms)

    def forget_cleaned(self) -> None:
        """Replicas that are registered no more have no beats to tell of."""
        groups = self._machine.groups
        self.beats.keep(
            lambda key: key.group in groups and key.replica_id in groups[key.group].replicas
        )

    def _spawn(self, work: Any, *, name: str) -> None:
        task = spawn(work, name=name)
        self._work.add(task)
        task.add_done_callback(self._work.discard)


def _unknown(group: GroupName) -> dict[str, Any]:
    """It was never there, or was removed while somebody waited."""
    return _no("GROUP_UNKNOWN", f"no broker group {group} is registered")


def _no(reason: str, detail: str, *, group: Group | None = None) -> dict[str, Any]:
    """A definite refusal that never reached the log."""
    numbers: dict[str, Any] = {}
    if group is not None:
        numbers = {
            "group": group.group,
            "master_epoch": group.master_epoch,
            "set_epoch": group.set_epoch,
            "sync_state_set": sorted(group.sync_state_set),
        }
    return {"ok": False, "reason": reason, "detail": detail, **numbers}
