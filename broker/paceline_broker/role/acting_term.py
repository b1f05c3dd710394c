"""One appointment of this process as acting master: made with its epoch, thrown away with it (R36).

It has no writer: there is no way from here to the log. It asks the controllers, while somebody
wants locks, whether its epoch is still the present one.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from paceline.errors import PacelineError
from paceline.platform.ports import Clock
from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline.types import MasterEpoch
from paceline.wire import session as wire
from paceline.wire.cluster import GroupView
from paceline_broker.acting.locks import PROOF_INTERVAL_MS, ActingLocks
from paceline_broker.role.context import RoleContext

log = logging.getLogger("paceline.acting")

LOOK_MS = 50
"""So soon after the first wish for a lock the controllers are asked."""


class ActingTerm:
    """Owned by the role; `Acting` to the service."""

    def __init__(
        self,
        epoch: MasterEpoch,
        *,
        lease_ms: int,
        clock: Clock,
        ask: Callable[[int], Awaitable[dict[str, Any]]],
        was_readable: bool = False,
    ) -> None:
        """`ask(leases_ms)`: the controllers' definite answer to `OpenActingLocks`."""
        self.was_readable = was_readable
        """Whether the log may be read once this has ended (R3)."""
        self.epoch = epoch
        self.locks = ActingLocks(epoch, lease_ms=lease_ms, now_ms=clock.monotonic_ms())
        self.has_ended = False
        self.since_unix_ms = clock.unix_ms()
        self._clock = clock
        self._ask = ask
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = spawn(self._run(), name="acting-term")

    async def end(self, reason: str) -> None:
        """Nothing is granted or taken from now on."""
        self.has_ended = True
        log.info("acting_ended", extra={"reason": reason})
        await cancel_and_wait(self._task)

    async def _run(self) -> None:
        while True:
            now_ms = self._clock.monotonic_ms()
            if not self.locks.should_ask(now_ms):
                await pause(LOOK_MS)
                continue
            try:
                result = await self._ask(self.locks.leases_ms)
            except PacelineError as error:
                log.info("acting_locks_unknown", extra={"why": error.message})
            else:
                if not result["ok"]:
                    log.info("acting_locks_refused", extra={"reason": result.get("reason")})
                    return  # a view that names the next epoch is on its way
                self.locks.told_current(now_ms)
            await pause(PROOF_INTERVAL_MS)


def begin_acting(around: RoleContext, group: GroupView, *, was_readable: bool) -> ActingTerm:
    """The started term of the appointment in `group`, whose epoch the store has adopted (R2)."""
    identity = around.store.identity.identity
    epoch, replica_id = around.store.identity.epoch, identity.replica_id
    assert epoch == group.master_epoch, (epoch, group.master_epoch)
    assert replica_id is not None

    async def ask(leases_ms: int) -> dict[str, Any]:
        return await around.links.request(
            wire.OpenActingLocks(
                group=identity.group,
                replica_id=replica_id,
                incarnation=identity.incarnation,
                master_epoch=epoch,
                leases_ms=leases_ms,
            )
        )

    term = ActingTerm(
        epoch,
        lease_ms=around.config.lock_lease_ms,
        clock=around.clock,
        ask=ask,
        was_readable=was_readable,
    )
    term.start()
    log.info("acting_begun", extra={"confirm": around.store.log.confirm})
    return term
