"""What simple consumers ask of a master, and how each is decided in a turn (see pop.py)."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from paceline.errors import PacelineError, TopicNotFoundError
from paceline.records.header import pack_source
from paceline.wire.receipts import Receipt
from paceline_broker.ports import LogReader, LogWriter
from paceline_broker.projections.consume_queues import topic_of
from paceline_broker.projections.cursors import group_of
from paceline_broker.projections.projections import Projections
from paceline_broker.projections.receipt_queue import ReceiptState
from paceline_broker.service.pop.filtering import TurnLook
from paceline_broker.service.pop.grant import PopRequest, hand_out
from paceline_broker.service.settings import ServiceSettings

TURN_BYTES_MAX = 1024 * 1024
"""Of a turn's record; what is beyond comes in the next. A record may have 4 MiB."""
_ROW_BYTES_MAX = 88
"""Four numbers of 20 digits, and what parts them."""


@dataclass(slots=True)
class Turn:
    """What the operations of one turn decide on. `items` become the record."""

    projections: Projections
    items: list[list[Any]]
    now_unix_ms: int
    position: int
    """Of the record."""
    may_expire: bool
    reader: LogReader
    look: TurnLook
    """What filters may still cost."""
    dead_topic_id: Callable[[str], int | None]
    """The topic of a group's dead letters."""
    size_bytes: int = 0
    """No less than the record has."""

    def fold(self, item: list[Any]) -> None:
        """Have the record say so; the next decision sees it."""
        *head, rows = item
        if self.items and self.items[-1][:-1] == head:
            self.items[-1][-1].extend(rows)
        else:
            self.items.append([*head, list(rows)])
            self.size_bytes += len(str(head)) + 2
        self.size_bytes += _ROW_BYTES_MAX * len(rows)
        self.projections.receipt_item(item)

    @property
    def rows_left(self) -> int:
        """So many rows more may be folded in this turn."""
        return max(0, TURN_BYTES_MAX - self.size_bytes) // _ROW_BYTES_MAX


class SettledReceipt(NamedTuple):
    """What became of one receipt."""

    receipt: Receipt
    code: str | None
    """None = done; else RECEIPT_EXPIRED or INVALID_RECEIPT_HANDLE."""
    renewed: Receipt | None = None
    """After a change: the receipt that counts now."""
    until_unix_ms: int = 0


class Operation:
    """Something to decide; `future` hears when confirm has passed the decision."""

    rows = 32
    """About so much of the record it makes."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.answer: Any = None
        self.is_decided = False
        """`answer` stands, and waits for confirm: it is not decided a second time (R28)."""
        self.is_queued = False
        """A turn to come looks at it."""
        self.writer: LogWriter | None = None
        """Of the mastership that decided it."""

    def decide(self, turn: Turn) -> bool:
        """True: `answer` is there."""
        raise NotImplementedError

    def finish(self, error: PacelineError | None) -> None:
        if self.future.done():
            return  # the asker has gone
        if error is None:
            self.future.set_result(self.answer)
        else:
            self.future.set_exception(error)


class Settle(Operation):
    """Acknowledge, or change the invisible time of, receipts of one group."""

    def __init__(
        self, group: str, receipts: Sequence[Receipt], invisible_ms: int | None, *, is_unseen: bool
    ) -> None:
        """`invisible_ms` None = acknowledge. `is_unseen`: the attempt does not count."""
        super().__init__(group)
        self._receipts = receipts
        self.rows = len(receipts)
        self._invisible_ms = invisible_ms
        self._is_unseen = is_unseen

    def decide(self, turn: Turn) -> bool:
        # A handle twice in one request gets the same answer twice.
        distinct = dict.fromkeys(self._receipts)
        is_change = self._invisible_ms is not None
        if is_change:
            settled = {receipt: self._change(turn, receipt) for receipt in distinct}
        else:
            settled = self._acknowledge(turn, distinct)
        self.answer = [settled[receipt] for receipt in self._receipts]
        return True

    def _standing(self, turn: Turn, receipt: Receipt) -> ReceiptState:
        found = turn.projections.receipts.get(self.group, receipt.key)
        if found is None:
            return ReceiptState.UNKNOWN
        standing = found.standing(receipt.offset, receipt.position, receipt.attempt)
        if standing is ReceiptState.PAST:
            # Whoever asks again long after hears what it was told first: the message is done.
            is_lost = _is_deleted_or_dead(turn, self.group, receipt)
            return ReceiptState.VOID if is_lost else ReceiptState.DONE
        return standing

    def _acknowledge(
        self, turn: Turn, receipts: Iterable[Receipt]
    ) -> dict[Receipt, SettledReceipt]:
        settled: dict[Receipt, SettledReceipt] = {}
        rows: list[list[int]] = []
        for receipt in sorted(receipts):
            standing = self._standing(turn, receipt)
            settled[receipt] = SettledReceipt(receipt, _code(standing))
            if standing is not ReceiptState.OPEN:
                continue
            key, offset, position = receipt.key, receipt.offset, receipt.position
            last = rows[-1] if rows else None
            if last is not None and [key, offset, position] == [last[0], last[2], last[3]]:
                last[2] = offset + 1
            else:
                rows.append([key, offset, offset + 1, position])
        if rows:
            turn.fold(["ack", self.group, rows])
        return settled

    def _change(self, turn: Turn, receipt: Receipt) -> SettledReceipt:
        standing = self._standing(turn, receipt)
        if standing is not ReceiptState.OPEN:
            # Also of a message that this receipt has acknowledged: it is not invisible, it is done.
            code = _code(standing) or "RECEIPT_EXPIRED"
            return SettledReceipt(receipt, code)
        assert self._invisible_ms is not None
        until = turn.now_unix_ms + self._invisible_ms
        attempt = max(0, receipt.attempt - 1) if self._is_unseen else receipt.attempt
        turn.fold(["change", self.group, [[receipt.key, receipt.offset, until, attempt]]])
        renewed = receipt._replace(position=turn.position, attempt=attempt)
        return SettledReceipt(receipt, None, renewed, until)


class EndCursors(Operation):
    """Clients of broadcasting groups have gone."""

    def __init__(self, cursors: Sequence[str]) -> None:
        """Of one group or several: at least one."""
        super().__init__(cursors[0])
        self._cursors = cursors
        self.rows = len(cursors)

    def decide(self, turn: Turn) -> bool:
        for cursor in self._cursors:
            if turn.projections.receipts.has(cursor):
                turn.fold(["end", cursor, []])
        return True


class Receive(Operation):
    """A receiver, perhaps waiting."""

    def __init__(self, asked: PopRequest, limits: ServiceSettings, number: int) -> None:
        """`number`: of this receive among all, so that each begins with another queue."""
        super().__init__(asked.group)
        self.number = number
        self.asked = asked
        self.is_over = False
        """It does not wait (any more): the answer is what a look finds."""
        self.is_late = False
        """Nor does it look on: the answer is what this look has found."""
        self.timer: asyncio.TimerHandle | None = None
        self.topic_ids = frozenset(topic_of(key) for key in asked.keys)
        self._limits = limits

    def leave_out(self, topic_ids: Collection[int]) -> None:
        """These topics are deleted. TopicNotFoundError if there is no other."""
        self.topic_ids = self.topic_ids.difference(topic_ids)
        if not self.topic_ids:
            raise TopicNotFoundError("the topics were deleted while the receiver waited")
        keys = tuple(key for key in self.asked.keys if topic_of(key) in self.topic_ids)
        self.asked = replace(self.asked, keys=keys)

    def decide(self, turn: Turn) -> bool:
        given = hand_out(
            self.asked,
            turn,
            inflight_max=self._limits.pop_inflight_message_threshold,
            begin_with=self.number,
        )
        self.answer = given
        return bool(given.rows) or self.is_late or (self.is_over and not self.looks_on)

    @property
    def looks_on(self) -> bool:
        """A filter has not seen everything that is there."""
        return bool(self.answer.cold) or bool(self.answer.has_more)


def _is_deleted_or_dead(turn: Turn, group: str, receipt: Receipt) -> bool:
    """Whether a message that is done was made a dead letter instead, or has left the log."""
    projections, (key, offset) = turn.projections, (receipt.key, receipt.offset)
    queue = projections.consume_queues.get(key)
    if queue is None or offset < queue.start:
        return True
    group = group_of(group)
    topic_id = turn.dead_topic_id(group)
    if topic_id is None:
        return False
    bases, positions = queue.index(*queue.entries(offset, offset + 1))
    source = pack_source(positions[0], offset - bases[0])
    made = projections.send_backs.made_for(topic_id, source, group=group, key=key)
    return made is not None


def _code(standing: ReceiptState) -> str | None:
    match standing:
        case ReceiptState.OPEN | ReceiptState.DONE:
            return None
        case ReceiptState.UNKNOWN:
            return "INVALID_RECEIPT_HANDLE"
        case _:
            return "RECEIPT_EXPIRED"
