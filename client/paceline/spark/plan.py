"""What a query will read, worked out on the driver: queues, positions, tasks.

Ends are asked of masters (R4), so a plan sees all that was acknowledged before it; pieces and bytes
are asked of replicas. Positions outside of what a queue has are errors, or clamped where
`failOnDataLoss` is off: both a start that retention took and a start beyond the end, which would
else read nothing and say nothing.
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from paceline.errors import BadRequestError, OffsetOutOfRangeError, TopicNotFoundError
from paceline.platform.ports import Clock
from paceline.platform.runtime import SystemClock
from paceline.queues import QueueName, queues_of
from paceline.spark.brokers import Brokers
from paceline.spark.offsets import EARLIEST, LATEST, Offsets, Position, StartKind, described
from paceline.spark.options import ReadOptions, Selection
from paceline.spark.ranges import Bounds, Cut, QueueRange, Task, tasks_of
from paceline.types import TopicName
from paceline.wire.calls.offsets import CutRow, Cuts, CutsRow, Ends, QueueOf, Times
from paceline.wire.calls.request import AnswerT, Request
from paceline.wire.cluster import ClusterView, TopicView

log = logging.getLogger("paceline.spark")

PIECE_BYTES_MIN = 256 * 1024
PIECES_OF_A_TASK = 16
"""How finely a queue is cut: tasks come within a sixteenth of the size that was asked for."""
QUEUES_OF_A_CALL = 1000


class Planner:
    """Looks positions up for one query. Blocking; for the driver."""

    def __init__(self, options: ReadOptions, brokers: Brokers, clock: Clock | None = None) -> None:
        self._options = options
        self._brokers = brokers
        self._clock = clock if clock is not None else SystemClock()

    # -- queues -----------------------------------------------------------------------------------

    def queues(self) -> dict[QueueName, int]:
        """The selected queues, each with its topic id. TopicNotFoundError, BadRequestError."""
        view = self._brokers.view(is_fresh=True)
        found: dict[QueueName, int] = {}
        for topic in selected_topics(view, self._options.selection):
            wanted = (self._options.selection.assigned or {}).get(topic.topic)
            for key in queues_of(topic):
                if wanted is None or key.queue_id in wanted:
                    found[QueueName(topic.topic, key.group, key.queue_id)] = topic.topic_id
            missing = set(wanted or ()) - {
                int(queue.queue_id) for queue in found if queue.topic == topic.topic
            }
            if missing:
                raise BadRequestError(
                    f"option assign: topic {topic.topic} has no queue {min(missing)}",
                    field="assign",
                )
        return found

    def ends(self, queues: Mapping[QueueName, int]) -> dict[QueueName, tuple[int, int]]:
        """[start, end) of each queue, as its master confirms it now."""
        return {
            queue: (row.start, row.end)
            for chunk, answer in self._ask_masters(lambda rows: Ends(queues=rows), queues)
            for queue, row in zip(chunk, answer.queues, strict=True)
        }

    # -- positions --------------------------------------------------------------------------------

    def ranges(self) -> list[QueueRange]:
        """What a batch query reads, before filters."""
        queues = self.queues()
        ends = self.ends(queues)
        starts = self.resolve(self._options.starting, queues, ends, name="startingOffsets")
        stops = self.resolve(self._options.ending, queues, ends, name="endingOffsets")
        found = []
        for queue, topic_id in queues.items():
            if starts[queue] > stops[queue]:
                if self._options.ending.kind is StartKind.OFFSETS:
                    raise BadRequestError(
                        f"{described(queue)}: the read would begin at {starts[queue]}, beyond its"
                        f" end {stops[queue]}",
                        field="endingOffsets",
                    )
                continue
            found.append(QueueRange(queue, topic_id, starts[queue], stops[queue]))
        return found

    def resolve(
        self,
        position: Position,
        queues: Mapping[QueueName, int],
        ends: Mapping[QueueName, tuple[int, int]],
        *,
        name: str,
    ) -> Offsets:
        """The offset of `position` in each queue. `name`: the option, for errors."""
        match position.kind:
            case StartKind.EARLIEST:
                return {queue: ends[queue][0] for queue in queues}
            case StartKind.LATEST:
                return {queue: ends[queue][1] for queue in queues}
            case StartKind.RECORDS_BACK:
                return {
                    queue: max(ends[queue][0], ends[queue][1] - position.number) for queue in queues
                }
            case StartKind.TIME_BACK:
                return self.times(self._clock.unix_ms() - position.number, queues)
            case StartKind.TIMESTAMP:
                return self._at_timestamp(position.number, queues, ends, name)
            case StartKind.OFFSETS:
                return self._given(position.offsets or {}, queues, ends, name)

    def times(self, unix_ms: int, queues: Mapping[QueueName, int]) -> Offsets:
        """The first offset of each queue that was stored at or after a moment, else its end."""
        at_ms = max(0, unix_ms)
        return {
            queue: row.offset
            for chunk, answer in self._ask_masters(
                lambda rows: Times(unix_ms=at_ms, queues=rows), queues
            )
            for queue, row in zip(chunk, answer.queues, strict=True)
        }

    def _at_timestamp(
        self,
        unix_ms: int,
        queues: Mapping[QueueName, int],
        ends: Mapping[QueueName, tuple[int, int]],
        name: str,
    ) -> Offsets:
        found = self.times(unix_ms, queues)
        if self._options.is_timestamp_strict and name == "startingOffsets":
            for queue, offset in found.items():
                if offset >= ends[queue][1]:
                    raise BadRequestError(
                        f"{described(queue)} has nothing stored at or after startingTimestamp",
                        field="startingTimestamp",
                    )
        # What was stored since the ends were asked is not part of this read.
        return {queue: min(offset, ends[queue][1]) for queue, offset in found.items()}

    def _given(
        self,
        offsets: Mapping[QueueName, int],
        queues: Mapping[QueueName, int],
        ends: Mapping[QueueName, tuple[int, int]],
        name: str,
    ) -> Offsets:
        """Offsets as written; a queue that is not named starts at its start, or ends at its end."""
        for queue in offsets:
            if queue not in queues:
                raise BadRequestError(
                    f"{name} names {described(queue)}, which is not among the queues read",
                    field=name,
                )
        is_start = name == "startingOffsets"
        found: Offsets = {}
        for queue in queues:
            start, end = ends[queue]
            offset = offsets.get(queue, EARLIEST if is_start else LATEST)
            if offset == EARLIEST:
                offset = start
            elif offset == LATEST:
                offset = end
            found[queue] = self.checked(queue, offset, start, end, name=name)
        return found

    def checked(self, queue: QueueName, offset: int, start: int, end: int, *, name: str) -> int:
        """`offset` if the queue has it; else the error, or the nearest one it has."""
        if start <= offset <= end:
            return offset
        sentence = (
            f"{name}: {described(queue)} has offsets {start} to {end}, asked was {offset}"
            + (": retention has deleted what was before" if offset < start else "")
        )
        if self._options.fail_on_data_loss:
            raise OffsetOutOfRangeError(
                f"{sentence}; set failOnDataLoss to false to go on with what is there",
                start=start,
                end=end,
            )
        log.warning("offset_clamped", extra={"sentence": sentence})
        return start if offset < start else end

    # -- tasks ------------------------------------------------------------------------------------

    def narrowed(self, ranges: Iterable[QueueRange], bounds: Bounds) -> list[QueueRange]:
        """The ranges without what filters exclude; times become offsets by asking the brokers."""
        found = bounds.narrowed(ranges)
        for moment, is_low in ((bounds.stored_low_ms, True), (bounds.stored_high_ms, False)):
            if moment is None or not found:
                continue
            offsets = self.times(moment, {one.queue: one.topic_id for one in found})
            found = [
                QueueRange(
                    one.queue,
                    one.topic_id,
                    max(one.start, offsets[one.queue]) if is_low else one.start,
                    one.end if is_low else min(one.end, offsets[one.queue]),
                )
                for one in found
            ]
            found = [one for one in found if one.start < one.end]
        return found

    def tasks(self, ranges: Sequence[QueueRange]) -> list[Task]:
        """The ranges as tasks of at most about `maxBytesPerPartition`."""
        filled = [one for one in ranges if one.start < one.end]
        options = self._options
        return tasks_of(
            self.cuts(filled),
            filled,
            bytes_max=options.max_bytes_per_partition,
            tasks_min=options.min_partitions,
        )

    def cuts(
        self, ranges: Sequence[QueueRange], *, piece_bytes: int | None = None
    ) -> dict[QueueName, list[Cut]]:
        """Where each range can be cut, asked of any replica of its group."""
        if piece_bytes is None:
            piece_bytes = self._piece_bytes()
        found: dict[QueueName, list[Cut]] = {one.queue: [] for one in ranges}
        todo = [(one, one.start) for one in ranges]
        while todo:
            later = []
            for group in sorted({one.queue.group for one, _ in todo}):
                mine = [item for item in todo if item[0].queue.group == group]
                for at in range(0, len(mine), QUEUES_OF_A_CALL):
                    chunk = mine[at : at + QUEUES_OF_A_CALL]
                    for (one, _), row in zip(chunk, self._cut(chunk, piece_bytes), strict=True):
                        found[one.queue] += [Cut(offset, size) for offset, size in row.cuts]
                        if row.next < one.end:
                            later.append((one, row.next))
            todo = later
        return found

    def _piece_bytes(self) -> int:
        if self._options.min_partitions > 1:
            return PIECE_BYTES_MIN
        return max(PIECE_BYTES_MIN, self._options.max_bytes_per_partition // PIECES_OF_A_TASK)

    def _cut(self, chunk: Sequence[tuple[QueueRange, int]], piece_bytes: int) -> list[CutsRow]:
        queues = [
            CutRow(topic_id=one.topic_id, queue=one.queue.queue_id, from_=low, to=one.end)
            for one, low in chunk
        ]
        request = Cuts(piece_bytes=piece_bytes, queues=queues)
        group = chunk[0][0].queue.group
        answer = self._brokers.call(group, request, is_of_master=self._options.reads_masters)
        return answer.queues

    def _ask_masters(
        self, make: Callable[[list[QueueOf]], Request[AnswerT]], queues: Mapping[QueueName, int]
    ) -> Iterator[tuple[list[QueueName], AnswerT]]:
        """Some queues of one group, and the answer for these; until all were asked for."""
        for group in sorted({queue.group for queue in queues}):
            mine = [queue for queue in queues if queue.group == group]
            for at in range(0, len(mine), QUEUES_OF_A_CALL):
                chunk = mine[at : at + QUEUES_OF_A_CALL]
                rows = [QueueOf(topic_id=queues[queue], queue=queue.queue_id) for queue in chunk]
                yield chunk, self._brokers.call(group, make(rows), is_of_master=True)


def selected_topics(view: ClusterView, selection: Selection) -> list[TopicView]:
    """The topics that an option chose. TopicNotFoundError for a name, or a pattern, without one."""
    if selection.pattern is not None:
        wanted = re.compile(selection.pattern)
        found = [view.topics[name] for name in sorted(view.topics) if wanted.fullmatch(name)]
        if not found:
            raise TopicNotFoundError(f"no topic matches topicsPattern {selection.pattern!r}")
        return found
    names = selection.topics or tuple(selection.assigned or ())
    for name in names:
        if TopicName(name) not in view.topics:
            raise TopicNotFoundError(
                f"topic {name} does not exist; create it with `paceline topic create {name}`",
                topic=name,
            )
    return [view.topics[TopicName(name)] for name in names]
