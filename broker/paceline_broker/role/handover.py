"""A master gives its place to another member without a failed send (R20).

It takes nothing more, lets everything be confirmed, and asks the controllers for its replacement.
Once it has asked, it takes work again only after a definite refusal: else two masters might.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from paceline.errors import PacelineError
from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline.wire import session as wire
from paceline_broker.role.controller_requests import ControllerRequests
from paceline_broker.role.mastership import Mastership

log = logging.getLogger("paceline.role")

STOP_TIMEOUT_MS = 1000
"""An election takes some 20 ms; who cannot hand over in a second is replaced after its stop."""
DRAIN_MS_MAX = 700
"""Less than the controllers wait for a word: a master that cannot drain can still say so."""

Reply = Callable[[str], None]
"""Sends a message to the controller that gave the order."""


class LeadingRole(Protocol):
    """What a hand-over asks of the role."""

    @property
    def mastership(self) -> Mastership | None: ...

    @property
    def requests(self) -> ControllerRequests: ...


class MasterHandover:
    """The hand-overs of one broker process; at most one is under way."""

    def __init__(self, role: LeadingRole) -> None:
        self._role = role
        self._task: asyncio.Task[None] | None = None

    async def stop(self) -> None:
        await cancel_and_wait(self._task)

    async def before_stop(self, *, timeout_ms: int = STOP_TIMEOUT_MS) -> None:
        """Returns when another epoch has begun, the controllers refused, or time is up; the stop
        that follows fences in any case."""
        await self.stop()  # of an order's, if one is under way: this one does not resume
        mastership = self._role.mastership
        if mastership is None or not mastership.is_open:
            return
        mastership.drain()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await mastership.all_confirmed()
                if len(mastership.term.sync_state_set) < 2:
                    return  # nobody could take over
                refusal = await self._role.requests.step_down(mastership)
                while refusal is None and self._role.mastership is mastership:
                    await pause(5)
        except (TimeoutError, PacelineError) as error:
            log.info("hand_over_given_up", extra={"reason": str(error)})

    def ordered(self, order: wire.TransferOrder, reply: Reply) -> None:
        """A controller's order. What stands against it is said at once."""
        mastership = self._role.mastership
        reason = None
        if mastership is None or mastership.epoch != order.master_epoch:
            reason = f"this broker does not lead epoch {order.master_epoch}"
        elif not mastership.is_open:
            reason = f"epoch {order.master_epoch} is not open yet"
        elif self._task is not None and not self._task.done():
            reason = "a hand-over is under way"
        if reason is not None:
            _refuse(order, reason, reply)
            return
        assert mastership is not None
        log.info("hand_over_ordered", extra={"preferred": order.preferred})
        mastership.drain()
        work = self._carry_out(mastership, order, reply)
        self._task = spawn(work, name=f"hand-over:{order.master_epoch}")

    async def _carry_out(
        self, mastership: Mastership, order: wire.TransferOrder, reply: Reply
    ) -> None:
        if not await self._is_drained(mastership, order, reply):
            return
        refusal = await self._role.requests.step_down(mastership, preferred=order.preferred)
        if refusal is not None:
            mastership.resume()
            _refuse(order, refusal, reply)

    async def _is_drained(
        self, mastership: Mastership, order: wire.TransferOrder, reply: Reply
    ) -> bool:
        """If not, it goes on: nobody was asked to replace it yet."""
        try:
            async with asyncio.timeout(DRAIN_MS_MAX / 1000):
                await mastership.all_confirmed()
        except TimeoutError:
            reason = f"what was sent is not confirmed after {DRAIN_MS_MAX} ms: a member lags"
        except PacelineError as error:
            reason = error.message
        else:
            return True
        mastership.resume()
        _refuse(order, reason, reply)
        return False


def _refuse(order: wire.TransferOrder, reason: str, reply: Reply) -> None:
    log.info("hand_over_refused", extra={"reason": reason})
    refusal = wire.HandOverRefused(
        master_epoch=order.master_epoch, reason=reason[: wire.REASON_LENGTH_MAX]
    )
    reply(wire.encode(refusal))
