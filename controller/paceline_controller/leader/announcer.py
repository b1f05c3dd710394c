"""Shell: the leader records the addresses of the controllers of a new generation.

The member list is Raft's; views carry the client addresses, so that brokers and clients find
controllers they were never configured with. Owned by the event loop.
"""

import asyncio
import logging
from collections.abc import Callable

from paceline.errors import PacelineError
from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline_controller.leader.proposer import Proposer
from paceline_controller.quorum import Quorum
from paceline_controller.state import Machine
from paceline_controller.state.operator_commands import SetControllers

log = logging.getLogger("paceline.controller")

RETRY_MS = 200


class ControllersAnnouncer:
    """One per controller; does something only on the leader."""

    def __init__(
        self,
        quorum: Quorum,
        machine: Machine,
        proposer: Proposer,
        *,
        is_leading: Callable[[], bool],
    ) -> None:
        self._quorum = quorum
        self._machine = machine
        self._proposer = proposer
        self._is_leading = is_leading
        self._task: asyncio.Task[None] | None = None

    def look(self) -> None:
        """Leadership or the member list may have changed."""
        if (self._task is None or self._task.done()) and self._due() is not None:
            self._task = spawn(self._announce(), name="announce_controllers")

    async def stop(self) -> None:
        if self._task is not None:
            await cancel_and_wait(self._task)

    def _due(self) -> SetControllers | None:
        """What is to be written down, None if nothing is or it is not ours to do."""
        members = self._quorum.status().members
        if members is None or not self._is_leading():
            return None
        generation = members.committed_generation
        if generation != members.generation or generation <= self._machine.controllers_generation:
            return None  # an uncommitted one is told when it is committed
        voters = [member for member in members.members if member.is_voter]
        addresses = tuple(member.client for member in voters if member.client)
        return SetControllers(generation=generation, addresses=addresses) if addresses else None

    async def _announce(self) -> None:
        while True:
            command = self._due()
            if command is None:
                return
            try:
                await self._proposer.submit(command)
            except PacelineError as error:
                log.info("controllers_not_told", extra={"why": error.message})
                await pause(RETRY_MS)
