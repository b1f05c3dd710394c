"""Collects a history while it happens.

Owns the numbers: entries are numbered from 0 in the order in which they are entered. All times are
what `now_us` says: the harness's clock, but never the same twice, so that what happens in one
instant of virtual time still has an order (S7, S8). A client asks with `asking(...)`, which enters
the operation when its outcome is known, and as UNKNOWN if the client never got so far; `close` does
the same for operations whose client was killed in the middle of them. A message of a send that is
in no history would look like an invention (S3).

    with recorder.asking(Send, client="c1", topic="t", key=None, value="c1-17", crc=crc) as asked:
        answer = await producer.send(...)
        asked.ok(queue=Queue("t", answer.group, answer.queue), offset=answer.offset)
"""

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Generic, TypeVar

from paceline.errors import PacelineError
from paceline_chaos.history.model import Event, History, Operation, Outcome

EventT = TypeVar("EventT", bound=Event)
OperationT = TypeVar("OperationT", bound=Operation)

UNFINISHED = "UNFINISHED"
"""Error code of an operation that was still going on when nobody waited for it any more."""


def outcome_of(error: BaseException) -> tuple[Outcome, str]:
    """FAIL only where the error promises that nothing was done; all else is UNKNOWN."""
    if isinstance(error, PacelineError):
        return Outcome.FAIL if error.is_definite else Outcome.UNKNOWN, error.code
    return Outcome.UNKNOWN, type(error).__name__


class Recorder:
    """Collects entries; one for each run, used from one thread."""

    def __init__(
        self,
        now_us: Callable[[], int],
        world: Mapping[str, Any],
        *,
        sink: Callable[[Event], None] | None = None,
    ) -> None:
        """`sink` gets each entry at once (`codec.HistoryWriter.write`): a crash leaves a file."""
        self.history = History(world=world)
        self._clock_us = now_us
        self._last_us = -1
        self._sink = sink
        self._open: dict[Asking[Any], None] = {}

    def now_us(self) -> int:
        """The time, and a moment later than all that was read before."""
        self._last_us = max(self._clock_us(), self._last_us + 1)
        return self._last_us

    def add(self, kind: type[EventT], /, **members: Any) -> EventT:
        """Enter one thing: a `kind` with these members, and the next number.

        `at_us` (and `answered_us`) default to now where the kind has them and they are not given.
        """
        fields = kind.__dataclass_fields__
        for name in ("at_us", "answered_us"):
            if name in fields and name not in members:
                members[name] = self.now_us()
        entry = kind(number=len(self.history.entries), **members)
        self.history.entries.append(entry)  # type: ignore[arg-type]  # the kinds are Entry
        if self._sink is not None:
            self._sink(entry)
        return entry

    def asking(self, kind: type[OperationT], /, **members: Any) -> "Asking[OperationT]":
        """An operation begins now; members known only from the answer come with its outcome."""
        asking = Asking(self, kind, {"asked_us": self.now_us(), **members})
        self._open[asking] = None
        return asking

    def close(self) -> None:
        """Enter what still goes on as UNKNOWN: its client is gone."""
        for asking in list(self._open):
            asking.unknown(UNFINISHED)

    def finished(self, asking: "Asking[Any]") -> None:
        """For `Asking` only."""
        self._open.pop(asking, None)


class Asking(Generic[OperationT]):
    """An operation under way. The first outcome counts; leaving the block without one, by an
    error or not, enters the operation as that error says."""

    def __init__(self, recorder: Recorder, kind: type[OperationT], members: dict[str, Any]) -> None:
        self._recorder = recorder
        self._kind = kind
        self._members = members
        self.entry: OperationT | None = None
        """What was entered, once it was."""

    @property
    def asked_us(self) -> int:
        return int(self._members["asked_us"])

    def knows(self, **members: Any) -> None:
        """Members that are known before the outcome, whatever that will be."""
        self._members.update(members)

    def ok(self, **members: Any) -> OperationT:
        """Answered: it was done."""
        return self._enter(Outcome.OK, None, members)

    def fail(self, error: str, **members: Any) -> OperationT:
        """Answered: certainly not done."""
        return self._enter(Outcome.FAIL, error, members)

    def unknown(self, error: str, **members: Any) -> OperationT:
        """Given up: done or not, now or later."""
        return self._enter(Outcome.UNKNOWN, error, members)

    def raised(self, error: BaseException, **members: Any) -> OperationT:
        """As the error says: `outcome_of`."""
        outcome, code = outcome_of(error)
        return self._enter(outcome, code, members)

    def _enter(self, outcome: Outcome, error: str | None, members: Mapping[str, Any]) -> OperationT:
        if self.entry is None:
            self._recorder.finished(self)
            self.entry = self._recorder.add(
                self._kind, outcome=outcome, error=error, **{**self._members, **members}
            )
        return self.entry

    def __enter__(self) -> "Asking[OperationT]":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self.raised(error)
        else:
            self.unknown(UNFINISHED)


class RecorderOf(Recorder):
    """A recorder for one client: each of its operations has `members`, too."""

    def __init__(self, recorder: Recorder, **members: Any) -> None:
        self.history = recorder.history
        self._recorder = recorder
        self._members = members

    def now_us(self) -> int:
        return self._recorder.now_us()

    def add(self, kind: type[EventT], /, **members: Any) -> EventT:
        return self._recorder.add(kind, **members)

    def asking(self, kind: type[OperationT], /, **members: Any) -> Asking[OperationT]:
        return self._recorder.asking(kind, **{**self._members, **members})

    def close(self) -> None:
        self._recorder.close()
