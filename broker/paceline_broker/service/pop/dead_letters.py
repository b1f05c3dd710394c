"""Dead letters of simple consumers: messages that have come back from their last attempt.

Two records in one synchronous step: a POP record takes the message out of circulation and names its
source and the group's dead-letter topic, so no receipt counts any more and nobody is given it; the
dead letter is made of that source for that topic, and its fold closes what the first record opened,
and nothing of another group (R34). Whatever happens between the two, a later
master finds the first in its state and makes the second: once, as dead letters know their sources.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from paceline.errors import OffsetOutOfRangeError, PacelineError, StorageError
from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline_broker.controllers.clock_skew import ClockTrust
from paceline_broker.ports import Role
from paceline_broker.projections.cursors import group_of
from paceline_broker.projections.projections import Projections
from paceline_broker.projections.receipt_queue import Run
from paceline_broker.projections.receipts import ExhaustedMessage, Letter
from paceline_broker.service.ledger import Ledger
from paceline_broker.service.retry.send_back import SendBack
from paceline_broker.service.retry.source_messages import Source, SourceReader, Wanted

log = logging.getLogger("paceline.service")

_AT_ONCE = 32
"""Messages read and buried in one step."""
_STEP_BYTES = 8 * 1024 * 1024
"""Their bodies, and one message more (R27): a step asks once whether it may append."""
_AGAIN_MS = 1_000


class Exhausted(NamedTuple):
    """A message without an attempt left. `position`: of the grant it came back from."""

    group: str
    """Or a cursor of one that broadcasts."""
    key: int
    offset: int
    position: int


_One = TypeVar("_One", Exhausted, ExhaustedMessage)


class DeadLetterMaker:
    """One task while there is something to bury; one per broker."""

    def __init__(
        self,
        role: Role,
        ledger: Ledger,
        sources: SourceReader,
        send_back: SendBack,
        trust: Callable[[], ClockTrust],
        *,
        on_buried: Callable[[str, Iterable[int]], None],
    ) -> None:
        """`on_buried`: told of queues of a group whose receivers may be given more now."""
        self._role = role
        self._ledger = ledger
        self._sources = sources
        self._send_back = send_back
        self._trust = trust
        self._waiting: dict[Exhausted, None] = {}
        self._stuck: set[ExhaustedMessage] = set()
        """Tried, and perhaps not finished: others have their turn before they are tried again."""
        self._task: asyncio.Task[None] | None = None
        self._on_buried = on_buried

    def bury(self, group: str, found: Sequence[tuple[int, Run]]) -> None:
        """Messages that a look has found without an attempt left."""
        for key, (first, end, grant) in found:
            for offset in range(first, end):
                self._waiting[Exhausted(group, key, offset, grant.position)] = None
        self._start()

    def role_changed(self) -> None:
        """What an earlier master has begun is finished."""
        if self._role.projections.receipts.dying:
            self._start()

    async def close(self) -> None:
        await cancel_and_wait(self._task)

    def _start(self) -> None:
        if self._task is None:
            self._task = spawn(self._run(), name="bury")

    async def _run(self) -> None:
        try:
            while self._waiting or self._role.projections.receipts.dying:
                try:
                    await self._step()
                except PacelineError as error:
                    if not self._is_master():
                        return
                    log.warning("burying_failed", extra={"error": error.message})
                    await pause(_AGAIN_MS)
        finally:
            self._waiting.clear()  # a look finds them again
            self._stuck.clear()
            self._task = None

    def _is_master(self) -> bool:
        try:
            self._role.writer()
        except PacelineError:
            return False
        return True

    async def _step(self) -> None:
        """Finish what was begun, else bury some of one group."""
        self._role.writer()
        dying = self._role.projections.receipts.dying.values()
        begun = _some_of_one_group(one for one in dying if one not in self._stuck)
        if begun:
            self._stuck.update(begun)  # what this finishes is in `dying` no more
            await self._finish(begun[0].group, begun)
        elif self._waiting:
            found = _some_of_one_group(self._waiting)
            for one in found:
                del self._waiting[one]  # if it fails, a look finds them again
            await self._begin(found[0].group, found)
        else:
            await pause(_AGAIN_MS)
            self._stuck.clear()

    async def _read(self, some: list[_One]) -> dict[_One, Source | PacelineError]:
        """What one step takes of them; the others are for another step."""
        wanted = [Wanted(one.key, one.offset) for one in some]
        found = await self._sources.read_some(wanted, enough_bytes=_STEP_BYTES)
        return {one: found[at] for at, one in enumerate(some) if at in found}

    async def _finish(self, group: str, dying: list[ExhaustedMessage]) -> None:
        await self._send_back.ensure(group_of(group))
        read = await self._read(dying)
        self._stuck.difference_update(one for one in dying if one not in read)
        writer = self._role.writer()
        writer.ensure_can_append()
        projections = self._role.projections
        self._send_back.dead_topic_id(group_of(group))
        now = self._ledger.log_time_ms()
        still = set(projections.receipts.dying.values())
        gone = [
            [one.key, one.offset, one.offset + 1]
            for one, source in read.items()
            if isinstance(source, OffsetOutOfRangeError) and one in still
        ]
        sources = [
            source for one, source in read.items() if isinstance(source, Source) and one in still
        ]
        name = group_of(group)
        self._send_back.dead_letter(writer, projections, name, sources, store_unix_ms=now)
        if gone:  # retention was quicker
            self._append(["drop", group, gone], now)
        self._drop_known(group, sources, now)
        self._on_buried(group, {one.key for one in read})
        await self._ledger.confirmed(writer)

    async def _begin(self, group: str, some: list[Exhausted]) -> None:
        await self._send_back.ensure(group_of(group))
        read = await self._read(some)
        self._waiting.update(dict.fromkeys(one for one in some if one not in read))
        writer = self._role.writer()
        writer.ensure_can_append()
        projections = self._role.projections
        topic_id = self._send_back.dead_topic_id(group_of(group))
        now = self._ledger.log_time_ms()
        if self._trust() is ClockTrust.DIFFERS:
            return  # nothing expires (R29)
        buried = [
            source
            for one, source in read.items()
            if isinstance(source, Source)
            and _is_exhausted(projections, one, now)
            # Another client's of a group that broadcasts is finished first, and closes one only.
            and Letter(topic_id, source.packed) not in projections.receipts.dying
        ]
        if not buried:
            return
        rows = [[source.key, source.offset, source.packed] for source in buried]
        try:
            self._append(["bury", group, topic_id, rows], now)
            name = group_of(group)
            self._send_back.dead_letter(writer, projections, name, buried, store_unix_ms=now)
            self._drop_known(group, buried, now)
            self._on_buried(group, {source.key for source in buried})
        except StorageError as error:  # the mastership is over (R22)
            log.warning("burying_failed", extra={"error": error.message})
            return
        await self._ledger.confirmed(writer)

    def _drop_known(self, group: str, buried: list[Source], now: int) -> None:
        """Those that were dead letters before: nothing was made of them now, and they are done."""
        dying = set(self._role.projections.receipts.dying.values())
        rows = [
            [source.key, source.offset, source.offset + 1]
            for source in buried
            if ExhaustedMessage(group, source.key, source.offset) in dying
        ]
        if rows:
            self._append(["drop", group, rows], now)

    def _append(self, item: list[Any], now: int) -> None:
        projections = self._role.projections
        writer = self._role.writer()
        try:
            projections.receipt_item(item)
            writer.appender.decided({"items": [item]}, store_unix_ms=now)
        except Exception as error:  # the state is ahead of the log (R28)
            writer.abandon(f"burying failed: {error}")
            raise


def _some_of_one_group(waiting: Iterable[_One]) -> list[_One]:
    """Of the first one's group, so many as one step takes; the others are not gone through."""
    rest = iter(waiting)
    first = list(islice(rest, 1))
    same = (one for one in rest if one.group == first[0].group)
    return first + list(islice(same, _AT_ONCE - 1))


def _is_exhausted(projections: Projections, one: Exhausted, now: int) -> bool:
    """Whether it is still out under the same grant, and due."""
    receipts = projections.receipts.get(one.group, one.key)
    grant = None if receipts is None else receipts.in_flight.get(one.offset)
    if grant is None or grant.position != one.position:
        return False
    return grant.until_unix_ms <= now
