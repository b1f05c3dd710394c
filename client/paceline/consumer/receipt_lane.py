"""Acknowledgements on their way to one broker group: what comes together goes together.

No linger: a call leaves at the end of the loop turn; while as many are under way as may be, what
comes meanwhile is the next call. An acknowledgement whose outcome is not known is repeated: brokers
remember by which receipt a message was done.
"""

import asyncio
from collections import deque
from typing import Any

from paceline.consumer.links import GroupLinks
from paceline.errors import BY_CODE, PacelineError, ReceiptExpiredError
from paceline.runtime import spawn
from paceline.types import GroupName

_CALLS_MAX = 4
_HANDLES_MAX = 1024


class ReceiptLane:
    """Owned by one `SimpleConsumer`."""

    def __init__(
        self, links: GroupLinks, broker_group: GroupName, group: str, *, timeout_ms: int
    ) -> None:
        self._links = links
        self._broker_group = broker_group
        self._group = group
        self._timeout_ms = timeout_ms
        self._waiting: deque[tuple[str, asyncio.Future[None]]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_scheduled = False

    def acknowledge(self, handle: str) -> "asyncio.Future[None]":
        """Done when the message is; the future raises what `SimpleConsumer.ack` does."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.append((handle, future))
        if not self._is_scheduled and len(self._tasks) < _CALLS_MAX:
            self._is_scheduled = True
            loop.call_soon(self._pump)
        return future

    async def flush(self) -> None:
        """Return when everything that was asked for has its outcome."""
        while self._tasks or self._waiting:
            self._pump()
            await asyncio.wait(set(self._tasks))

    def _pump(self) -> None:
        self._is_scheduled = False
        while self._waiting and len(self._tasks) < _CALLS_MAX:
            count = min(len(self._waiting), _HANDLES_MAX)
            rows = [self._waiting.popleft() for _ in range(count)]
            task = spawn(self._call(rows), name="ack")
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._pump()

    async def _call(self, rows: "list[tuple[str, asyncio.Future[None]]]") -> None:
        document = {
            "call": "ack",
            "group": self._group,
            "handles": [handle for handle, _ in rows],
        }
        try:
            answers = await receipts_call(
                self._links, self._broker_group, document, timeout_ms=self._timeout_ms
            )
        except PacelineError as error:
            for _, future in rows:
                _fail(future, error)
            return
        except BaseException:
            for _, future in rows:
                future.cancel()
            raise
        for (_, future), answer in zip(rows, answers, strict=True):
            if answer["code"] is not None:
                _fail(future, refusal(answer["code"]))
            elif not future.done():
                future.set_result(None)


async def receipts_call(
    links: GroupLinks, broker_group: GroupName, document: dict[str, Any], *, timeout_ms: int
) -> list[dict[str, Any]]:
    """The rows that answer `ack` or `invisible`, one for each handle; also if all were refused."""
    try:
        answer = await links.call(broker_group, document, timeout_ms=timeout_ms, attempt_ms=5_000)
    except PacelineError as error:
        if not isinstance(error.details.get("receipts"), list):
            raise
        answer = error.details  # each was refused for a reason of its own
    rows: list[dict[str, Any]] = answer["receipts"]
    return rows


def refusal(code: str) -> PacelineError:
    """What a refused receipt says to the application."""
    error_class = BY_CODE.get(code, ReceiptExpiredError)
    return error_class(
        "the message was given anew when its invisible time was over, or is done otherwise:"
        " somebody else may process it, too"
    )


def _fail(future: "asyncio.Future[None]", error: PacelineError) -> None:
    if not future.done():
        future.set_exception(error)
