"""Pure: what an application sends and receives; light, as consumers make 200,000 a second."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import compress, repeat
from typing import NamedTuple

from paceline.filters import ALL, Filter
from paceline.queues import QueueName
from paceline.records.decode import BatchView
from paceline.wire.properties import RECONSUME_TIMES, priority_in
from paceline.wire.static_topics import Place


@dataclass(slots=True)
class Message:
    """One message to send. The producer reads it when `send` is called and keeps no reference."""

    topic: str
    body: bytes
    """At most 4 MiB; any bytes."""
    key: str | None = None
    """Messages of one key go to one queue, in order; None or "" = no key."""
    tag: str | None = None
    """A label consumers filter by; None or "" = no tag."""
    properties: Mapping[str, str] | None = None
    """At most 32,767 bytes as JSON."""
    delivery_unix_ms: int | None = None
    """Deliver not before this wall-clock time; None or 0 = at once."""
    delay_ms: int | None = None
    """Deliver so long after it was stored; wins over a time."""
    delay_level: int | None = None
    """Deliver after the delay of this level, 1 to 18 by default; wins over both."""
    queue: QueueName | None = None
    """Exactly this queue: then no retry goes elsewhere. None = by sharding key, key, or in turn."""
    sharding: str | None = None
    """Chooses the queue in the place of the key, for messages whose key is only looked for."""
    priority: int | None = None
    """For a topic of type PRIORITY: 0 (the lowest) to 2^31 - 1; None: 0. Chooses the queue: simple
    consumers are given what has a higher one first."""


class LockToken(NamedTuple):
    """Fencing token of a queue lock; a later grant of the same queue has a higher one (INV-11)."""

    epoch: int
    position: int


class ReceivedMessage(NamedTuple):
    """One message of a queue. (topic, group, queue_id, queue_offset) names it for ever (INV-7)."""

    topic: str
    group: str
    """The broker group that holds the queue."""
    queue_id: int
    queue_offset: int
    body: bytes
    key: str | None
    tag: str
    properties: dict[str, str]
    born_unix_ms: int
    """When the producer made it, by its clock."""
    store_unix_ms: int
    """When the master stored it; never falls within a queue."""
    lock_token: LockToken | None = None
    """Of ordered consumption: the grant it was handed out under. A system that remembers the
    highest token it has seen of a queue can refuse what a consumer without the lock still does."""
    logical_queue: int | None = None
    """Of a static topic: the logical queue it is in, and its offset there, which goes on over
    remaps. `group`, `queue_id` and `queue_offset` say where it is stored, and what is committed."""
    logical_offset: int | None = None

    @property
    def reconsume_times(self) -> int:
        """How often its consumer group has sent it back."""
        return int(self.properties.get(RECONSUME_TIMES, "0"))

    @property
    def priority(self) -> int | None:
        """The priority that it was sent with."""
        return priority_in(self.properties)


_new_tuple = tuple.__new__


def received_messages(
    view: BatchView,
    *,
    topic: str,
    group: str,
    skip: int = 0,
    lock_token: LockToken | None = None,
    wanted: Filter = ALL,
    place: Place | None = None,
) -> Iterator[ReceivedMessage]:
    """The messages of one batch from record `skip` on that are `wanted`.

    `place`: the segment that the queue is, of a static topic.

    Raises CorruptLogError before the first.
    """
    header = view.header
    number: int | None = None
    logical_offsets: Iterable[int | None] = repeat(None)
    if place is not None:
        number = place.logical_queue
        first = place.segment.logical(header.base_queue_offset + skip)
        logical_offsets = range(first, first + header.record_count)
    rows = zip(
        repeat(topic),
        repeat(group),
        repeat(header.queue_id),
        range(header.base_queue_offset + skip, header.end_queue_offset),
        view.bodies(skip),
        view.keys(skip),
        view.tags(skip),
        view.properties(skip),
        view.born(skip),
        repeat(header.store_unix_ms),
        repeat(lock_token),
        repeat(number),
        logical_offsets,
        strict=False,
    )
    found = map(_new_tuple, repeat(ReceivedMessage), rows)
    mask = None if wanted is ALL else wanted.mask(view)
    return found if mask is None else compress(found, mask[skip:])
