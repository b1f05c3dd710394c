"""Commands into the replicated log: stamped, exactly once.

The leader's own commands (elections, topics, settings) run in a session of this leadership; those
of brokers carry their own. Owned by the event loop; holds no lock across nodes.
"""

import asyncio
import logging
from typing import Any, Protocol

from paceline.errors import NotLeaderError, OutcomeUnknownError, PacelineError
from paceline.platform.ports import Clock, Random
from paceline.platform.runtime import pause
from paceline.wire.commands import NOT_ADMITTED, Once
from paceline.wire.session_commands import OpenSession
from paceline_controller.quorum import Quorum
from paceline_controller.state import Machine
from paceline_controller.state.commands import Envelope, Lead
from paceline_controller.state.machine import TIME_STEP_MS_MAX

log = logging.getLogger("paceline.controller")

SESSION_ID_BYTES = 16
REPEAT_MS = 20
ATTEMPTS_MAX = 5


class Encodable(Protocol):
    """A command of the machine."""

    @property
    def kind(self) -> str: ...

    def to_json(self) -> dict[str, Any]: ...


class Proposer:
    """One per controller."""

    def __init__(
        self,
        quorum: Quorum,
        machine: Machine,
        *,
        clock: Clock,
        random: Random,
        timeout_ms: int,
    ) -> None:
        self._quorum = quorum
        self._machine = machine
        self._clock = clock
        self._random = random
        self._timeout_ms = timeout_ms
        self._session = ""
        self._sequence = 0
        self._replacing = asyncio.Lock()

    async def begin(self, lead: Lead) -> dict[str, Any]:
        """Open this leadership's session and announce it. Raises as `propose` does."""
        self._session, self._sequence = self._random.token(SESSION_ID_BYTES).hex(), 0
        await self.submit(OpenSession())
        return await self.submit(lead)

    def end(self) -> None:
        """Leadership is over: its session is never used again."""
        self._session = ""

    async def submit(self, command: Encodable, *, once: Once | None = None) -> dict[str, Any]:
        """A command of this controller; repeats an unknown outcome a few times.

        `once` is the caller's own (session, sequence): then that session's refusal is its result.

        Raises OutcomeUnknownError once any attempt may be applied, in the end at the latest; before
        that what `Quorum.propose` raises.
        """
        session, sequence = self._next() if once is None else once
        may_be_applied = False
        for _ in range(ATTEMPTS_MAX):
            try:
                result = await self.relay(session, sequence, command)
                if once is None and result.get("reason") == "UNKNOWN_SESSION":
                    await self._replace(session)
            except OutcomeUnknownError as error:
                may_be_applied = True
                log.warning("command_unknown", extra={"kind": command.kind, "why": error.message})
            except PacelineError as error:
                if not (may_be_applied and error.is_definite):
                    raise
                # This attempt did nothing; an earlier one may be committed, by any leader (R32).
                raise OutcomeUnknownError(
                    f"{command.kind}: an earlier attempt may be applied, this one was refused: "
                    f"{error.message}"
                ) from error
            else:
                if result.get("reason") not in NOT_ADMITTED or (once and not may_be_applied):
                    return result
                if may_be_applied or result["reason"] == "STALE_SEQUENCE":
                    raise OutcomeUnknownError(f"{command.kind}: {result['detail']}")
                session, sequence = self._next()
                continue
            await pause(REPEAT_MS)
        raise OutcomeUnknownError(f"{command.kind}: no outcome in {ATTEMPTS_MAX} attempts")

    def _next(self) -> tuple[str, int]:
        """Session and sequence for a new command. Raises NotLeaderError."""
        if not self._session:
            raise NotLeaderError("this controller does not lead", leader=None)
        self._sequence += 1
        return self._session, self._sequence - 1

    async def _replace(self, expired: str) -> None:
        """Open another session: in replicated time `expired` was unused for long (R38).

        A wall clock that jumps carries replicated time along, a minute with every command, whosever
        it is; without this a leader would be refused for ever. Raises as `propose` does.
        """
        async with self._replacing:
            if self._session != expired:
                return  # another command has seen to it, or leadership is over
            fresh = self._random.token(SESSION_ID_BYTES).hex()
            result = await self.relay(fresh, 0, OpenSession())
            if result["ok"] and self._session == expired:
                log.warning("own_session_expired")
                self._session, self._sequence = fresh, 1

    async def relay(self, session: str, sequence: int, command: Encodable) -> dict[str, Any]:
        """One attempt at a command of any session. Raises as `Quorum.propose` does."""
        envelope = self._stamp(session, sequence)
        document = {**command.to_json(), **envelope.to_json()}
        return await self._quorum.propose(document, timeout_ms=self._timeout_ms)

    def _stamp(self, session: str, sequence: int) -> Envelope:
        # Within what one step may move (R38), so that deadlines mean the same as replicated time.
        now, replicated = self._clock.unix_ms(), self._machine.time_ms
        at = now if replicated == 0 else min(max(now, replicated), replicated + TIME_STEP_MS_MAX)
        return Envelope(session=session, sequence=sequence, at=at, deadline=at + self._timeout_ms)
