"""What `Producer.send` gives back: light awaitables on the fate of a batch, and their results."""

from asyncio import AbstractEventLoop, Future, get_running_loop
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias, TypeVar, overload

from paceline.errors import PacelineError
from paceline.producer.batch import Batch
from paceline.records.header import SEQUENCE_MAX, Kind, parse_header
from paceline.types import GroupName, MasterEpoch, QueueId, QueueOffset, TopicName
from paceline.wire.message_ids import RECALL, OffsetMessageId, make_handle, unique_key
from paceline.wire.stream import (
    PRODUCE_FLAG_DUPLICATE,
    PRODUCE_FLAG_OFFSET_UNKNOWN,
    PRODUCE_FLAG_UNCONFIRMED,
)

ResultT = TypeVar("ResultT", covariant=True)
_new_tuple = tuple.__new__


class StoredAt(NamedTuple):
    """Where a batch is and who sent it: what the ids of its messages are made of."""

    group: str
    position: int
    """Physical offset; 0: not known, as of a duplicate."""
    producer: str
    """The unique key of its messages up to their sequence."""
    base_sequence: int


class SendResult(NamedTuple):
    """Where an acknowledged message is: durable on every in-sync replica (INV-1), or, where it is
    not `is_confirmed`, on as many as its group has chosen (R37)."""

    topic: TopicName
    group: GroupName
    queue_id: QueueId
    queue_offset: QueueOffset
    """-1 for a duplicate that is older than the broker remembers offsets of."""
    epoch: MasterEpoch
    is_duplicate: bool = False
    """A retry found it stored already; the offset is the original's."""
    is_confirmed: bool = True
    """False only in a group with `all_ack_in_sync_state_set = false`: the message was acknowledged
    before all in-sync replicas had it, and a failover may still lose it."""
    recall_handle: str | None = None
    """Of a delayed message, which has no offset yet (-1): what `Producer.recall` takes."""
    logical_queue: int | None = None
    """Of a static topic: the logical queue it is in, and its offset there, which goes on over
    remaps (-1 where `queue_offset` is). The others say where it is stored."""
    logical_offset: int | None = None
    stored_at: StoredAt | None = None
    """Of the batch; the ids below are made of it when they are asked for."""
    number: int = 0
    """Of the message in its batch."""

    @property
    def message_id(self) -> str | None:
        """The offset message id, which `AdminClient` and `paceline message` find it by (RocketMQ's
        offsetMsgId). None where it is not known: for a duplicate."""
        at = self.stored_at
        if at is None or not at.position:
            return None
        return str(OffsetMessageId(at.group, at.position, self.number))

    @property
    def unique_key(self) -> str | None:
        """The message's name by its producer's sequence, the same wherever brokers put it: in a
        retry, a delivery, a commit (RocketMQ's msgId)."""
        at = self.stored_at
        if at is None:
            return None
        return f"{at.producer}:{(at.base_sequence + self.number) & SEQUENCE_MAX}"


OnSent: TypeAlias = Callable[[SendResult | None, PacelineError | None], None]
"""Called once on the event loop with the result or the error of one message."""


class _Awaited(Coroutine[Any, Any, ResultT]):
    """Awaited like a coroutine: `create_task`, `TaskGroup.create_task`, `gather`, `wait_for` and
    `run_coroutine_threadsafe` take it. It may be awaited more than once."""

    __slots__ = ("_steps",)
    _steps: Generator[Any, None, ResultT]

    def __await__(self) -> Generator[Any, None, ResultT]:
        raise NotImplementedError

    def send(self, value: Any, /) -> Any:
        """A step of whoever runs it as a coroutine."""
        return self._begun().send(value)

    def throw(self, *error: Any) -> Any:
        """As `send`: an error, such as a cancellation, ends the wait."""
        return self._begun().throw(*error)

    def close(self) -> None:
        """End the wait; the message is not taken back."""
        self._begun().close()

    def _begun(self) -> Generator[Any, None, ResultT]:
        try:
            return self._steps
        except AttributeError:
            self._steps = self.__await__()
            return self._steps


class Sending(_Awaited[SendResult]):
    """One message on its way. Await it for its `SendResult`, or for the error.

    Cancelling the wait does not take the message back: it may be stored. An `is_definite` error
    says that it certainly is not; OutcomeUnknownError that nobody knows.
    """

    __slots__ = ("_batch", "_index", "_loop")

    def __init__(self, batch: Batch, index: int, loop: AbstractEventLoop) -> None:
        """`loop`: the producer's, where it is awaited."""
        self._batch = batch
        self._index = index
        self._loop = loop

    def __await__(self) -> Generator[Any, None, SendResult]:
        batch = self._batch
        if batch.answer is not None or batch.error is not None:
            return _at_once(self)
        # A future per waiter: one shared by all would be cancelled with the first waiter.
        waiter: Future[SendResult] = Future(loop=self._loop)
        batch.waiters += (waiter, self._index)
        return waiter.__await__()

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._batch.is_settled

    def result(self) -> SendResult:
        """The result of a message that is done; raises its error."""
        return result_of(self._batch, self._index)

    def result_at(self, index: int) -> SendResult:
        """The result of the message `index` places after the first of this one's `count`."""
        return result_of(self._batch, self._index + index)

    @property
    def count(self) -> int:
        """How many messages this stands for."""
        return 1

    @property
    def place(self) -> tuple[Batch, int]:
        """The batch that it rides in, and its number there; once it is done. For the library."""
        return self._batch, self._index

    def on_sent(self, callback: OnSent) -> None:
        """Call `callback` with the outcome, later."""
        batch = self._batch
        if batch.is_settled:  # refused when it was placed: there is no such queue
            self._loop.call_soon(wake, batch)
        batch.waiters += (callback, self._index)

    def settle_into(self, batch: Batch, index: int) -> None:
        """Only for the producer: the message was waiting for room or a route and is placed now."""
        assert not batch.is_settled
        for waiter in self._batch.waiters[::2]:
            batch.waiters += (waiter, index)
        self._batch, self._index = batch, index

    def fail(self, error: PacelineError) -> None:
        """Only for the producer: it was given up while it waited for room or a route."""
        self._batch.error = error
        wake(self._batch)


class Run(Sending):
    """Consecutive messages of one batch."""

    __slots__ = ("_count",)

    def __init__(self, batch: Batch, index: int, loop: AbstractEventLoop, count: int) -> None:
        super().__init__(batch, index, loop)
        self._count = count

    @property
    def count(self) -> int:
        return self._count


class SendingMany(_Awaited["SendResults"]):
    """Many messages on their way. Await it for all their results, in the order they were given.

    If some fail, the first error is raised; `results` then still has the others.
    """

    __slots__ = ("_runs",)

    def __init__(self, runs: list[Sending]) -> None:
        self._runs = runs

    def __await__(self) -> Generator[Any, None, "SendResults"]:
        for run in self._runs:
            if not run.done():
                with suppress(PacelineError):  # raised below, when all have their outcomes
                    yield from run.__await__()
        for run in self._runs:
            run.result()
        return self.results()

    def done(self) -> bool:
        return all(run.done() for run in self._runs)

    def results(self) -> "SendResults":
        """All results once done; an item that failed raises its error when it is looked at."""
        return SendResults(self._runs)


class SendResults(Sequence[SendResult]):
    """Results of `send_many`, made one by one when looked at."""

    def __init__(self, runs: list[Sending]) -> None:
        self._runs = runs
        self._count = sum(run.count for run in runs)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> SendResult: ...

    @overload
    def __getitem__(self, index: slice) -> list[SendResult]: ...

    def __getitem__(self, index: int | slice) -> SendResult | list[SendResult]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(self._count))]
        left = index + self._count if index < 0 else index
        if left >= 0:
            for run in self._runs:
                if left < run.count:
                    return run.result_at(left)
                left -= run.count
        raise IndexError(index)


def result_of(batch: Batch, index: int) -> SendResult:
    """Result of the message at `index` of a settled batch; raises a copy of the batch's error."""
    shared = batch.shared
    if shared is None:
        shared = batch.shared = _shared_by_results(batch)
    topic, group, queue, base, epoch, is_duplicate, is_confirmed, stored_at, is_plain = shared
    # As `SendResult(...)`, at a third of its time: one for each message.
    result = _new_tuple(
        SendResult,
        (
            topic,
            group,
            queue,
            base + index,
            epoch,
            is_duplicate,
            is_confirmed,
            None,
            None,
            None,
            stored_at,
            index,
        ),
    )
    return result if is_plain else _completed(result, batch)


def _shared_by_results(batch: Batch) -> tuple[Any, ...]:
    """What results of one batch have in common, and whether that and the number are all."""
    answer = batch.answer
    if answer is None:
        assert batch.error is not None, "the outcome is not known yet"
        raise copy_error(batch.error)
    _, group, queue = batch.queue
    flags = answer.flags
    stored_at = None
    if batch.encoded is not None:
        header = parse_header(batch.encoded)
        if header.producer_id:
            producer = unique_key(header, 0, group).rpartition(":")[0]
            stored_at = StoredAt(group, answer.position, producer, header.base_sequence)
    return (
        batch.topic,
        group,
        queue,
        answer.base_queue_offset,
        answer.master_epoch,
        bool(flags & PRODUCE_FLAG_DUPLICATE),
        not flags & PRODUCE_FLAG_UNCONFIRMED,
        stored_at,
        batch.kind != Kind.DELAY
        and batch.place is None
        and not flags & PRODUCE_FLAG_OFFSET_UNKNOWN,
    )


def _completed(result: SendResult, batch: Batch) -> SendResult:
    """The result of a message that is delayed, or in a static topic, or an old duplicate."""
    answer, offset = batch.answer, result.queue_offset
    assert answer is not None
    handle = number = logical = None
    if answer.flags & PRODUCE_FLAG_OFFSET_UNKNOWN:
        offset = QueueOffset(-1)
    elif batch.kind == Kind.DELAY:
        place = OffsetMessageId(result.group, answer.base_queue_offset, result.number)
        offset, handle = QueueOffset(-1), make_handle(RECALL, place)
    if batch.place is not None:
        number, segment = batch.place
        logical = segment.logical(offset) if offset >= 0 else -1
    return result._replace(
        queue_offset=offset, recall_handle=handle, logical_queue=number, logical_offset=logical
    )


def copy_error(error: PacelineError) -> PacelineError:
    """A fresh instance: every waiter raises its own, or their tracebacks would pile up in one."""
    copy = type(error)(error.message, **error.details)
    copy.__cause__ = error.__cause__
    return copy


def _at_once(sending: Sending) -> Generator[Any, None, SendResult]:
    """Awaited, it does not suspend."""
    return sending.result()
    yield


def wake(batch: Batch) -> None:
    """Tell everybody who waits for the batch that it has an outcome.

    Its `waiters` are pairs without tuples: a future or a callback, then its message's number.
    """
    waiters, batch.waiters = batch.waiters, []
    error = batch.error
    pairs = iter(waiters)
    for waiter, index in zip(pairs, pairs, strict=True):
        result = result_of(batch, index) if error is None else None
        if waiter.__class__ is not Future:
            try:
                waiter(result, error and copy_error(error))
            except Exception as failure:  # the application's code: others are told all the same
                get_running_loop().call_exception_handler(
                    {"message": "a callback of Producer.send_nowait failed", "exception": failure}
                )
        elif waiter.done():
            continue  # cancelled
        elif error is None:
            waiter.set_result(result)
        else:
            waiter.set_exception(copy_error(error))
            waiter._log_traceback = False  # whoever waited may have gone
