"""Static topics on the wire: segments, logical queues, and topics that have none."""

import orjson

from paceline.errors import QueueSealedError, Retry, from_problem, to_problem
from paceline.types import GroupName, QueueId, TopicId, TopicName
from paceline.wire.cluster import ClusterView
from paceline.wire.static_topics import LogicalQueue, Place, Segment, places
from paceline.wire.topics import FIFO, TopicView

G1, G2 = GroupName("g1"), GroupName("g2")
OLD = Segment(generation=0, group=G1, queue_id=QueueId(0), start=0, end=70)
NEW = Segment(generation=1, group=G2, queue_id=QueueId(1), start=70)
MOVING = Segment(generation=0, group=G2, queue_id=QueueId(0), start=0)
TOPIC = TopicView(
    topic=TopicName("t"),
    topic_id=TopicId(9),
    queues={G1: 1, G2: 2},
    message_type=FIFO,
    logical_queues=(
        LogicalQueue(segments=(OLD, NEW)),
        LogicalQueue(segments=(MOVING,), moving_to=G1),
    ),
)


def test_a_static_topic_is_the_same_after_json() -> None:
    view = ClusterView(cluster_id="c", version=3, topics={TOPIC.topic: TOPIC})

    found = ClusterView.from_json(orjson.loads(orjson.dumps(view.to_json())))

    assert found.topics[TOPIC.topic] == TOPIC
    assert found.topics[TOPIC.topic].is_static
    assert TopicView.from_json(orjson.loads(orjson.dumps(TOPIC.to_json()))) == TOPIC


def test_a_topic_without_logical_queues_does_not_speak_of_them() -> None:
    plain = TopicView(topic=TopicName("t"), topic_id=TopicId(9), queues={G1: 1})

    assert "logical_queues" not in plain.to_json()
    assert not TopicView.from_json(plain.to_json()).is_static


def test_logical_offsets_go_on_in_the_next_segment() -> None:
    assert (OLD.logical(69), OLD.sealed_end, OLD.is_open) == (69, 70, False)
    assert (NEW.logical(0), NEW.sealed_end, NEW.is_open) == (70, None, True)
    assert TOPIC.logical_queues[0].last is NEW
    assert places(TOPIC.logical_queues) == {
        (G1, 0): Place(0, OLD),
        (G2, 1): Place(0, NEW),
        (G2, 0): Place(1, MOVING),
    }


def test_a_sealed_queue_refuses_definitely_and_sends_to_the_routes() -> None:
    """R32: only after such an answer may a batch go to another queue."""
    error = from_problem(to_problem(QueueSealedError("sealed", topic_id=9, queue=0)))

    assert isinstance(error, QueueSealedError)
    assert (error.is_definite, error.retry, int(error.status)) == (True, Retry.NEW_MASTER, 421)
    assert error.details == {"topic_id": 9, "queue": 0}
