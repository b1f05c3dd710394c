"""The streaming source: micro-batches between two sets of offsets, replayed exactly.

What a micro-batch reads is fixed by its two offset documents, which Spark logs before it reads; a
restart asks for the same range again, and the brokers answer the same records (INV-7). Queues that
appear later join with `newQueues`. Everything here runs on the driver but `read`.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from paceline.errors import OffsetMovedBackError, OffsetOutOfRangeError, PacelineError
from paceline.platform.runtime import SystemClock, SystemRandom
from paceline.queues import QueueName
from paceline.spark.batch import TaskPartition, chosen_columns, read_plan
from paceline.spark.brokers import Brokers
from paceline.spark.offsets import Offsets, StartKind, described, offsets_from_json, offsets_to_json
from paceline.spark.options import ReadOptions
from paceline.spark.pinning import owner_of, pin, unpin
from paceline.spark.plan import PIECES_OF_A_TASK, Planner
from paceline.spark.ranges import QueueRange, cut_to_bytes, limited
from paceline.spark.reading import read_task
from paceline.types import TopicName
from paceline.wire.calls.offsets import Commit, CommitRow

PINS_OF_A_LEASE = 4


log = logging.getLogger("paceline.spark")


def commit_for_lag(options: ReadOptions, offsets: Offsets) -> None:
    """Commit `offsets` for the group of option `consumerGroup`, to be seen by lag tools; a failure
    is logged, not raised.

    Spark's checkpoint alone decides where a query goes on; these are never read back. A restart
    from an older checkpoint would move them back, which a commit refuses: lag then shows too little
    until the query has caught up, and nothing else is wrong.
    """
    assert options.consumer_group is not None
    with Brokers(options.access) as brokers:
        view = brokers.view()
        for group in sorted({queue.group for queue in offsets}):
            rows = [
                CommitRow(
                    topic_id=view.topics[TopicName(queue.topic)].topic_id,
                    queue=queue.queue_id,
                    offset=offset,
                )
                for queue, offset in sorted(offsets.items())
                if queue.group == group and queue.topic in view.topics
            ]
            if not rows:
                continue
            request = Commit(group=options.consumer_group, offsets=rows)
            try:
                brokers.call(group, request, is_of_master=True)
            except OffsetMovedBackError:
                log.info("lag_is_ahead", extra={"group": options.consumer_group})
            except PacelineError as error:
                # The micro-batch is done whether or not a lag tool can see it.
                log.warning("lag_not_told", extra={"reason": error.message})


class PacelineStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming query. Lives in one long process on the driver; `read` in executors."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._columns = chosen_columns(schema)
        self._target: Offsets | None = None
        """Where AvailableNow ends."""
        self._waiting_since_ms: int | None = None
        """Since when there is less than minRecordsPerTrigger."""
        self._latest: Offsets = {}
        self._owner = owner_of("stream", SystemRandom().token(8).hex())
        self._pinned: Offsets = {}
        self._pinned_ms = 0

    # -- offsets ----------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        with Brokers(self._options.access) as brokers:
            planner = Planner(self._options, brokers)
            queues = planner.queues()
            ends = planner.ends(queues)
            position = self._options.starting
            return offsets_to_json(planner.resolve(position, queues, ends, name="startingOffsets"))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadMaxRows(self._options.max_records_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with Brokers(self._options.access) as brokers:
            planner = Planner(self._options, brokers)
            ends = planner.ends(planner.queues())
        self._target = {queue: end for queue, (_, end) in ends.items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begun = offsets_from_json(start, name="start")
        with Brokers(self._options.access) as brokers:
            planner = Planner(self._options, brokers)
            queues = planner.queues()
            ends = planner.ends(queues)
            begun = self._checked(planner, begun, ends)
            self._latest = {queue: end for queue, (_, end) in ends.items()}
            self._keep(brokers, begun)
            target = self._latest if self._target is None else self._bounded(begun)
            if self._waits(begun, target):
                return start
            stops = self._limited(planner, begun, target, limit, queues)
        # A queue that is gone keeps its place: its topic may be made again, under another id.
        return offsets_to_json({**begun, **stops})

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return offsets_to_json(self._latest) or None

    def _checked(
        self, planner: Planner, begun: Offsets, ends: dict[QueueName, tuple[int, int]]
    ) -> Offsets:
        """The start of a micro-batch, with queues that are new, checked for what was lost."""
        found = dict(begun)
        for queue, (start, end) in ends.items():
            if queue not in begun:
                is_earliest = self._options.new_queues_start is StartKind.EARLIEST
                found[queue] = start if is_earliest else end
            else:
                found[queue] = planner.checked(
                    queue, begun[queue], start, end, name="the checkpoint"
                )
        for queue in begun:
            if queue not in ends and self._options.fail_on_data_loss:
                raise OffsetOutOfRangeError(
                    f"{described(queue)} was read up"
                    f" to {begun[queue]} and is gone; set failOnDataLoss to false to go on without"
                )
        return found

    def _bounded(self, begun: Offsets) -> Offsets:
        """The target of AvailableNow; a queue that came after it is not read in this run."""
        assert self._target is not None
        return {
            queue: max(begun[queue], self._target.get(queue, begun[queue]))
            for queue in begun
            if queue in self._latest
        }

    def _waits(self, begun: Offsets, target: Offsets) -> bool:
        """Whether a micro-batch waits for minRecordsPerTrigger (not in AvailableNow)."""
        least = self._options.min_records_per_trigger
        if least is None or self._target is not None:
            return False
        count = sum(target[queue] - begun[queue] for queue in target)
        now_ms = SystemClock().monotonic_ms()
        if count == 0 or count >= least:
            self._waiting_since_ms = None
            return False
        if self._waiting_since_ms is None:
            self._waiting_since_ms = now_ms
        if now_ms - self._waiting_since_ms < self._options.max_trigger_delay_ms:
            return True
        self._waiting_since_ms = None
        return False

    def _limited(
        self,
        planner: Planner,
        begun: Offsets,
        target: Offsets,
        limit: ReadLimit,
        queues: dict[QueueName, int],
    ) -> Offsets:
        if isinstance(limit, ReadMaxRows):
            return limited(begun, target, records_max=limit.max_rows)
        if isinstance(limit, ReadMaxBytes):
            ranges = [
                QueueRange(queue, queues[queue], begun[queue], end)
                for queue, end in target.items()
                if begun[queue] < end
            ]
            piece_bytes = max(1, limit.max_bytes // PIECES_OF_A_TASK)
            cuts = planner.cuts(ranges, piece_bytes=piece_bytes)
            cut = cut_to_bytes(ranges, cuts, bytes_max=limit.max_bytes)
            return {**{queue: begun[queue] for queue in target}, **cut}
        if isinstance(limit, ReadAllAvailable):
            return dict(target)
        raise NotImplementedError(f"read limit {type(limit).__name__}")

    # -- micro-batches ----------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begun = offsets_from_json(start, name="start")
        stops = offsets_from_json(end, name="end")
        with Brokers(self._options.access) as brokers:
            planner = Planner(self._options, brokers)
            queues = planner.queues()
            ends = planner.ends(queues)
            ranges = []
            for queue in stops:
                if queue in queues:
                    low, high = ends[queue]
                    # A batch that is run again may have lost its start since Spark logged it; one
                    # that goes on after a loss begins where Spark knows, not where data begin.
                    first, beyond = (
                        planner.checked(queue, offset, low, high, name="the checkpoint")
                        for offset in (begun.get(queue, low), stops[queue])
                    )
                    ranges.append(QueueRange(queue, queues[queue], first, beyond))
            tasks = planner.tasks(ranges)
        return [TaskPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        options = self._options
        plan = read_plan(options, self._columns, tags=options.tags, keys=options.keys)
        return read_task(plan, partition.value)

    def commit(self, end: dict[str, Any]) -> None:
        """A micro-batch is done for good; lag tools may see it."""
        if self._options.consumer_group is None:
            return
        commit_for_lag(self._options, offsets_from_json(end, name="end"))

    def stop(self) -> None:
        if self._pinned:
            with Brokers(self._options.access) as brokers:
                unpin(brokers, self._owner, self._pinned)

    def _keep(self, brokers: Brokers, begun: Offsets) -> None:
        """Pin what is still to be read; moved and renewed a few times in a lease."""
        options = self._options
        now_ms = SystemClock().monotonic_ms()
        is_due = now_ms - self._pinned_ms >= options.lease_seconds * 1000 // PINS_OF_A_LEASE
        if options.is_pinned and (is_due or not self._pinned):
            starts = {queue: begun[queue] for queue in begun if queue in self._latest}
            pin(brokers, self._owner, starts, lease_seconds=options.lease_seconds)
            self._pinned, self._pinned_ms = starts, now_ms
