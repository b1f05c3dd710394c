"""Messages of a pull as JSON values, decoded some at a time and in steps (ADR 18)."""

from collections.abc import Generator, Iterable
from typing import Any

from paceline.records.decode import BatchView
from paceline.types import QueueOffset
from paceline.wire.http import PullRequest, message_to_json
from paceline_broker.service.fetch.filters import BATCH_COST, RAW_BYTES_OF_COST, STEP_COST, Look

PIECE_RECORDS = 64
"""Decoded at once: of a batch of 65,535 not all, where few are asked for."""
RECORD_COST = 4
"""Of a record that is given, beside its filter's tests: so many times a test takes it."""


def pulled_messages(
    batches: Iterable[BatchView], request: PullRequest
) -> Generator[None, None, tuple[list[dict[str, Any]], QueueOffset]]:
    """The messages of a pull as JSON values, and the offset to pull from next.

    `batches` are consecutive batches of the queue; records below the asked offset and those that
    are not wanted are left out, and the next offset is past all that was looked at. At least one
    message is given if there is any, then at most `max_messages` and no more than `max_bytes` of
    bodies and texts. A look that costs too much ends early, with less or nothing.
    """
    found: list[dict[str, Any]] = []
    next_offset, bytes_left, look = request.offset, request.max_bytes, Look()
    piece = max(1, min(PIECE_RECORDS, STEP_COST // (request.wanted.terms or 1)))
    for view in batches:
        header = view.header
        raw_bytes = header.payload_raw_bytes if header.codec else header.size_bytes
        if look.spend(BATCH_COST + raw_bytes // RAW_BYTES_OF_COST):
            view.payload()
            yield
        first = max(0, request.offset - header.base_queue_offset)
        while first < header.record_count:
            end = min(header.record_count, first + piece)
            mask = request.wanted.mask(view, first, end)
            for number, record in enumerate(view.records(first, end)):
                if mask is None or mask[number]:
                    row = record._asdict()
                    bytes_left -= _bytes_of(row)
                    if found and bytes_left < 0:
                        return found, next_offset
                    found.append(message_to_json(row, header.store_unix_ms))
                next_offset = QueueOffset(record.queue_offset + 1)
                if len(found) == request.max_messages:
                    return found, next_offset
            if look.spend((end - first) * (request.wanted.terms + RECORD_COST)):
                yield
            first = end
            if look.left <= 0:
                return found, next_offset
    return found, next_offset


def _bytes_of(row: dict[str, Any]) -> int:
    properties = row["properties"]
    texts = sum(map(len, properties)) + sum(map(len, properties.values()))
    return len(row["body"]) + len(row["key"] or "") + len(row["tag"]) + texts
