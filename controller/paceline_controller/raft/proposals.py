"""Pending proposals of this node, until their entries are applied here.

A proposal has an id of its own inside the entry: whoever applies the entry answers it, so an answer
never comes from a callback of the library. Owner: the event loop of one `RaftQuorum`.
"""

import asyncio
from collections.abc import Callable

import orjson

from paceline.errors import BadRequestError, OutcomeUnknownError, TooLargeError
from paceline.types import ControllerId
from paceline_controller.quorum import Command, Result
from paceline_controller.raft.settings import COMMAND_BYTES_MAX


class Proposals:
    """By id."""

    def __init__(self, controller_id: ControllerId, token: str) -> None:
        """`token` is another one in every start: ids never come again."""
        self._prefix = f"{controller_id}-{token}"
        self._count = 0
        self._waiting: dict[str, asyncio.Future[Result]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def name(self) -> str:
        """A fresh id."""
        self._count += 1
        return f"{self._prefix}-{self._count}"

    def envelope(self, command: Command | None) -> tuple[str, bytes]:
        """(id, payload of the entry). Raises BadRequestError, TooLargeError."""
        proposal = self.name()
        try:
            payload = orjson.dumps(
                {"command": command, "proposal": proposal}, option=orjson.OPT_SORT_KEYS
            )
        except orjson.JSONEncodeError as error:
            raise BadRequestError(f"the command is no JSON: {error}") from error
        if len(payload) >= COMMAND_BYTES_MAX:
            raise TooLargeError(f"command of {len(payload)} bytes", limit=COMMAND_BYTES_MAX)
        return proposal, payload

    async def wait(self, proposal: str, begin: Callable[[], object], *, timeout_ms: int) -> Result:
        """Until this node has applied the entry with that id, which `begin` appends."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting[proposal] = future
        try:
            begin()
            async with asyncio.timeout(timeout_ms / 1000):
                return await future
        except TimeoutError:
            raise OutcomeUnknownError(f"command not committed within {timeout_ms} ms") from None
        finally:
            self._waiting.pop(proposal, None)

    def answer(self, proposal: str, result: Result) -> None:
        future = self._waiting.pop(proposal, None)
        if future is not None and not future.done():
            future.set_result(result)

    def fail(self, error: OutcomeUnknownError) -> None:
        """Leadership was lost: nobody here will know."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)
        self._waiting.clear()
