"""Pure: static topics: a fixed number of logical queues that move between broker groups in use.

A logical queue moves in two steps. An operator's command names where it goes; the master of its
present group seals the queue there by a record and reports its length. Only that report closes the
segment and opens the next one, so nothing is in two places, and a group without a master keeps what
it has. Queue numbers of a group are given in rising order and never again: a queue that was sealed
stays sealed.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import assert_never

from paceline.types import GroupName, QueueId
from paceline.wire.consumer_groups import merged
from paceline.wire.session_commands import QueueSealed
from paceline.wire.static_topics import LogicalQueue, Segment
from paceline.wire.topic_commands import QUEUES_MAX
from paceline_controller.state import topics
from paceline_controller.state.mastership import check_master
from paceline_controller.state.model import State, Topic
from paceline_controller.state.outcome import Outcome, RefusedError
from paceline_controller.state.replicas import group_of
from paceline_controller.state.topic_commands import (
    CreateStaticTopic,
    GrowStaticTopic,
    RemapQueue,
)


def apply(
    state: State,
    command: CreateStaticTopic | GrowStaticTopic | RemapQueue | QueueSealed,
    outcome: Outcome,
) -> None:
    """Whichever it is."""
    match command:
        case CreateStaticTopic():
            create(state, command, outcome)
        case GrowStaticTopic():
            grow(state, command, outcome)
        case RemapQueue():
            remap(state, command, outcome)
        case QueueSealed():
            queue_sealed(state, command, outcome)
        case _:
            assert_never(command)


def create(state: State, command: CreateStaticTopic, outcome: Outcome) -> None:
    """A new topic whose logical queues lie in the groups named, in turn."""
    topics.check_is_new(state, command.topic)
    topics.check_static_type(command.message_type)
    groups = _groups(state, command.groups)
    _check_room({}, groups, command.logical_queues)
    topic = topics.add(state, command.topic, {}, {}, outcome, by=command.by)
    topic.perm, topic.message_type = command.perm, command.message_type
    topic.attributes = merged({}, command.attributes)
    _spread(topic, groups, command.logical_queues)
    outcome.result["topic"] = topic.view().to_json()


def grow(state: State, command: GrowStaticTopic, outcome: Outcome) -> None:
    """More logical queues. Never fewer: what lies in them would have no place."""
    topic = _static(topics.find_same(state, command.topic, command.topic_id))
    more = command.logical_queues - len(topic.logical_queues)
    if more < 0:
        raise RefusedError(
            "STATIC_TOPIC",
            f"topic {topic.topic} has {len(topic.logical_queues)} logical queues and keeps them",
        )
    groups = _groups(state, command.groups)
    _check_room(topic.read_queues, groups, more)
    if more:
        _spread(topic, groups, more)
        outcome.note("topic_altered", topic=topic.topic, topic_id=topic.topic_id)
        outcome.publish_topic(topic.topic)
    outcome.result["topic"] = topic.view().to_json()


def remap(state: State, command: RemapQueue, outcome: Outcome) -> None:
    """From now on its group's master is to seal it. Asked again, it is moving, or has moved."""
    topic = _static(topics.find_same(state, command.topic, command.topic_id))
    number = command.logical_queue
    if number >= len(topic.logical_queues):
        raise RefusedError(
            "BAD_QUEUES",
            f"topic {topic.topic} has logical queues 0 to {len(topic.logical_queues) - 1}",
        )
    logical = topic.logical_queues[number]
    if not _is_done(logical, command):
        _check_move(state, topic, logical, command)
        _put(topic, number, replace(logical, moving_to=command.group))
        outcome.note(
            "queue_moving",
            topic=topic.topic,
            logical_queue=number,
            source=logical.last.group,
            target=command.group,
        )
        outcome.publish_topic(topic.topic)
    outcome.result["topic"] = topic.view().to_json()


def queue_sealed(state: State, command: QueueSealed, outcome: Outcome) -> None:
    """The word of a segment's master: it is closed, and the next one begins at its end."""
    group = group_of(state, command.group)
    check_master(group, command.master, command.master_incarnation, command.master_epoch)
    topic = next((one for one in state.topics.values() if one.topic_id == command.topic_id), None)
    if topic is None:
        raise RefusedError("TOPIC_UNKNOWN", f"there is no topic with id {command.topic_id}")
    number, generation = command.logical_queue, command.generation
    queues = topic.logical_queues
    segments = queues[number].segments if number < len(queues) else ()
    found = next((one for one in segments if one.generation == generation), None)
    if found is None or found.group != group.group:
        raise RefusedError(
            "SEGMENT_UNKNOWN",
            f"generation {generation} of logical queue {number} of {topic.topic} is not in"
            f" {group.group}",
        )
    end = found.start + command.end
    if found.is_open:
        _open_next(topic, number, end, outcome)
    elif found.end is not None and end < found.end:
        # An unclean election has cut what it held: who waits for its end waits no longer (R21).
        closed = replace(found, end=end)
        kept = tuple(closed if one is found else one for one in segments)
        _put(topic, number, replace(queues[number], segments=kept))
        outcome.note("segment_cut", topic=topic.topic, logical_queue=number, end=end)
        outcome.publish_topic(topic.topic)
    # No later master of the group lacks the record that sealed it (R16).
    group.confirm_floor = max(group.confirm_floor, command.confirm)


def leave_group(topic: Topic, group: GroupName) -> None:
    """The group is given up for good: its segments are gone, and open ones begin anew elsewhere.

    Nobody knows where those ended; the next one takes over their first logical offset.
    """
    others = sorted(set(topic.read_queues) - {group})
    for number, logical in enumerate(topic.logical_queues):
        kept = tuple(one for one in logical.segments if one.group != group)
        target = logical.moving_to if logical.moving_to != group else None
        if logical.last.group == group and others:
            heir = target or min(others, key=lambda name: (_open_count(topic, name), name))
            last = logical.last
            kept = (*kept, _segment(topic, heir, generation=last.generation + 1, start=last.start))
            target = None
        elif logical.moving_to == group:
            # It may be sealed already, for a move that has nowhere to go any more.
            target = logical.last.group
        if kept:  # else the topic has no other group, and is dropped
            _put(topic, number, LogicalQueue(segments=kept, moving_to=target))


def _static(topic: Topic) -> Topic:
    if not topic.logical_queues:
        raise RefusedError("NOT_STATIC", f"topic {topic.topic} is not a static topic")
    return topic


def _groups(state: State, names: Collection[GroupName]) -> list[GroupName]:
    """Those named, else all, in order of their names."""
    groups = sorted(names or state.groups)
    for name in groups:
        if name not in state.groups:
            raise RefusedError("GROUP_UNKNOWN", f"no broker group {name} is registered")
    if not groups:
        raise RefusedError("GROUP_UNKNOWN", "no broker group is registered")
    return groups


def _check_room(present: dict[GroupName, int], groups: list[GroupName], count: int) -> None:
    share = -(-count // len(groups))
    for group in groups:
        if present.get(group, 0) + share > QUEUES_MAX:
            raise RefusedError(
                "BAD_QUEUES", f"group {group} would have more than {QUEUES_MAX} queues of it"
            )


def _spread(topic: Topic, groups: list[GroupName], count: int) -> None:
    begun = len(topic.logical_queues)
    for number in range(begun, begun + count):
        segment = _segment(topic, groups[number % len(groups)], generation=0, start=0)
        topic.logical_queues = (*topic.logical_queues, LogicalQueue(segments=(segment,)))


def _segment(topic: Topic, group: GroupName, *, generation: int, start: int) -> Segment:
    """A new queue of the group, which is counted."""
    queue = topic.read_queues.get(group, 0)
    topic.read_queues[group] = topic.write_queues[group] = queue + 1
    return Segment(generation=generation, group=group, queue_id=QueueId(queue), start=start)


def _is_done(logical: LogicalQueue, command: RemapQueue) -> bool:
    """Whether that very request was carried out, or there is nothing to do."""
    last = logical.last
    if command.generation == last.generation:
        is_there = logical.moving_to is None and last.group == command.group
        return is_there or logical.moving_to == command.group
    is_next = command.generation == last.generation - 1
    return is_next and last.group == command.group


def _check_move(state: State, topic: Topic, logical: LogicalQueue, command: RemapQueue) -> None:
    generation = logical.last.generation
    if command.generation != generation:
        raise RefusedError(
            "STALE_GENERATION",
            f"generation {command.generation} is not the present {generation} of logical queue"
            f" {command.logical_queue} of {topic.topic}",
        )
    if logical.moving_to is not None:
        raise RefusedError(
            "MOVING",
            f"logical queue {command.logical_queue} of {topic.topic} is on its way from"
            f" {logical.last.group} to {logical.moving_to}: let it arrive first",
        )
    target = state.groups.get(command.group)
    if target is None:
        raise RefusedError("GROUP_UNKNOWN", f"no broker group {command.group} is registered")
    if target.is_write_wiped:
        raise RefusedError(
            "WRITE_WIPED",
            f"broker group {command.group} takes no messages: its write permission was wiped",
        )
    _check_room(topic.read_queues, [command.group], 1)


def _open_next(topic: Topic, number: int, end: int, outcome: Outcome) -> None:
    logical = topic.logical_queues[number]
    target = logical.moving_to
    if target is None:
        raise RefusedError("NOT_MOVING", f"logical queue {number} of {topic.topic} is not to move")
    last = logical.last
    following = _segment(topic, target, generation=last.generation + 1, start=end)
    segments = (*logical.segments[:-1], replace(last, end=end), following)
    _put(topic, number, LogicalQueue(segments=segments))
    outcome.note(
        "queue_moved",
        topic=topic.topic,
        logical_queue=number,
        source=last.group,
        target=target,
        start=end,
    )
    outcome.publish_topic(topic.topic)


def _put(topic: Topic, number: int, logical: LogicalQueue) -> None:
    queues = topic.logical_queues
    topic.logical_queues = (*queues[:number], logical, *queues[number + 1 :])


def _open_count(topic: Topic, group: GroupName) -> int:
    return sum(logical.last.group == group for logical in topic.logical_queues)
