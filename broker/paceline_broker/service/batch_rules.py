"""Pure: which batches a client may send, beside what makes a batch well formed."""

from collections.abc import Mapping, Sequence
from functools import partial
from operator import sub
from typing import Protocol

from paceline.errors import BadRequestError, TooLargeError
from paceline.records.checking import RowsCheck
from paceline.records.decode import BatchView
from paceline.records.header import (
    COLUMN_DUE,
    COLUMN_PROPERTY,
    COLUMN_SOURCE,
    DELAYED_RECORDS_MAX,
    PROPERTIES_BYTES_MAX,
    BatchHeader,
    Kind,
    Section,
)
from paceline.wire import properties as names
from paceline.wire.properties import check_sent_properties

TAKEN_KINDS = frozenset({Kind.NORMAL, Kind.DELAY, Kind.HALF})
"""What this version takes from clients (`CLIENT_KINDS` is what there may be)."""
PROPERTIES_MAX = PROPERTIES_BYTES_MAX - 1024
"""Of a half message."""
IMMUNITY_S_MAX = 72 * 3600
DELAYED_TURN_BYTES = 128
"""What a delayed message counts in a turn, so that the largest batch of them has one alone."""


class SenderRights(Protocol):
    """Of whoever sends; that he may send to the topic was asked before."""

    def check_producer_group(self, group: str) -> None:
        """Raise unless he may begin transactions of which producers of that group are asked."""


def turn_bytes(header: BatchHeader) -> int:
    """What a short batch takes of that which one turn may do (`LongWork.has_turn_for`)."""
    delayed = header.record_count if header.kind == Kind.DELAY else 0
    return DELAYED_TURN_BYTES * delayed + (header.payload_raw_bytes if header.codec else 0)


def check_from_client(header: BatchHeader) -> None:
    """Which batches a client may send at all; BadRequestError, TooLargeError."""
    if header.kind not in TAKEN_KINDS:
        raise BadRequestError(f"kind {header.kind} cannot be sent", field="kind")
    if header.flags or header.columns & COLUMN_SOURCE:
        raise BadRequestError("flags and sources are the broker's: send 0 and none", field="flags")
    if (header.kind == Kind.DELAY) != bool(header.columns & COLUMN_DUE):
        raise BadRequestError("due times belong to kind DELAY, which needs them", field="due")
    check_count(header)


def check_count(header: BatchHeader) -> None:
    """How many messages one step takes in; TooLargeError."""
    if header.kind == Kind.DELAY and header.record_count > DELAYED_RECORDS_MAX:
        raise TooLargeError(
            f"{header.record_count} delayed messages in one batch are more than "
            f"{DELAYED_RECORDS_MAX}: send them in several; nothing was stored",
            limit=DELAYED_RECORDS_MAX,
        )


def _check_rows(first: int, rows: Sequence[Mapping[str, str]]) -> None:
    """What brokers say of a message nobody else may say: who reads it relies on it."""
    check_sent_properties(rows)


def _check_half_rows(
    rights: SenderRights | None, first: int, rows: Sequence[Mapping[str, str]]
) -> None:
    """That, and what half messages must say of their producers, whom the sender may name."""
    check_sent_properties(rows)
    check_halves(first, rows)
    if rights is not None:
        for group in {found[names.PRODUCER_GROUP] for found in rows}:
            rights.check_producer_group(group)


def rows_check(header: BatchHeader, rights: SenderRights | None) -> RowsCheck | None:
    """What the properties of its records must be, a piece at a time; None: there are none.
    `rights`: as of `Sender.send`."""
    if header.kind == Kind.HALF:
        return partial(_check_half_rows, rights)
    return _check_rows if header.columns & COLUMN_PROPERTY else None


def check_half_sizes(batch: BatchView) -> None:
    """The properties of half messages leave room for those that the message made of each gets."""
    if batch.header.columns & COLUMN_PROPERTY:
        offsets = batch.section(Section.PROPERTY_OFFSETS).cast("i").tolist()
        if offsets[-1] > PROPERTIES_MAX and max(map(sub, offsets[1:], offsets)) > PROPERTIES_MAX:
            raise TooLargeError(
                f"the properties of a half message are at most {PROPERTIES_MAX} bytes",
                limit=PROPERTIES_MAX,
            )


def check_halves(first: int, rows: Sequence[Mapping[str, str]]) -> None:
    """The properties of half messages from number `first` on: each says whom to ask about it, and
    the time in which nobody is asked is one. BadRequestError."""
    for number, found in enumerate(rows, start=first):
        if not found.get(names.PRODUCER_GROUP):
            raise BadRequestError(
                f"half message {number} has no {names.PRODUCER_GROUP}: nobody could be asked about"
                " it",
                field=names.PRODUCER_GROUP,
            )
        text = found.get(names.CHECK_IMMUNITY_S)
        if text is not None and immunity_s(text) is None:
            raise BadRequestError(
                f"{names.CHECK_IMMUNITY_S} of half message {number} must be a whole number of"
                f" seconds from 0 to {IMMUNITY_S_MAX}",
                field=names.CHECK_IMMUNITY_S,
            )


def immunity_s(text: str) -> int | None:
    """None: it is no number of seconds up to the limit."""
    if len(text) > len(str(IMMUNITY_S_MAX)) or not (text.isascii() and text.isdecimal()):
        return None
    return int(text) if int(text) <= IMMUNITY_S_MAX else None
