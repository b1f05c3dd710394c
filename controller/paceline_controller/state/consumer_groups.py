"""Pure: consumer groups and their settings; with each come its retry and dead letter topics.

A group that is made again gets topics of other ids (R35).
"""

from typing import TypeAlias, assert_never

from paceline.types import ConsumerGroupName, TopicName
from paceline.wire.consumer_groups import ConsumerGroupSettings, ConsumerGroupView, with_changes
from paceline.wire.names import DELAY_GROUP, dlq_topic, retry_topic
from paceline.wire.topic_commands import EnsureConsumerGroup
from paceline_controller.state import quotas, topics
from paceline_controller.state.model import State
from paceline_controller.state.outcome import Outcome, RefusedError
from paceline_controller.state.topic_commands import (
    AlterConsumerGroup,
    DeleteConsumerGroup,
    PutConsumerGroup,
)

AnyConsumerGroupCommand: TypeAlias = (
    PutConsumerGroup | AlterConsumerGroup | EnsureConsumerGroup | DeleteConsumerGroup
)
CONSUMER_GROUPS_MAX = 2_500
"""Bounds the view; each has two topics."""
MADE_BY_USE_MAX = 2_000
"""Whoever reaches a broker can have groups made; the rest is left to operators."""


def apply(state: State, command: AnyConsumerGroupCommand, outcome: Outcome) -> None:
    match command:
        case PutConsumerGroup():
            _replace(state, command, outcome)
        case AlterConsumerGroup():
            _alter(state, command, outcome)
        case EnsureConsumerGroup():
            ensure(state, command, outcome)
        case DeleteConsumerGroup():
            _delete(state, command, outcome)
        case _:
            assert_never(command)


def _replace(state: State, command: PutConsumerGroup, outcome: Outcome) -> None:
    present = state.consumer_groups.get(command.group)
    if command.is_new and present is not None:
        raise RefusedError("GROUP_EXISTS", f"consumer group {command.group} exists")
    if not command.is_new and present is None:
        raise _unknown(command.group)
    if present is None or present.settings != command.settings:
        _put(state, command.group, command.settings, outcome, by=command.by)
    outcome.result["group"] = state.consumer_groups[command.group].to_json()


def _alter(state: State, command: AlterConsumerGroup, outcome: Outcome) -> None:
    """Merged here, in the order of the log: who changes other settings undoes nothing."""
    present = state.consumer_groups.get(command.group)
    if present is None:
        raise _unknown(command.group)
    settings = with_changes(present.settings, command.changes)
    if settings != present.settings:
        _put(state, command.group, settings, outcome)
    outcome.result["group"] = state.consumer_groups[command.group].to_json()


def ensure(state: State, command: EnsureConsumerGroup, outcome: Outcome) -> None:
    """Made with the usual settings unless it is there."""
    if command.group not in state.consumer_groups:
        if len(state.consumer_groups) >= MADE_BY_USE_MAX:
            raise RefusedError(
                "TOO_MANY_GROUPS",
                f"there are {len(state.consumer_groups)} consumer groups, and above"
                f" {MADE_BY_USE_MAX} none is made by its first use: delete some, or have an"
                " operator make it (paceline group create)",
            )
        _put(state, command.group, ConsumerGroupSettings(), outcome, by=command.by)
    outcome.result["group"] = state.consumer_groups[command.group].to_json()


def _delete(state: State, command: DeleteConsumerGroup, outcome: Outcome) -> None:
    if command.group not in state.consumer_groups:
        raise _unknown(command.group)
    del state.consumer_groups[command.group]
    for name in (retry_topic(command.group), dlq_topic(command.group)):
        topic = state.topics.get(TopicName(name))
        if topic is not None:
            topics.drop(state, topic, outcome)
    outcome.note("consumer_group_deleted", group=command.group)
    outcome.publish_consumer_group(command.group)


def _put(
    state: State,
    group: ConsumerGroupName,
    settings: ConsumerGroupSettings,
    outcome: Outcome,
    *,
    by: str | None = None,
) -> None:
    if group == DELAY_GROUP:
        raise RefusedError("SYSTEM_GROUP", f"consumer group {group} is the system's own")
    is_new = group not in state.consumer_groups
    if is_new and len(state.consumer_groups) >= CONSUMER_GROUPS_MAX:
        raise RefusedError(
            "TOO_MANY_GROUPS", f"there are {CONSUMER_GROUPS_MAX} consumer groups already"
        )
    if is_new:
        quotas.charge_group(state, group, by)
    state.consumer_groups[group] = ConsumerGroupView(group=group, settings=settings)
    retries = TopicName(retry_topic(group))
    topics.add_system(state, retries, queues=settings.retry_queue_nums, outcome=outcome)
    topics.add_system(state, TopicName(dlq_topic(group)), queues=1, outcome=outcome)
    outcome.note("consumer_group_created" if is_new else "consumer_group_altered", group=group)
    outcome.publish_consumer_group(group)


def _unknown(group: ConsumerGroupName) -> RefusedError:
    return RefusedError("CONSUMER_GROUP_UNKNOWN", f"there is no consumer group {group}")
