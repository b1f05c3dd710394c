"""Transfers of leadership: when a controller stops, or an operator asks.

While it lasts this leader takes no proposals (a definite refusal), so the target catches up in a
round trip. It ends with another leader, or the leader goes on as before.

Owner: the event loop of one `RaftQuorum`.
"""

import asyncio
import logging

from paceline.errors import (
    CommandRefusedError,
    NotLeaderError,
    OutcomeUnknownError,
    PacelineError,
)
from paceline.platform.ports import Clock
from paceline.platform.runtime import pause
from paceline.types import ControllerId
from paceline_controller.raft.core import RaftCore

log = logging.getLogger("paceline.raft")

_STOP_WAIT_MS = 1_000
POLL_MS = 2
ASK_AGAIN_MS = 100
LAG_MAX = 10_000
"""Entries; one so far behind does not catch up while proposals are refused."""


class HandOver:
    """One at a time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = asyncio.Lock()
        self.is_under_way = False
        """Proposals are refused meanwhile."""

    async def to(
        self, core: RaftCore, target: ControllerId | None, *, timeout_ms: int
    ) -> ControllerId:
        """Until another controller leads. See `Quorum.transfer`."""
        async with self._lock:
            check_target(core, target)
            self.is_under_way = True
            try:
                return await self._ask(core, target, timeout_ms=timeout_ms)
            finally:
                self.is_under_way = False

    async def before_stop(self, core: RaftCore) -> None:
        """Let another controller lead before this one goes; gives up after a second."""
        try:
            await self.to(core, None, timeout_ms=_STOP_WAIT_MS)
        except PacelineError as error:
            log.info("raft_no_hand_over", extra={"why": error.message})

    async def _ask(
        self, core: RaftCore, target: ControllerId | None, *, timeout_ms: int
    ) -> ControllerId:
        term, was_asked = core.term, False
        started_ms = self._clock.monotonic_ms()
        ask_at_ms = started_ms
        while True:
            now_ms = self._clock.monotonic_ms()
            if not core.is_leading and core.leader is not None and core.term > term:
                return core.leader
            if now_ms - started_ms >= timeout_ms:
                break
            if core.is_leading and now_ms >= ask_at_ms and core.transfer_leadership(target):
                was_asked, ask_at_ms = True, now_ms + ASK_AGAIN_MS
            await pause(POLL_MS)
        if was_asked:
            raise OutcomeUnknownError(f"no other leader was seen within {timeout_ms} ms")
        raise CommandRefusedError(
            f"{target or 'no follower'} had the whole log within {timeout_ms} ms",
            reason="TRANSFER_REFUSED",
        )


def check_target(core: RaftCore, target: ControllerId | None) -> None:
    """Raises NotLeaderError, or CommandRefusedError if it cannot work."""
    if not core.leadership.is_leader:
        raise NotLeaderError("this controller does not lead", leader=core.leader)
    followers = core.followers()
    able = [name for name, one in followers.items() if one.is_voter and one.is_connected]
    if target is not None and not (target in followers and followers[target].is_voter):
        others = ", ".join(name for name, one in followers.items() if one.is_voter) or "nobody"
        raise _refused(f"{target} is no other voter of this quorum: {others}")
    if target is not None and target not in able:
        raise _refused(f"{target} is not connected to the leader")
    if not able:
        raise _refused("no other voter is connected to the leader")
    lag = core.journal.last_index - max(
        followers[name].matched for name in ([target] if target is not None else able)
    )
    if lag > LAG_MAX:
        raise _refused(f"{target or 'the nearest follower'} lacks {lag} entries of the log")


def _refused(sentence: str) -> CommandRefusedError:
    return CommandRefusedError(sentence, reason="TRANSFER_REFUSED")
