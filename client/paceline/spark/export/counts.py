"""Pure: what was counted of an export, and what that must be."""

from collections.abc import Mapping
from typing import NamedTuple

from paceline.errors import CorruptLogError
from paceline.routing import QueueName
from paceline.spark.offsets import Offsets, described


class QueueCount(NamedTuple):
    """What was found of one queue."""

    rows: int
    first: int
    last: int
    sum_of_offsets: int
    distinct: int | None = None
    checksum: int | None = None
    """Sum over all rows of a CRC of body, key, tag and properties."""


def check_counts(start: Offsets, end: Offsets, found: Mapping[QueueName, QueueCount]) -> None:
    """Every offset of [start, end) once, as far as count, bounds and sum can tell.

    CorruptLogError otherwise: the batch is not shown, a rerun writes it again.
    """
    for queue, stop in end.items():
        begin = start[queue]
        count = found.get(queue)
        if begin == stop and count is None:
            continue
        wanted = (stop - begin, begin, stop - 1, (begin + stop - 1) * (stop - begin) // 2)
        if count is None or tuple(count[:4]) != wanted:
            rows = 0 if count is None else count.rows
            raise CorruptLogError(
                f"{described(queue)}: {rows} rows"
                f" were written for offsets {begin} to {stop}; run the export again"
            )
    strangers = set(found) - set(end)
    if strangers:
        raise CorruptLogError(f"rows of {len(strangers)} queues were written that nobody asked for")
