"""Static topics at the HTTP door: rows say where in its logical queue a message is."""

from tests.support.http.door import a_batch, a_door
from tests.support.service.fakes import GROUP
from tests.support.service.topic_checks import altered

from paceline.types import GroupName, QueueId
from paceline.wire.static_topics import LogicalQueue, Segment

QUEUES = "/v1/topics/orders/queues"
BATCH = {"Content-Type": "application/vnd.paceline.batch"}


def segment(generation: int, group: str, queue: int, start: int, end: int | None) -> Segment:
    return Segment(
        generation=generation, group=GroupName(group), queue_id=QueueId(queue), start=start, end=end
    )


MOVED = (
    LogicalQueue(segments=(segment(0, "elsewhere", 0, 0, None),)),
    LogicalQueue(segments=(segment(0, "elsewhere", 1, 0, 70), segment(1, GROUP, 0, 70, None))),
)
"""Logical queue 1 has come here, into queue 0, from logical offset 70 on."""


async def test_sends_and_pulls_say_the_place_in_the_logical_queue() -> None:
    async with a_door() as door:
        altered(door, logical_queues=MOVED)
        messages = {"messages": [{"body": "a"}, {"body": "b"}]}
        _, sent = await door.ask("POST", "/v1/topics/orders/messages", messages)
        _, batch = await door.ask("POST", f"{QUEUES}/0/batches", data=a_batch(b"c"), headers=BATCH)
        _, pulled = await door.ask("GET", f"{QUEUES}/0/messages?offset=1")

    rows = [*sent["messages"], batch]
    assert [(row["queue"], row["offset"]) for row in rows] == [(0, 0), (0, 1), (0, 2)]
    assert [(row["logical_queue"], row["logical_offset"]) for row in rows] == [
        (1, 70),
        (1, 71),
        (1, 72),
    ]
    shown = [
        (row["offset"], row["logical_queue"], row["logical_offset"]) for row in pulled["messages"]
    ]
    assert shown == [(1, 1, 71), (2, 1, 72)]


async def test_rows_of_other_topics_are_as_ever() -> None:
    async with a_door() as door:
        _, sent = await door.ask(
            "POST", "/v1/topics/orders/messages", {"messages": [{"body": "a"}]}
        )
        queue = sent["messages"][0]["queue"]
        _, pulled = await door.ask("GET", f"{QUEUES}/{queue}/messages?offset=0")

    assert not {"logical_queue", "logical_offset"} & sent["messages"][0].keys()
    assert not {"logical_queue", "logical_offset"} & pulled["messages"][0].keys()
