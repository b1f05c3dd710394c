"""What a broker looks up in the view: a newer view changes what it changes."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from paceline.types import GroupName, QueueId, TopicId, TopicName
from paceline.wire.cluster import ClusterView, TopicView
from paceline.wire.static_topics import LogicalQueue, Segment
from paceline.wire.topics import NORMAL, PRIORITY
from paceline_broker.service.routes import Routes

G1 = GroupName("g1")


def a_static(queues: int) -> tuple[LogicalQueue, ...]:
    return tuple(
        LogicalQueue(segments=(Segment(generation=0, group=G1, queue_id=QueueId(queue), start=0),))
        for queue in range(queues)
    )


topics = st.builds(
    lambda name, topic_id, queues, perm, message_type, static: TopicView(
        topic=TopicName(name),
        topic_id=TopicId(topic_id),
        queues={G1: queues},
        perm=perm,
        message_type=message_type,
        logical_queues=a_static(queues) if static else (),
    ),
    st.sampled_from("abc"),
    st.integers(1, 30),
    st.integers(1, 3),
    st.sampled_from([0, 2, 4, 6]),
    st.sampled_from([NORMAL, PRIORITY]),
    st.booleans(),
)
views = st.lists(st.lists(topics, unique_by=(lambda t: t.topic, lambda t: t.topic_id)), max_size=6)


@given(views)
def test_views_one_after_the_other_are_as_the_last_alone(rounds: list[list[TopicView]]) -> None:
    followed = Routes(G1)
    for version, each in enumerate(rounds, start=1):
        view = ClusterView(
            cluster_id="c", version=version, topics={topic.topic: topic for topic in each}
        )
        followed.apply(view)
        alone = Routes(G1)
        alone.apply(view)

        assert looked_up(followed) == looked_up(alone)


def looked_up(routes: Routes) -> dict[str, Any]:
    return {
        "topics": routes.topics_by_id,
        "queues": routes.queue_counts,
        "sendable": routes.sendable,
        "unreadable": routes.unreadable,
        "priorities": routes.with_priorities,
        "static": {topic.topic_id: topic for topic in routes.static_topics},
        "places": routes.places,
        "closed": routes.closed,
    }


def test_the_highest_id_is_not_forgotten() -> None:
    routes = Routes(G1)
    topic = TopicView(topic=TopicName("t"), topic_id=TopicId(7), queues={G1: 1})
    routes.apply(ClusterView(cluster_id="c", version=1, topics={topic.topic: topic}))
    routes.apply(ClusterView(cluster_id="c", version=2))

    assert routes.topic_id_max == 7
    assert routes.is_deleted(7)
