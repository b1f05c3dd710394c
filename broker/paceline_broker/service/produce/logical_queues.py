"""Pure: which queue of this broker group a message of a static topic goes to, by logical queues;
and where in its logical queue it is then."""

from collections.abc import Container, Iterable
from typing import Any

from crc32c import crc32c

from paceline.errors import QueueSealedError
from paceline.types import GroupName
from paceline.wire.cluster import TopicView
from paceline.wire.static_topics import Place
from paceline_broker.projections.consume_queues import queue_key


def add_place(rows: Iterable[dict[str, Any]], place: Place | None) -> None:
    """Let JSON rows of messages, each at an `offset` of one queue, say as well where they are in
    the logical queue that this is a segment of; nothing where the topic is not static."""
    if place is None:
        return
    for row in rows:
        offset = row["offset"]
        row["logical_queue"] = place.logical_queue
        row["logical_offset"] = None if offset is None else place.segment.logical(offset)


def open_queue(topic: TopicView, group: GroupName, turn: int, seals: Container[int]) -> int:
    """One of the queues here that take messages, in turn. QueueSealedError if there is none.

    `seals`: keys of queues that this group's log has sealed, whatever the view still shows.
    """
    lasts = [one.last for one in topic.logical_queues if one.last.group == group]
    here = [one.queue_id for one in lasts if queue_key(topic.topic_id, one.queue_id) not in seals]
    if not here:
        raise QueueSealedError(
            f"no logical queue of topic {topic.topic} is in group {group} now; nothing was stored",
            topic_id=topic.topic_id,
        )
    return here[turn % len(here)]


def queue_of_key(topic: TopicView, group: GroupName, key: str) -> int:
    """The queue of the key's logical queue, over all of them, wherever the others are.

    QueueSealedError with that `group` if it is elsewhere: a key keeps its logical queue.
    """
    number = int(crc32c(key.encode())) % len(topic.logical_queues)  # as every producer has it
    last = topic.logical_queues[number].last
    if last.group != group:
        raise QueueSealedError(
            f"messages of this key go to logical queue {number} of topic {topic.topic}, which is"
            f" in group {last.group}; nothing was stored",
            topic_id=topic.topic_id,
            logical_queue=number,
            group=last.group,
        )
    return last.queue_id
