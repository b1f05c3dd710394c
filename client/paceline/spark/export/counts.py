"""Pure: what was counted of an export, and what that must be."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from paceline.errors import CorruptLogError
from paceline.queues import QueueName
from paceline.spark.offsets import described


class QueueCount(NamedTuple):
    """What was found of one queue."""

    rows: int
    first: int
    last: int
    sum_of_offsets: int
    distinct: int | None = None
    checksum: int | None = None
    """Sum over all rows of a CRC of body, key, tag and properties."""


def check_counts(
    pieces: Iterable[tuple[QueueName, int, int]], found: Mapping[QueueName, QueueCount]
) -> None:
    """Every offset of the pieces (queue, start, end) once, as far as count, bounds and sum can
    tell.

    CorruptLogError otherwise: the batch is not shown, a rerun writes it again.
    """
    wanted = wanted_counts(pieces)
    for queue, count in wanted.items():
        there = found.get(queue)
        if there is None or there[:4] != count[:4]:
            rows = 0 if there is None else there.rows
            raise CorruptLogError(
                f"{described(queue)}: {rows} rows were written for the {count.rows} of offsets"
                f" {count.first} to {count.last + 1}; run the export again"
            )
    strangers = set(found) - set(wanted)
    if strangers:
        raise CorruptLogError(f"rows of {len(strangers)} queues were written that nobody asked for")


def wanted_counts(pieces: Iterable[tuple[QueueName, int, int]]) -> dict[QueueName, QueueCount]:
    """What each queue with a row must have; pieces of one queue come in order."""
    found: dict[QueueName, QueueCount] = {}
    for queue, start, end in pieces:
        if start == end:
            continue
        before = found.get(queue, QueueCount(0, start, start, 0))
        found[queue] = QueueCount(
            rows=before.rows + end - start,
            first=before.first,
            last=end - 1,
            sum_of_offsets=before.sum_of_offsets + (start + end - 1) * (end - start) // 2,
        )
    return found
