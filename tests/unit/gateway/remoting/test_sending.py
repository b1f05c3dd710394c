"""What a remoting client is told of what it has sent."""

from paceline.producer.results import SendResult, StoredAt
from paceline.types import GroupName, MasterEpoch, QueueId, QueueOffset, TopicName
from paceline_gateway.remoting.codec.message_ids import place_of
from paceline_gateway.remoting.sending import physical_of


def test_a_half_that_a_retry_found_stored_is_named_by_its_place() -> None:
    """Its transaction is ended by that place: without it there would be none."""
    result = SendResult(
        topic=TopicName("orders"),
        group=GroupName("g1"),
        queue_id=QueueId(0),
        queue_offset=QueueOffset(238_568),
        epoch=MasterEpoch(2),
        is_duplicate=True,
        is_confirmed=True,
        stored_at=StoredAt(GroupName("g1"), 0, "581913e037995841:0:4:0", 21),
    )

    place = place_of(physical_of(result, is_half=True), "g1")

    assert (place.position, place.number) == (238_568, 0)
