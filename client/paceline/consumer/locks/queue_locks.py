"""Queue locks of one member: taken, renewed and given back, many queues in one call (R33).

Whoever wants a lock within one turn of the event loop shares a call with the others of that broker
group; renewals are one call for all that is held there. `on_lost(key)`: the lock is another's, or
was fenced: stop. `on_regained(keys)`: leases that had run out here go on with the same token, so
nobody else had the lock meanwhile.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from paceline.consumer.locks.leases import Leases, asked_lease_ms, relied_lease_ms
from paceline.errors import (
    BY_CODE,
    DeadlineError,
    LockFencedError,
    LockHeldError,
    OutcomeUnknownError,
    PacelineError,
    QueueNotFoundError,
    TopicNotFoundError,
)
from paceline.message import LockToken
from paceline.net.backoff import Backoff
from paceline.net.cluster import Wakeup
from paceline.net.group_links import GroupLinks
from paceline.platform.ports import Clock, Random
from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline.queues import QueueKey
from paceline.types import GroupName
from paceline.wire.calls import locks as wire
from paceline.wire.calls.request import refused_rows

log = logging.getLogger("paceline.client")

CALL_MS_MAX = 5_000
"""One try at a renewal; the next one counts its lease from a later question."""
_ROWS_MAX = 5_000
"""Queues of one call; brokers take 10,000."""
_RETRY_MS = 250
_GIVE_BACK_MS = 2_000
_TRIES = 6
"""For one lock, over some 2 s; after that the queue is claimed anew."""
_REFUSALS = (LockHeldError, LockFencedError)
_GONE = (TopicNotFoundError, QueueNotFoundError)
_Rows = list[tuple[QueueKey, LockToken | None]]


class _Decided(NamedTuple):
    """What a master said of one queue: a token and its lease, or why there is none."""

    token: LockToken | None
    error: PacelineError | None
    lease_ms: int = 0
    """That we rely on: less than was granted, and perhaps than we had asked for (R33)."""


class QueueLocks:
    """All locks of one member; from its first `acquire` to `close`."""

    def __init__(
        self,
        links: GroupLinks,
        clock: Clock,
        random: Random,
        *,
        group: str,
        client_id: str,
        lease_ms: int,
        renew_ms: int,
        on_lost: Callable[[QueueKey], None],
        on_regained: Callable[[Iterable[QueueKey]], None],
    ) -> None:
        """`on_lost` is told of each lock that is not ours any more; `on_regained` of those whose
        lease had run out and stands again."""
        self._links = links
        self._clock = clock
        self._random = random
        self._group = group
        self._client_id = client_id
        self._lease_ms = lease_ms
        self._call_ms = min(CALL_MS_MAX, lease_ms // 2)
        """Less once a broker has granted a shorter lease."""
        self._leases = Leases(lease_ms=lease_ms, renew_ms=renew_ms)
        self._on_lost = on_lost
        self._on_regained = on_regained
        self._wanted: dict[GroupName, dict[QueueKey, asyncio.Future[LockToken]]] = {}
        self._keepers: dict[GroupName, asyncio.Task[None]] = {}
        self._news: dict[GroupName, Wakeup] = {}
        self._calls: set[asyncio.Task[None]] = set()

    def is_valid(self, key: QueueKey, token: LockToken | None, *, now_ms: int) -> bool:
        """Whether a message of the queue may be processed at `now_ms` under this token."""
        return self._leases.is_valid(key, token, now_ms=now_ms)

    def token_of(self, key: QueueKey) -> LockToken | None:
        return self._leases.token_of(key)

    async def acquire(self, key: QueueKey) -> LockToken:
        """A new grant. Raises LockHeldError if another has it for a while; what calls raise."""
        backoff = Backoff(self._random, first_ms=50, max_ms=1_000)
        for _ in range(_TRIES - 1):
            try:
                return await self._acquire_once(key)
            except LockHeldError:  # of a member that will give it back, or died with it
                await pause(backoff.next_ms())
        return await self._acquire_once(key)

    async def _acquire_once(self, key: QueueKey) -> LockToken:
        waiting = self._wanted.setdefault(key.group, {})
        future = waiting.get(key)
        if future is None:
            future = waiting[key] = asyncio.get_running_loop().create_future()
            if len(waiting) == 1:
                asyncio.get_running_loop().call_soon(self._ask, key.group)
        return await future

    def forget(self, key: QueueKey, token: LockToken) -> None:
        """Renew it no more: its lease runs out, and nobody has it before."""
        self._leases.forget(key, token)

    async def give_back(self, locks: Sequence[tuple[QueueKey, LockToken]]) -> None:
        """Let others have them now. What cannot be said to a master runs out by itself."""
        by_group: dict[GroupName, _Rows] = {}
        for key, token in locks:
            if self._leases.forget(key, token):
                by_group.setdefault(key.group, []).append((key, token))
        if by_group:
            await asyncio.gather(*(self._unlock(*item) for item in by_group.items()))

    async def close(self) -> None:
        """Give everything back, also what was asked for and has not been granted yet."""
        await cancel_and_wait(*self._keepers.values())
        if self._calls:
            await asyncio.wait(self._calls, timeout=_GIVE_BACK_MS / 1000)
        await cancel_and_wait(*self._calls)
        held = [lock for group in self._leases.groups() for lock in self._leases.of_group(group)]
        await self.give_back(held)

    # -- taking -----------------------------------------------------------------------------------

    def _ask(self, group: GroupName) -> None:
        wanted = self._wanted.pop(group, {})
        task = spawn(self._take(group, wanted), name=f"lock-{group}")
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _take(
        self, group: GroupName, wanted: dict[QueueKey, asyncio.Future[LockToken]]
    ) -> None:
        asked_ms = self._clock.monotonic_ms()
        try:
            decided = await self._decide(group, [(key, None) for key in sorted(wanted)])
        except PacelineError as error:
            decided = dict.fromkeys(wanted, _Decided(None, error))
        except asyncio.CancelledError:
            for future in wanted.values():
                future.cancel()
            raise
        unwanted: list[tuple[QueueKey, LockToken]] = []
        for key, future in wanted.items():
            token, refused, lease_ms = decided[key]
            if token is not None:
                self._leases.granted(key, token, asked_ms=asked_ms, lease_ms=lease_ms)
                if future.done():  # whoever asked has been cancelled
                    unwanted.append((key, token))
                else:
                    future.set_result(token)
            elif not future.done():
                assert refused is not None
                future.set_exception(refused)
        self._keep(group)
        await self.give_back(unwanted)

    async def _decide(self, group: GroupName, rows: _Rows) -> dict[QueueKey, _Decided]:
        """Ask for locks, or to renew those whose token is named. Raises what tells nothing.

        A topic that is gone spoils the call for the others, so they are asked for without it.
        """
        if len(rows) > _ROWS_MAX:
            first = await self._decide(group, rows[:_ROWS_MAX])
            return first | await self._decide(group, rows[_ROWS_MAX:])
        try:
            return await self._decide_at_once(group, rows)
        except (*_GONE, DeadlineError) as error:
            # With a short lease there is no time to ask until it is certain that one is gone.
            if isinstance(error, DeadlineError) and not isinstance(error.__cause__, _GONE):
                raise
            topics = sorted({key.topic_id for key, _ in rows})
            if len(topics) == 1:
                return {key: _Decided(None, error) for key, _ in rows}
        decided: dict[QueueKey, _Decided] = {}
        for topic_id in topics:
            of_topic = [row for row in rows if row[0].topic_id == topic_id]
            decided.update(await self._decide(group, of_topic))
        return decided

    async def _decide_at_once(self, group: GroupName, rows: _Rows) -> dict[QueueKey, _Decided]:
        request = wire.Lock(
            group=self._group,
            client_id=self._client_id,
            lease_ms=asked_lease_ms(self._lease_ms),
            queues=[_row(key, token) for key, token in rows],
        )
        lease_ms = 0
        try:
            answer, _ = await self._links.call(group, request, timeout_ms=self._call_ms)
            if answer.lease_ms is None:
                raise OutcomeUnknownError("the answer to lock names no lease")
            lease_ms = relied_lease_ms(answer.lease_ms)
            self._call_ms = min(self._call_ms, lease_ms // 2)
        except _REFUSALS as error:
            answer = refused_rows(wire.Locked, error)
        decided = {}
        for (key, _), told in zip(rows, answer.queues, strict=True):
            decided[key] = _decided(key, told, lease_ms)
        return decided

    # -- keeping ----------------------------------------------------------------------------------

    def _keep(self, group: GroupName) -> None:
        if group not in self._keepers:
            self._news[group] = Wakeup()
            self._keepers[group] = spawn(self._keep_for_ever(group), name=f"locks-{group}")
        self._news[group].set()

    async def _keep_for_ever(self, group: GroupName) -> None:
        news = self._news[group]
        while True:
            due_ms = self._leases.due_in_ms(group, now_ms=self._clock.monotonic_ms())
            if due_ms is None or due_ms > 0:
                await news.wait(due_ms)
                continue
            try:
                await self._renew(group)
            except PacelineError as error:
                log.warning("locks_not_renewed", extra={"group": group, "error": error.message})
                await pause(_RETRY_MS)

    async def _renew(self, group: GroupName) -> None:
        held = self._leases.of_group(group)
        asked_ms = self._clock.monotonic_ms()
        decided = await self._decide(group, list(held))
        now_ms = self._clock.monotonic_ms()
        regained: list[QueueKey] = []
        for key, token in held:
            if decided[key].token != token:  # with another token others may have had it meanwhile
                if self._leases.forget(key, token):
                    error = decided[key].error or "it was free, and is a new grant"
                    log.warning("lock_lost", extra={"queue": str(key), "why": str(error)})
                    self._on_lost(key)
                continue
            if not self._leases.is_valid(key, token, now_ms=now_ms):
                regained.append(key)
            self._leases.renewed(key, token, asked_ms=asked_ms, lease_ms=decided[key].lease_ms)
        if regained:
            self._on_regained(regained)

    async def _unlock(self, group: GroupName, rows: _Rows) -> None:
        if len(rows) > _ROWS_MAX:
            await self._unlock(group, rows[_ROWS_MAX:])
            rows = rows[:_ROWS_MAX]
        request = wire.Unlock(
            group=self._group,
            client_id=self._client_id,
            queues=[_row(key, token) for key, token in rows],
        )
        try:
            await self._links.call(group, request, timeout_ms=_GIVE_BACK_MS)
        except PacelineError as error:  # their leases run out
            log.info("unlock_failed", extra={"group": group, "error": error.message})


def _row(key: QueueKey, token: LockToken | None) -> wire.LockRow:
    pair = None if token is None else (token.epoch, token.position)
    return wire.LockRow(topic_id=key.topic_id, queue=key.queue_id, token=pair)


def _decided(key: QueueKey, told: wire.LockedRow, lease_ms: int) -> _Decided:
    if told.code is None and told.token is not None:
        return _Decided(LockToken(*told.token), None, lease_ms)
    whose = "no lock is granted now" if told.holder is None else f"{told.holder} has it"
    error_class = BY_CODE.get(told.code or "", OutcomeUnknownError)
    error = error_class(f"the lock of queue {key}: {whose}", holder=told.holder)
    return _Decided(None, error)
