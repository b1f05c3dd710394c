"""What a master asks of the controllers, and what their definite answers mean to it.

Set changes (R7), the report that its epoch is open (R6), the confirm floor (R16), to be replaced
(R20). Each names (master, incarnation, epoch), so a request of an ended mastership that is still
on its way is refused. Owned by the role; requests are tasks, because answers may take an outage.
"""

import asyncio
import logging
from typing import Any, Protocol

from paceline.errors import PacelineError
from paceline.platform.runtime import cancel_and_wait, spawn
from paceline.types import GroupName, PhysicalOffset, ReplicaId
from paceline.wire import session as wire
from paceline_broker.replication.master.events import AlterSyncStateSet
from paceline_broker.role.mastership import Mastership

log = logging.getLogger("paceline.role")


class Controllers(Protocol):
    """The part of `ControllerLinks` that the role uses."""

    def beat(self) -> None: ...

    async def request(self, command: wire.BrokerCommand) -> dict[str, Any]: ...


class ControllerRequests:
    """The requests of all masterships of one broker process."""

    def __init__(self, controllers: Controllers, *, group: GroupName) -> None:
        self._controllers = controllers
        self._group = group
        self._tasks: set[asyncio.Task[None]] = set()
        self._telling_floor: asyncio.Task[None] | None = None
        self._floor_told = PhysicalOffset(0)
        """As the controllers have confirmed it to this process."""

    def propose(self, mastership: Mastership, proposal: AlterSyncStateSet) -> None:
        """Send a set change; a refusal goes back to the term, a success comes as a view."""
        command = wire.AlterSyncStateSet(
            group=self._group,
            master=proposal.master,
            master_incarnation=mastership.term.incarnation,
            master_epoch=proposal.master_epoch,
            set_epoch=proposal.set_epoch,
            members=dict(proposal.incarnations),
            confirm=proposal.confirm,
            reason=proposal.reason,
        )
        log.info(
            "set_change_proposed",
            extra={"members": sorted(proposal.sync_state_set), "set_epoch": proposal.set_epoch},
        )
        self._spawn(self._alter(command, mastership, proposal.sequence), name=command.kind)

    def open_epoch(self, mastership: Mastership) -> None:
        """The epoch-start record is confirmed (R6)."""
        self._spawn(self._ask(wire.OpenEpoch(**self._of(mastership))), name="open_epoch")

    def tell_floor(self, mastership: Mastership) -> None:
        """Tell how far confirm is (R16), unless it is known or the last word is on its way."""
        is_telling = self._telling_floor is not None and not self._telling_floor.done()
        if is_telling or mastership.confirm <= self._floor_told:
            return
        command = wire.RaiseConfirmFloor(**self._of(mastership))
        self._telling_floor = self._spawn(self._tell(command), name=command.kind)

    async def step_down(
        self, mastership: Mastership, *, preferred: ReplicaId | None = None
    ) -> str | None:
        """Ask for another master; None: one was elected, else why not. May wait for an outage."""
        command = wire.StepDown(**self._of(mastership), preferred=preferred)
        result = await self._ask(command)
        return None if result["ok"] else str(result.get("detail", result.get("reason")))

    async def stop(self) -> None:
        await cancel_and_wait(*self._tasks)

    def _of(self, mastership: Mastership) -> dict[str, Any]:
        return {
            "group": self._group,
            "master": mastership.term.replica_id,
            "master_incarnation": mastership.term.incarnation,
            "master_epoch": mastership.epoch,
            "confirm": mastership.confirm,
        }

    async def _alter(
        self, command: wire.AlterSyncStateSet, mastership: Mastership, sequence: int
    ) -> None:
        try:
            result = await self._ask(command)
        except PacelineError as error:
            # Never let it rest: until the outcome is definite both sets must acknowledge (R7).
            log.warning("set_change_unknown", extra={"why": error.message})
            mastership.term.proposal_unknown(sequence)
            return
        if not result["ok"]:
            mastership.term.proposal_refused(sequence, set_epoch=result.get("set_epoch", 0))

    async def _tell(self, command: wire.RaiseConfirmFloor) -> None:
        if (await self._ask(command))["ok"]:
            self._floor_told = PhysicalOffset(command.confirm)

    async def _ask(self, command: wire.BrokerCommand) -> dict[str, Any]:
        result = await self._controllers.request(command)
        if not result["ok"]:
            log.info(
                "command_refused", extra={"command": command.kind, "reason": result.get("reason")}
            )
        return result

    def _spawn(self, work: Any, *, name: str) -> "asyncio.Task[None]":
        task = spawn(work, name=f"ask-controller-{name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
