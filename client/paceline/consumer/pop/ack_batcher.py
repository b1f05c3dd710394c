"""Acknowledgements on their way to one broker group: what comes together goes together.

No linger: a call leaves at the end of the loop turn; while as many are under way as may be, what
comes meanwhile is the next call. An acknowledgement whose outcome is not known is repeated: brokers
remember by which receipt a message was done.
"""

import asyncio
from collections import deque
from collections.abc import Sequence

from paceline.errors import BY_CODE, PacelineError, ReceiptExpiredError
from paceline.net.group_links import GroupLinks
from paceline.platform.runtime import spawn
from paceline.types import GroupName
from paceline.wire.calls import pop as wire
from paceline.wire.calls.request import refused_rows
from paceline.wire.receipts import why_refused

_CALLS_MAX = 4
_HANDLES_MAX = 1024


class _Wanted:
    """What one caller waits for: so many acknowledgements, and the first error among them."""

    __slots__ = ("_error", "_left", "future")

    def __init__(self, count: int) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._left = count
        self._error: PacelineError | None = None

    def settle(self, error: PacelineError | None) -> None:
        """One of them has its outcome."""
        self._error = self._error or error
        self._left -= 1
        if self._left or self.future.done():
            return
        if self._error is None:
            self.future.set_result(None)
        else:
            self.future.set_exception(self._error)


class AckBatcher:
    """Owned by one `SimpleConsumer`."""

    def __init__(
        self,
        links: GroupLinks,
        broker_group: GroupName,
        group: str,
        client_id: str,
        *,
        timeout_ms: int,
    ) -> None:
        self._links = links
        self._broker_group = broker_group
        self._group, self._client_id = group, client_id
        self._timeout_ms = timeout_ms
        self._waiting: deque[tuple[str, _Wanted]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_scheduled = False

    def acknowledge(self, handles: Sequence[str]) -> "asyncio.Future[None]":
        """Done when all the messages are; the future raises what `SimpleConsumer.ack` does."""
        wanted = _Wanted(len(handles))
        self._waiting.extend((handle, wanted) for handle in handles)
        if not self._is_scheduled and len(self._tasks) < _CALLS_MAX:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._pump)
        return wanted.future

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

    async def _call(self, rows: list[tuple[str, _Wanted]]) -> None:
        handles = [handle for handle, _ in rows]
        request = wire.Ack(group=self._group, client_id=self._client_id, handles=handles)
        try:
            answers = await receipts_call(
                self._links, self._broker_group, request, timeout_ms=self._timeout_ms
            )
        except PacelineError as error:
            for _, wanted in rows:
                wanted.settle(error)
            return
        except BaseException:
            for _, wanted in rows:
                wanted.future.cancel()
            raise
        for (_, wanted), answer in zip(rows, answers, strict=True):
            code = answer.code
            wanted.settle(None if code is None else refusal(code))


async def receipts_call(
    links: GroupLinks,
    broker_group: GroupName,
    request: wire.Ack | wire.Invisible,
    *,
    timeout_ms: int,
) -> list[wire.ReceiptRow]:
    """The rows that answer `ack` or `invisible`, one for each handle; also if all were refused."""
    try:
        reply = await links.call(broker_group, request, timeout_ms=timeout_ms, attempt_ms=5_000)
    except PacelineError as error:
        return refused_rows(wire.Receipts, error).receipts
    return reply.answer.receipts


def refusal(code: str) -> PacelineError:
    """What a refused receipt says to the application."""
    error_class = BY_CODE.get(code, ReceiptExpiredError)
    return error_class(why_refused(code))
