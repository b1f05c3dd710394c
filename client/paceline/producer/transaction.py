"""Transactional messages: a message that becomes visible if, and only if, a local transaction did.

`TransactionProducer` stores the message as a *half*, which nobody sees, runs the application's
local transaction, and commits or rolls back. If it dies in between, or does not know, the broker
asks any live producer of the group, whose checker looks into the application's own records.
"""

import asyncio
import binascii
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

from paceline.errors import (
    BadRequestError,
    ConfigError,
    OutcomeUnknownError,
    PacelineError,
)
from paceline.message import Message
from paceline.net.client_base import Client
from paceline.net.cluster import Cluster
from paceline.net.connect import Bootstrap
from paceline.net.group_links import GroupLinks
from paceline.net.introduction import introduction
from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline.producer.producer import Producer
from paceline.producer.results import Sending, SendResult
from paceline.producer.settings import ProducerSettings
from paceline.producer.transaction_ends import HANDLE_KIND, TransactionEndSender
from paceline.producer.validation import is_delayed
from paceline.records.header import Kind, parse_header
from paceline.types import GroupName
from paceline.wire import properties as names
from paceline.wire.calls.messages import CheckRow, TransactionChecks
from paceline.wire.cluster import ClusterView
from paceline.wire.message_ids import OffsetMessageId, make_handle, unique_key
from paceline.wire.names import check_name
from paceline.wire.stream import PRODUCE_FLAG_OFFSET_UNKNOWN

log = logging.getLogger("paceline.client")

CHECK_WAIT_MS = 15_000
_CHECK_SLACK_MS = 3_000
_CHECKS_AT_ONCE = 64
_RETRY_MS = 200


class TransactionState(Enum):
    """What a local transaction has come to."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    UNKNOWN = "unknown"
    """Not known (yet): the broker asks later."""


class HalfMessage(NamedTuple):
    """A message whose transaction is open, as the callbacks see it."""

    transaction_id: str
    """Names the transaction at the broker."""
    unique_key: str
    """Names the message for ever, also once it is committed: what a local record refers to."""
    topic: str
    body: bytes
    key: str | None
    tag: str | None
    properties: Mapping[str, str]
    arg: Any = None
    """What was given to `send_in_transaction`; None in a check."""
    checks: int = 0
    """How often producers were asked about it; 0 while the local transaction runs."""


Decide: TypeAlias = Callable[[HalfMessage], TransactionState | Awaitable[TransactionState]]
"""A plain or an async function of the application."""


class TransactionResult(NamedTuple):
    """How `send_in_transaction` came out."""

    state: TransactionState
    """What the local transaction said; UNKNOWN also when it raised (`error`)."""
    is_ended: bool
    """The broker has confirmed the commit or rollback. If not, it will ask a producer."""
    transaction_id: str
    unique_key: str
    half: SendResult
    """Where the half was taken; its offset is a place in the log, not in the queue."""
    error: Exception | None = None
    """What the local transaction raised, or why the end is not known."""


class HalfProducer(Producer):
    """A producer whose messages are halves; for `TransactionProducer` only."""

    _kind = Kind.HALF

    def send_half(
        self, message: Message, properties: Mapping[str, str], *, is_library: bool = False
    ) -> Sending:
        """Send one half message with properties of the library added."""
        if is_delayed(message):
            raise BadRequestError(
                "a transactional message cannot be delayed", field="delivery_unix_ms"
            )
        more = sum(len(name) + len(value) + 6 for name, value in properties.items())
        cost = self._cost_of(message, is_library=is_library) + more
        self._check_waiting_room(cost, 2 * self._buffer_bytes_max)
        return self._send(
            replace(message, properties={**(message.properties or {}), **properties}), cost
        )


class Transaction:
    """One open transaction, begun by `TransactionProducer.begin`."""

    def __init__(self, half: HalfMessage, taken: SendResult, ends: TransactionEndSender) -> None:
        self.half = half
        self.taken = taken
        self._ends = ends

    @property
    def transaction_id(self) -> str:
        return self.half.transaction_id

    async def commit(self) -> None:
        """Make the message visible; returns when that is confirmed. May be repeated.

        TransactionEndedError: it was rolled back, or given up, before. NotAuthorizedError: the user
        may not, and nothing has ended. OutcomeUnknownError: no answer in time, or one was lost and
        the next attempt refused; if the end has not arrived, the broker asks a producer of the
        group.
        """
        await self._ends.end(self.transaction_id, is_commit=True)

    async def rollback(self) -> None:
        """Have nobody ever see the message; otherwise as `commit`."""
        await self._ends.end(self.transaction_id, is_commit=False)


class TransactionProducer(Client):
    """Sends messages in transactions. Use on one event loop; `async with`, or `start`, `close`."""

    def __init__(
        self,
        bootstrap: Bootstrap | Cluster,
        *,
        group: str,
        execute: Decide | None = None,
        check: Decide | None = None,
        settings: ProducerSettings | None = None,
    ) -> None:
        """`group`: producers of one group answer each other's checks, so they have the same
        `check`. `execute`: the local transaction of `send_in_transaction`.
        """
        self._group = check_name(group, "group")
        self._execute = execute
        self._check = check
        self._settings = replace(settings or ProducerSettings(), group=self._group)
        super().__init__(bootstrap)
        self._producer = HalfProducer(self._cluster, settings=self._settings)
        self.client_id = self._producer.client_id
        self._links = GroupLinks(self._cluster, self._introduction)
        self._ends = TransactionEndSender(
            self._links,
            timeout_ms=self._settings.delivery_timeout_ms,
            attempt_ms=self._settings.request_timeout_ms,
        )
        self._pollers: dict[GroupName, asyncio.Task[None]] = {}
        self._checking: set[asyncio.Task[None]] = set()
        self._executing: set[str] = set()
        """Unique keys of halves whose local transaction runs here, now."""
        self._abandoned: set[str] = set()
        """Unique keys of halves of which nobody knows whether they were stored: not begun."""
        self._end_listening: Callable[[], None] = lambda: None

    async def _give_up(self) -> None:
        await self.close(timeout_ms=0)

    async def start(self, *, timeout_ms: int = 10_000) -> None:
        """Wait until the cluster is known, and begin to answer checks. PeerError."""
        await self._producer.start(timeout_ms=timeout_ms)
        self._end_listening = self._cluster.watch.listen(self._on_view)
        assert self._cluster.view is not None
        self._on_view(self._cluster.view)

    async def close(self, *, timeout_ms: int | None = None) -> None:
        """Finish what is on its way; of transactions still open another producer is asked."""
        self._end_listening()
        await cancel_and_wait(*self._pollers.values(), *self._checking)
        await self._producer.close(timeout_ms=timeout_ms)
        await self._ends.close()
        await self._links.close()
        await self._leave_cluster()

    # -- sending ----------------------------------------------------------------------------------

    async def begin(
        self,
        message: Message,
        *,
        check_immunity_s: int | None = None,
        is_library: bool = False,
    ) -> Transaction:
        """Store the message as a half; commit or roll back with what is returned.

        Errors as for `Producer.send`; where the outcome is unknown the transaction counts as rolled
        back: a check of it is answered so. `check_immunity_s`: nobody is asked about it before.
        `is_library`: as of `producer.send_library`. A message that has a UNIQ_KEY may be sent again
        by whoever named it, so of one whose outcome is unknown its `check` decides.
        """
        properties = {names.PRODUCER_GROUP: self._cluster.namespace.full_group(self._group)}
        if check_immunity_s is not None:
            if check_immunity_s < 0:
                raise BadRequestError("check_immunity_s is negative", field="check_immunity_s")
            properties[names.CHECK_IMMUNITY_S] = str(check_immunity_s)
        sending = self._producer.send_half(message, properties, is_library=is_library)
        named = (message.properties or {}).get(names.UNIQ_KEY)
        try:
            taken = await sending
        except PacelineError as error:
            if not error.is_definite and not named:
                self._abandon(sending)
            raise
        batch, index = sending.place
        assert batch.answer is not None
        assert batch.encoded is not None
        key = named or unique_key(parse_header(batch.encoded), index, taken.group)
        if batch.answer.flags & PRODUCE_FLAG_OFFSET_UNKNOWN:
            if not named:
                self._abandoned.add(key)
            raise OutcomeUnknownError(
                "the half message was stored long ago and its place is forgotten; it is rolled back"
                " when the broker asks"
            )
        place = OffsetMessageId(taken.group, batch.answer.base_queue_offset, index)
        half = HalfMessage(
            make_handle(HANDLE_KIND, place),
            key,
            message.topic,
            message.body,
            message.key,
            message.tag,
            message.properties or {},
        )
        return Transaction(half, taken, self._ends)

    def _abandon(self, sending: Sending) -> None:
        batch, index = sending.place
        if batch.encoded is not None:
            key = unique_key(parse_header(batch.encoded), index, batch.queue.group)
            self._abandoned.add(key)

    async def send_in_transaction(
        self, message: Message, arg: Any = None, *, check_immunity_s: int | None = None
    ) -> TransactionResult:
        """Half, local transaction, end. Raises what `begin` does: the local one has not run then.

        An error of the local transaction is no error here: the state is UNKNOWN, `error` has it.
        """
        if self._execute is None:
            raise ConfigError("this producer was made without `execute`: use begin()")
        transaction = await self.begin(message, check_immunity_s=check_immunity_s)
        half = transaction.half._replace(arg=arg)
        self._executing.add(half.unique_key)
        error: Exception | None = None
        try:
            state = await _decided(self._execute, half)
        except Exception as failure:
            state, error = TransactionState.UNKNOWN, failure
        finally:
            self._executing.discard(half.unique_key)
        is_ended = False
        if state is not TransactionState.UNKNOWN:
            try:
                await self._ends.end(
                    half.transaction_id, is_commit=state is TransactionState.COMMIT
                )
                is_ended = True
            except PacelineError as failure:
                if failure.is_definite:
                    raise
                error = failure
        return TransactionResult(
            state, is_ended, half.transaction_id, half.unique_key, transaction.taken, error
        )

    def end(self, transaction_id: str, *, is_commit: bool) -> "asyncio.Future[None]":
        """End a transaction by its id, whoever began it; errors as `Transaction.commit`."""
        return self._ends.end(transaction_id, is_commit=is_commit)

    def _introduction(self) -> dict[str, Any]:
        return introduction("producer", self._group, self.client_id, [])

    # -- checks -----------------------------------------------------------------------------------

    def _on_view(self, view: ClusterView) -> None:
        for group in view.groups:
            if group not in self._pollers:
                self._pollers[group] = spawn(self._poll(group), name=f"checks-{group}")

    async def _poll(self, group: GroupName) -> None:
        """Wait for questions of one broker group, for ever."""
        request = TransactionChecks(
            group=self._group, client_id=self.client_id, wait_ms=CHECK_WAIT_MS
        )
        limit_ms = CHECK_WAIT_MS + _CHECK_SLACK_MS
        while True:
            try:
                answer, _ = await self._links.call(
                    group, request, timeout_ms=limit_ms, attempt_ms=limit_ms
                )
            except PacelineError:
                await pause(_RETRY_MS)
                continue
            for row in answer.checks:
                while len(self._checking) >= _CHECKS_AT_ONCE:
                    await asyncio.wait(self._checking, return_when=asyncio.FIRST_COMPLETED)
                task = spawn(self._answer(row), name="transaction-check")
                self._checking.add(task)
                task.add_done_callback(self._checking.discard)

    async def _answer(self, row: CheckRow) -> None:
        half = _half_of(row)
        try:
            state = await self._state_of(half)
        except Exception as failure:  # the application's code: the broker asks again
            asyncio.get_running_loop().call_exception_handler(
                {"message": "the checker of a TransactionProducer failed", "exception": failure}
            )
            return
        if state is TransactionState.UNKNOWN:
            return
        try:
            await self._ends.end(half.transaction_id, is_commit=state is TransactionState.COMMIT)
        except PacelineError as failure:
            # Somebody else ended it meanwhile; or nobody answers now, and the broker asks again.
            log.info(
                "transaction_check_unanswered",
                extra={"transaction": half.transaction_id, "code": failure.code},
            )
        else:
            self._abandoned.discard(half.unique_key)

    async def _state_of(self, half: HalfMessage) -> TransactionState:
        if half.unique_key in self._abandoned:
            return TransactionState.ROLLBACK
        if half.unique_key in self._executing or self._check is None:
            return TransactionState.UNKNOWN
        return await _decided(self._check, half)


async def _decided(decide: Decide, half: HalfMessage) -> TransactionState:
    found = decide(half)
    state = await found if inspect.isawaitable(found) else found
    if not isinstance(state, TransactionState):
        raise TypeError(f"a transaction callback returned {state!r}, not a TransactionState")
    return state


def _half_of(row: CheckRow) -> HalfMessage:
    body = binascii.a2b_base64(row.body_base64 or "") if row.body is None else row.body.encode()
    return HalfMessage(
        row.transaction_id,
        row.unique_key,
        row.topic,
        body,
        row.key,
        row.tag,
        row.properties,
        checks=row.checks,
    )
