"""What is fetched of a queue: where it stands, what came of it, and why it cannot go on."""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from paceline.errors import CorruptLogError, PeerError
from paceline.filters import ALL, Filter
from paceline.queues import QueueKey
from paceline.records.decode import BatchView
from paceline.types import ReplicaId
from paceline.wire.stream import FetchCode, FetchPart


class FetchedBatch:
    """A batch of a queue; records before number `skip` were delivered before."""

    __slots__ = ("skip", "view")

    def __init__(self, view: BatchView, skip: int) -> None:
        self.view = view
        self.skip = skip


class Trouble(Enum):
    """Why a queue cannot be fetched from where it stands."""

    OUT_OF_RANGE = "out_of_range"
    UNKNOWN_QUEUE = "unknown_queue"
    CORRUPT = "corrupt"
    NO_PERMISSION = "no_permission"


TROUBLES: dict[int, Trouble] = {
    FetchCode.OFFSET_OUT_OF_RANGE: Trouble.OUT_OF_RANGE,
    FetchCode.UNKNOWN_QUEUE: Trouble.UNKNOWN_QUEUE,
    FetchCode.NO_PERMISSION: Trouble.NO_PERMISSION,
}
"""What a queue's owner is told of an answer's code."""


class QueueFetch:
    """One queue that is fetched. `position` is the next offset to ask for."""

    __slots__ = (
        "_due",
        "_has_room",
        "generation",
        "is_in_flight",
        "key",
        "position",
        "replica",
        "retry_at",
        "wanted",
    )

    def __init__(self, key: QueueKey, position: int, wanted: Filter = ALL) -> None:
        self.key = key
        self.position = position
        self.wanted = wanted
        """The broker passes over batches without anything wanted; single records are left in."""
        self.generation = 0
        """Raised by a seek: what was fetched before is not wanted any more."""
        self.is_in_flight = False
        self.retry_at = 0.0
        self.replica: ReplicaId | None = None
        """Far behind: the replica that is read; None = the master."""
        self._has_room = True
        self._due: dict[QueueKey, QueueFetch] | None = None

    def join(self, due: "dict[QueueKey, QueueFetch]") -> None:
        """`due`: where a session looks for queues that it may have to ask for."""
        self._due = due
        due[self.key] = self

    def leave(self) -> None:
        """No session fetches it any more, and nothing that comes is wanted."""
        self._due = None
        self.generation += 1

    @property
    def has_room(self) -> bool:
        """Whether its owner takes more; after it was set, `FetchSession.wake`."""
        return self._has_room

    @has_room.setter
    def has_room(self, has_room: bool) -> None:
        self._has_room = has_room
        self._become_due()

    def land(self) -> None:
        """What was asked has been answered, or will never be."""
        self.is_in_flight = False
        self._become_due()

    def _become_due(self) -> None:
        if self._due is not None and self._has_room and not self.is_in_flight:
            self._due[self.key] = self

    def seek(self, position: int) -> None:
        """Go on from another offset."""
        self.position = position
        self.generation += 1
        self.replica = None
        self.retry_at = 0.0
        self.land()  # whatever is under way asks for something else


class Run(NamedTuple):
    """What came of one queue: whole batches in order, up to `end`, and why there are no more."""

    batches: list[FetchedBatch]
    end: int
    fault: CorruptLogError | None

    def verified(self) -> "Run":
        """What is left of it when payloads are looked at."""
        for number, batch in enumerate(self.batches):
            try:
                batch.view.verify()
            except CorruptLogError as error:
                end = batch.view.header.base_queue_offset + batch.skip
                return Run(self.batches[:number], end, error)
        return self


class Wanted(NamedTuple):
    """One part of an answer, of a queue that still waits for it."""

    queue: QueueFetch
    part: FetchPart
    run: Run


Place = tuple[int, int]
"""Topic id and queue: how brokers of the group know it."""
Ask = tuple[QueueFetch, int, int]
"""A queue that was asked for, its position then and its generation."""


def place_of(queue: QueueFetch) -> Place:
    return queue.key.topic_id, queue.key.queue_id


def waiting(asks: Iterable[Ask]) -> list[QueueFetch]:
    """The queues that still wait for an answer to this: a seek goes its own way."""
    return [queue for queue, _, generation in asks if queue.generation == generation]


def landed(asks: Mapping[Place, Ask]) -> list[QueueFetch]:
    """These asks stand no more: the queues that waited."""
    queues = waiting(asks.values())
    for queue in queues:
        queue.land()
    return queues


def wanted_of(asks: Mapping[Place, Ask], parts: list[tuple[FetchPart, memoryview]]) -> list[Wanted]:
    """The answer by queue; nothing has moved yet. PeerError if it is not what was asked for."""
    wanted: list[Wanted] = []
    for part, data in parts:
        known = asks.get((part.topic_id, part.queue_id))
        if known is None:
            raise PeerError(f"a part for queue {part.queue_id} that was not asked for")
        queue, position, generation = known
        if queue.generation == generation:
            held = data if part.code == FetchCode.OK else data[:0]
            run = _run(queue.key, held, position, has_gaps=queue.wanted is not ALL)
            if run.fault is None and part.code == FetchCode.OK:
                run = run._replace(end=max(run.end, part.next_offset))
            wanted.append(Wanted(queue, part, run))
    return wanted


def _run(key: QueueKey, data: memoryview, position: int, *, has_gaps: bool) -> Run:
    """The batches of one part, which must continue the queue at `position`; with a filter batches
    may be missing. PeerError if they do not."""
    found: list[FetchedBatch] = []
    at = 0
    while at < len(data):
        try:
            view = BatchView(data, at)
        except CorruptLogError as error:
            return Run(found, position, error)
        header = view.header
        skip = position - header.base_queue_offset
        if has_gaps:
            skip = max(0, skip)
        if (
            header.topic_id != key.topic_id
            or header.queue_id != key.queue_id
            or not 0 <= skip < header.record_count
        ):
            raise PeerError(
                f"a batch of topic {header.topic_id} queue {header.queue_id} from offset"
                f" {header.base_queue_offset}, asked was {key} from {position}"
            )
        found.append(FetchedBatch(view, skip))
        position = header.end_queue_offset
        at += header.size_bytes
    return Run(found, position, None)
