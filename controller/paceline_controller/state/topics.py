"""Pure: topics. Their ids are never used again: a late batch of a deleted one finds none (R35)."""

from paceline.types import TopicId
from paceline_controller.state.commands import CreateTopic, DeleteTopic
from paceline_controller.state.model import State, Topic
from paceline_controller.state.outcome import Outcome, RefusedError

TOPICS_MAX = 10_000
"""Bounds the view, which is pushed whole."""


def create(state: State, command: CreateTopic, outcome: Outcome) -> None:
    """A new topic in the groups named."""
    present = state.topics.get(command.topic)
    if present is not None:
        raise RefusedError(
            "TOPIC_EXISTS", f"topic {command.topic} exists", topic=present.view().to_json()
        )
    for group in command.queues:
        if group not in state.groups:
            raise RefusedError("GROUP_UNKNOWN", f"no broker group {group} is registered")
    if len(state.topics) >= TOPICS_MAX:
        raise RefusedError("TOO_MANY_TOPICS", f"there are {TOPICS_MAX} topics already")
    topic = Topic(
        topic=command.topic, topic_id=TopicId(state.next_topic_id), queues=dict(command.queues)
    )
    state.next_topic_id += 1
    state.topics[topic.topic] = topic
    outcome.note("topic_created", topic=topic.topic, topic_id=topic.topic_id)
    outcome.publish()
    outcome.result["topic"] = topic.view().to_json()


def delete(state: State, command: DeleteTopic, outcome: Outcome) -> None:
    topic = state.topics.pop(command.topic, None)
    if topic is None:
        raise RefusedError("TOPIC_UNKNOWN", f"there is no topic {command.topic}")
    outcome.note("topic_deleted", topic=topic.topic, topic_id=topic.topic_id)
    outcome.publish()
