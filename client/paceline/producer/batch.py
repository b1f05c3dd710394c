"""Pure: one batch of messages of a producer: what it gathers, and what is known of its fate."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from paceline.errors import PacelineError
from paceline.queues import QueueKey
from paceline.records.encode import encode_batch
from paceline.records.header import DELAYED_RECORDS_MAX, RECORDS_MAX, Codec, Kind
from paceline.wire.static_topics import Place
from paceline.wire.stream import ProduceAnswer

MESSAGE_OVERHEAD_BYTES = 64
"""Charged per message beside its bytes: list slots, awaitable, waiter (measured 50-200 B)."""


class Compression(NamedTuple):
    """Which batches are compressed, and how: those with a body over `over_bytes`."""

    codec: Codec = Codec.NONE
    level: int = 1
    over_bytes: int = 0

    def codec_for(self, bodies: Sequence[bytes], cost_bytes: int) -> Codec:
        """The codec of a batch that holds `bodies`, of `cost_bytes` or a little less in all."""
        over = self.over_bytes
        if self.codec is Codec.NONE or (over and cost_bytes <= over):
            return Codec.NONE
        return self.codec if not over or max(map(len, bodies)) > over else Codec.NONE


NO_COMPRESSION = Compression()


class Batch:
    """Messages of one queue that share one fate. Mutable, owned by the outbox it is in."""

    __slots__ = (
        "_borns",
        "answer",
        "attempt",
        "base_sequence",
        "bodies",
        "born_last",
        "context",
        "cost_bytes",
        "deadline",
        "doom",
        "dues",
        "encoded",
        "error",
        "is_in_flight",
        "is_movable",
        "is_named",
        "is_unknown",
        "keys",
        "kind",
        "last_refusal",
        "moves",
        "number",
        "place",
        "properties",
        "queue",
        "records_max",
        "shared",
        "tags",
        "topic",
        "waiters",
    )

    def __init__(
        self,
        queue: QueueKey,
        *,
        topic: str = "",
        deadline: float,
        born_unix_ms: int,
        kind: Kind = Kind.NORMAL,
    ) -> None:
        self.queue = queue
        self.topic = topic
        self.kind = kind
        self.dues: list[int] | None = [] if kind == Kind.DELAY else None
        """What each message says of its time (records/dues.py); `add_due` beside `add`."""
        self.deadline = deadline
        """Loop time in seconds at which the batch is given up."""
        self.bodies: list[bytes] = []
        self.records_max = DELAYED_RECORDS_MAX if kind is Kind.DELAY else RECORDS_MAX
        self.keys: list[str | None] | None = None
        self.tags: list[str | None] | None = None
        self.properties: list[Mapping[str, str] | None] | None = None
        self.born_last = born_unix_ms
        self._borns: list[int] | None = None
        self.cost_bytes = 0
        self.is_movable = True
        self.is_named = False
        """The application named the queue itself: no other one will do."""
        self.encoded: bytes | None = None
        self.base_sequence = -1
        self.number = 0  # counts the batches of its queue in order of encoding
        self.attempt = 0
        self.moves = 0
        """How often it went to another queue after a refusal."""
        self.is_in_flight = False
        self.is_unknown = False
        self.last_refusal: PacelineError | None = None
        self.doom: PacelineError | None = None
        """Why it will be failed as soon as nothing of its queue is on the wire."""
        self.answer: ProduceAnswer | None = None
        self.place: Place | None = None
        """Once it is answered: the segment that it is in, of a static topic."""
        self.error: PacelineError | None = None
        self.shared: Any = None
        """What results of its messages have in common, once one was asked for; opaque here."""
        # Whom the shell tells the outcome; opaque here.
        self.waiters: list[Any] = []
        self.context: Any = None
        """Of hooks that were told that it leaves."""

    @property
    def is_settled(self) -> bool:
        return self.answer is not None or self.error is not None

    def add(
        self,
        body: bytes,
        key: str | None,
        tag: str | None,
        properties: Mapping[str, str] | None,
        born_unix_ms: int,
    ) -> int:
        """Take one message; return its index."""
        bodies = self.bodies
        index = len(bodies)
        if born_unix_ms != self.born_last or self._borns is not None:
            self._add_born(index, born_unix_ms)
        if key or self.keys is not None:
            self.is_movable = self.is_movable and not key
            self.keys = _column(self.keys, index, key)
        if tag or self.tags is not None:
            self.tags = _column(self.tags, index, tag)
        if properties or self.properties is not None:
            self.properties = _column(self.properties, index, properties)
        bodies.append(body)
        return index

    def add_due(self, due: int) -> None:
        """When the message is due that was added last."""
        assert self.dues is not None
        self.dues.append(due)

    def add_bodies(self, bodies: list[bytes], key: str | None, born_unix_ms: int) -> int:
        """Take bodies of one key (or none) without tag or properties; index of the first."""
        index, count = len(self.bodies), len(bodies)
        if key or self.keys is not None:
            self.is_movable = self.is_movable and not key
            self.keys = _column(self.keys, index, key)
            self.keys.extend([key] * (count - 1))
        if self.tags is not None:
            self.tags.extend([None] * count)
        if self.properties is not None:
            self.properties.extend([None] * count)
        if born_unix_ms != self.born_last or self._borns is not None:
            self._add_born(index, born_unix_ms)
            assert self._borns is not None
            self._borns.extend([born_unix_ms] * (count - 1))
        self.bodies.extend(bodies)
        return index

    def _add_born(self, index: int, born_unix_ms: int) -> None:
        if self._borns is None:
            self._borns = [self.born_last] * index
        self._borns.append(born_unix_ms)
        self.born_last = born_unix_ms

    def encode(
        self,
        *,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        compression: Compression,
    ) -> bytes:
        """Make the bytes under this sequence; kept until the batch is settled or taken back."""
        self.base_sequence = base_sequence
        self.encoded = encode_batch(
            self.bodies,
            keys=self.keys,
            tags=self.tags,
            properties=self.properties,
            born_unix_ms=self.born_last if self._borns is None else self._borns,
            due_unix_ms=self.dues,
            topic_id=self.queue.topic_id,
            queue_id=self.queue.queue_id,
            kind=self.kind,
            codec=compression.codec_for(self.bodies, self.cost_bytes),
            level=compression.level,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
        )
        return self.encoded


def _column(column: list[Any] | None, index: int, value: Any) -> list[Any]:
    """The column with `value` at `index`; made when its first value appears."""
    if column is None:
        column = [None] * index
    column.append(value)
    return column


def chunks_of(bodies: list[bytes], limit: int, overhead: int) -> list[tuple[list[bytes], int]]:
    """Split so that each part fits a batch of `limit` bytes; with the cost of each.

    `overhead` is charged for each beside its bytes.
    """
    ends = list(accumulate(len(body) + overhead for body in bodies))
    chunks: list[tuple[list[bytes], int]] = []
    start = before = 0
    while start < len(bodies):
        end = min(max(bisect_right(ends, before + limit), start + 1), start + RECORDS_MAX)
        chunks.append((bodies[start:end], ends[end - 1] - before))
        start, before = end, ends[end - 1]
    return chunks
