"""The work of one task: its ranges from the brokers, as Arrow record batches.

A thread fetches the next answer while this one is converted. Whole batches come; what lies outside
the range is cut off by slices.
"""

import logging
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from paceline.errors import OffsetOutOfRangeError, TopicNotFoundError
from paceline.spark.brokers import Brokers, Fetched
from paceline.spark.columnar import Gatherer, Piece, mask_of
from paceline.spark.offsets import described
from paceline.spark.options import Access
from paceline.spark.ranges import QueueRange, Task
from paceline.wire.stream import FetchCode

log = logging.getLogger("paceline.spark")

FETCH_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """What every task of a query is told."""

    access: Access
    schema: Any
    """Arrow's; the columns in the order asked."""
    batch_bytes: int
    tags: frozenset[str] | None
    keys: frozenset[str] | None
    fail_on_data_loss: bool
    reads_masters: bool


def read_task(plan: ReadPlan, task: Task | None) -> Iterator[Any]:
    """Record batches of about `batch_bytes`. Raises PacelineError with what a user can do."""
    if task is None:
        return  # Spark asks for one partition even of nothing
    gatherer = Gatherer(plan.schema, batch_bytes=plan.batch_bytes)
    with (
        Brokers(plan.access, number=task.number) as brokers,
        ThreadPoolExecutor(1, thread_name_prefix="paceline-fetch") as ahead,
    ):
        for one in task.ranges:
            for piece in _pieces(plan, one, brokers, ahead):
                mask = mask_of(piece, tags=plan.tags, keys=plan.keys)
                if mask is not False:
                    yield from gatherer.add(piece, mask)
    yield from gatherer.flush()


def _pieces(
    plan: ReadPlan, one: QueueRange, brokers: Brokers, ahead: ThreadPoolExecutor
) -> Iterator[Piece]:
    """The batches of a range, in order."""

    def fetch(offset: int) -> Fetched:
        return brokers.fetch(
            one.queue.group,
            one.topic_id,
            one.queue.queue_id,
            offset,
            bytes_max=FETCH_BYTES,
            is_of_master=plan.reads_masters,
        )

    position = one.start
    pending: Future[Fetched] | None = ahead.submit(fetch, position)
    while pending is not None:
        found = pending.result()
        pending = None
        if found.part.code != FetchCode.OK:
            position = _after_loss(plan, one, position, found)
            if position < one.end:
                pending = ahead.submit(fetch, position)
            continue
        after = found.views[-1].header.end_queue_offset
        if after < one.end:
            pending = ahead.submit(fetch, after)
        for view in found.views:
            base = view.header.base_queue_offset
            if base >= one.end:
                break
            first, beyond = max(position, base), min(one.end, view.header.end_queue_offset)
            yield Piece(
                view, first - base, beyond - base, str(one.queue.topic), str(one.queue.group)
            )
        position = after


def _after_loss(plan: ReadPlan, one: QueueRange, position: int, found: Fetched) -> int:
    """Where to go on after an answer that is no data, if going on was chosen."""
    where = described(one.queue)
    if found.part.code == FetchCode.UNKNOWN_QUEUE:
        raise TopicNotFoundError(
            f"{where} is gone: the topic was deleted while it was read", topic=one.queue.topic
        )
    if found.part.start <= position:
        raise OffsetOutOfRangeError(
            f"{where} ends at {found.part.end}, the read was at {position}, which its master had"
            " confirmed: records were lost (an unclean election), or this is another cluster",
            start=found.part.start,
            end=found.part.end,
        )
    if plan.fail_on_data_loss:
        raise OffsetOutOfRangeError(
            f"{where} begins at {found.part.start}, the read was at {position}: retention deleted"
            " what lies between. Set failOnDataLoss to false to go on, or pin what you read",
            start=found.part.start,
            end=found.part.end,
        )
    log.warning("data_lost", extra={"queue": where, "from": position, "to": found.part.start})
    return found.part.start
