"""Pure: an operator takes replicas and whole groups off the record; RocketMQ's cleanBrokerMetadata.

Whether they are dead is judged by the leader before it proposes, as in elections (R15).
"""

from paceline.types import GroupName
from paceline_controller.state.model import State, Topic
from paceline_controller.state.operator_commands import RemoveGroup, RemoveReplica
from paceline_controller.state.outcome import Outcome, RefusedError, numbers
from paceline_controller.state.replicas import end_acting, group_of, remove_member, vacate
from paceline_controller.state.static_topics import leave_group
from paceline_controller.state.topics import drop


def remove_replica(state: State, command: RemoveReplica, outcome: Outcome) -> None:
    """Its id is not used again. The last member stays: without it nobody knows what was confirmed
    (R9); clean the whole group, or order an unclean election."""
    group = group_of(state, command.group)
    replica_id = command.replica_id
    if replica_id not in group.replicas:
        raise RefusedError("REPLICA_UNKNOWN", f"{group.group} has no replica {replica_id}")
    if replica_id in group.sync_state_set:
        if not command.is_forced:
            raise RefusedError(
                "IS_MEMBER", f"replica {replica_id} is in the sync state set", **numbers(group)
            )
        if len(group.sync_state_set) == 1:
            raise RefusedError(
                "LAST_MEMBER", f"replica {replica_id} is the last member", **numbers(group)
            )
        if group.master == replica_id:
            vacate(group, outcome, reason="cleaned")
        remove_member(group, replica_id, outcome, reason="cleaned")
    assert group.master != replica_id  # INV-5: a master is a member
    end_acting(group, replica_id, outcome, reason="cleaned")
    del group.replicas[replica_id]
    outcome.record(group, "replica_forgotten", replica=replica_id)


def remove_group(state: State, command: RemoveGroup, outcome: Outcome) -> None:
    """Its stores are not taken back after this without the operator's word (R18)."""
    group = group_of(state, command.group)
    found = [topic for topic in state.topics.values() if _is_part_of(topic, group.group)]
    users = [topic for topic in found if not topic.is_system]
    if users and not command.is_forced:
        raise RefusedError(
            "GROUP_HAS_TOPICS",
            f"{len(users)} topics have queues in {group.group} or on their way to it, topic"
            f" {users[0].topic} is one",
            **numbers(group),
        )
    for topic in found:
        leave_group(topic, group.group)
        topic.drop_group(group.group)
        outcome.publish_topic(topic.topic)
        if not topic.read_queues and not topic.is_system:
            drop(state, topic, outcome)
    del state.groups[group.group]
    outcome.note("group_forgotten", group=group.group, master_epoch=group.master_epoch)
    outcome.publish(group)


def _is_part_of(topic: Topic, group: GroupName) -> bool:
    """Whether it has queues there, or a logical queue is to move there: a segment that opens in a
    group that is gone would have no master to seal it, ever."""
    return group in topic.read_queues or any(
        logical.moving_to == group for logical in topic.logical_queues
    )
