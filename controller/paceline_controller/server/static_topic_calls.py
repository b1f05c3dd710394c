"""Pure: what a request about a static topic is as a command."""

from paceline.errors import BadRequestError
from paceline.types import GroupName, TopicName
from paceline.wire.controller_calls.topics import AlterTopic, CreateTopic
from paceline.wire.topics import check_labels
from paceline_controller.state.model import Topic
from paceline_controller.state.topic_commands import (
    CreateStaticTopic,
    GrowStaticTopic,
    check_groups,
)

_NUMBERS = ("queues", "read_queues", "write_queues")
_UNCHANGED = ("perm", "message_type", "attributes", "force")


def is_of_static_topic(call: CreateTopic | AlterTopic) -> bool:
    """Whether it names logical queues. BadRequestError if it names others as well."""
    if call.logical_queues is None:
        if call.groups is not None:
            raise BadRequestError("groups is for topics with logical_queues", field="groups")
        return False
    for field in _NUMBERS:
        if getattr(call, field, None) is not None:
            raise BadRequestError(
                f"a static topic has logical_queues: leave {field} out", field=field
            )
    return True


def creation(call: CreateTopic, topic: TopicName, by: str | None) -> CreateStaticTopic:
    """The command that makes one; `by`: for the user who asks."""
    assert call.logical_queues is not None
    return CreateStaticTopic(
        topic=topic,
        logical_queues=call.logical_queues,
        groups=_groups(call),
        perm=call.perm,
        message_type=call.message_type,
        attributes=check_labels(call.attributes),
        by=by,
    )


def growth(call: AlterTopic, topic: Topic) -> GrowStaticTopic:
    """The command that gives one more queues: it changes nothing else. BadRequestError."""
    assert call.logical_queues is not None
    for field in _UNCHANGED:
        if getattr(call, field):
            raise BadRequestError(
                f"logical_queues is changed alone: change {field} by another request", field=field
            )
    return GrowStaticTopic(
        topic=topic.topic,
        topic_id=topic.topic_id,
        logical_queues=call.logical_queues,
        groups=_groups(call),
    )


def _groups(call: CreateTopic | AlterTopic) -> tuple[GroupName, ...]:
    """Those that are named; empty: all. BadRequestError if one is there twice."""
    check_groups(call.groups or ())
    return tuple(map(GroupName, call.groups or ()))
