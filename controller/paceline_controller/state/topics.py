"""Pure: topics. Their ids are never used again: a late batch of a deleted one finds none (R35).

Names with % and a few others are the system's: no command of a user makes, changes or deletes such
a topic. They have queues in every broker group, also in one that begins later.
"""

from collections.abc import Mapping

from paceline.types import GroupName, TopicId, TopicName
from paceline.wire.consumer_groups import merged
from paceline.wire.names import REPLY_QUEUES, REPLY_TOPIC, SYSTEM_TOPICS
from paceline.wire.topic_commands import EnsureTopic
from paceline.wire.topics import ATTRIBUTES_MAX, FIFO, NORMAL
from paceline_controller.state import quotas
from paceline_controller.state.model import State, Topic
from paceline_controller.state.outcome import Outcome, RefusedError
from paceline_controller.state.topic_commands import AlterTopic, CreateTopic, DeleteTopic

TOPICS_MAX = 100_000
"""The system's own come on top. With so many a controller has some 660 MB of memory."""
MADE_BY_USE_MAX = 9_000
"""Whoever reaches a broker can have topics made; the rest is left to operators."""
STATIC_MESSAGE_TYPES = (NORMAL, FIFO)
"""What waits (a delayed message, a half) would be put into a queue that may be sealed by then."""


def create(state: State, command: CreateTopic, outcome: Outcome) -> None:
    """A new topic in the groups named."""
    check_is_new(state, command.topic)
    reads = command.queues if command.read_queues is None else command.read_queues
    if set(reads) != set(command.queues):
        raise RefusedError("BAD_QUEUES", "queues and read_queues name other broker groups")
    _check_queues(state, reads, command.queues)
    topic = add(state, command.topic, reads, command.queues, outcome, by=command.by)
    topic.perm, topic.message_type = command.perm, command.message_type
    topic.attributes = merged({}, command.attributes)
    outcome.result["topic"] = topic.view().to_json()


def ensure(state: State, command: EnsureTopic, outcome: Outcome) -> None:
    """The topic of that name, made in every broker group unless it is there."""
    _check_is_users(command.topic)
    topic = state.topics.get(command.topic)
    if topic is None:
        queues = {group: command.queues for group in sorted(state.groups)}
        if not queues:
            raise RefusedError("GROUP_UNKNOWN", "no broker group is registered")
        count = state.users_topics.total()
        if count >= MADE_BY_USE_MAX:
            raise RefusedError(
                "TOO_MANY_TOPICS",
                f"there are {count} topics, and above {MADE_BY_USE_MAX} none is made"
                " by its first use: delete some, or have an operator make it (paceline topic"
                " create)",
            )
        topic = add(state, command.topic, queues, queues, outcome, by=command.by)
        topic.message_type = command.message_type
    outcome.result["topic"] = topic.view().to_json()


def alter(state: State, command: AlterTopic, outcome: Outcome) -> None:
    """Only parts that are named. Whether unread messages are left is the proposer's to know."""
    topic = find_same(state, command.topic, command.topic_id)
    if topic.logical_queues:
        _check_static(topic, command)
    if command.alterations not in (None, topic.alterations):
        raise RefusedError(
            "TOPIC_CHANGED",
            f"topic {command.topic} was altered meanwhile, so messages may have come to the queues"
            " that it is to lose: look at it, and ask again",
        )
    reads = {**topic.read_queues, **(command.read_queues or {})}
    writes = {**topic.write_queues, **(command.write_queues or {})}
    for group in set(reads) ^ set(writes):  # a group that is new to the topic, named once
        reads.setdefault(group, writes.get(group, 0))
        writes.setdefault(group, reads[group])
    _check_queues(state, reads, writes, present=topic.read_queues)
    attributes = merged(topic.attributes, command.attributes)
    if len(attributes) > ATTRIBUTES_MAX:
        raise RefusedError("TOO_MANY_ATTRIBUTES", f"a topic has at most {ATTRIBUTES_MAX}")
    for group in sorted(reads):
        shrinks = reads[group] < topic.read_queues.get(group, 0)
        if shrinks and reads[group] < topic.write_queues[group] and not command.is_forced:
            raise RefusedError(
                "STILL_WRITTEN",
                f"producers of {topic.topic} still send to {topic.write_queues[group]} queues of "
                f"group {group}: lower write_queues first, and let consumers drain them",
            )
    before = topic.view()
    topic.read_queues, topic.write_queues = reads, writes
    if command.perm is not None:
        topic.perm = command.perm
    if command.message_type is not None:
        topic.message_type = command.message_type
    topic.attributes = attributes
    if topic.view() != before:
        topic.alterations += 1
        outcome.note("topic_altered", topic=topic.topic, topic_id=topic.topic_id)
        outcome.publish_topic(topic.topic)
    outcome.result["topic"] = topic.view().to_json()


def delete(state: State, command: DeleteTopic, outcome: Outcome) -> None:
    _check_is_users(command.topic)
    drop(state, _find(state, command.topic), outcome)


# -- the system's own -----------------------------------------------------------------------------


def add_system(state: State, name: TopicName, *, queues: int, outcome: Outcome) -> None:
    """A system topic with so many queues in every broker group; one that exists gets as many."""
    topic = state.topics.get(name)
    wanted = {group: queues for group in sorted(state.groups)}
    if topic is None:
        topic = add(state, name, wanted, wanted, outcome, is_system=True)
    elif topic.read_queues != wanted or topic.write_queues != wanted or not topic.is_system:
        # Fewer are written at once; what lies in the others is still read.
        reads = {group: max(queues, topic.read_queues.get(group, 0)) for group in wanted}
        topic.read_queues, topic.write_queues = reads, wanted
        state.make_system(topic)
        outcome.publish_topic(name)


def spread_system(state: State, outcome: Outcome) -> None:
    """A broker group has begun an epoch: all that have take part in every system topic."""
    for name in SYSTEM_TOPICS:
        if TopicName(name) not in state.topics:
            queues = REPLY_QUEUES if name == REPLY_TOPIC else 1
            add_system(state, TopicName(name), queues=queues, outcome=outcome)
    begun = [name for name in sorted(state.groups) if state.groups[name].master_epoch > 0]
    for topic in state.topics.values():
        missing = [name for name in begun if name not in topic.read_queues]
        if topic.is_system and missing:
            count = max(topic.write_queues.values(), default=1)
            topic.read_queues.update(dict.fromkeys(missing, count))
            topic.write_queues.update(dict.fromkeys(missing, count))
            outcome.publish_topic(topic.topic)


def drop(state: State, topic: Topic, outcome: Outcome) -> None:
    """Take it off the record."""
    state.remove_topic(topic)
    outcome.note("topic_deleted", topic=topic.topic, topic_id=topic.topic_id)
    outcome.publish_topic(topic.topic)


# -- small things ---------------------------------------------------------------------------------


def add(
    state: State,
    name: TopicName,
    reads: Mapping[GroupName, int],
    writes: Mapping[GroupName, int],
    outcome: Outcome,
    *,
    is_system: bool = False,
    by: str | None = None,
) -> Topic:
    """A new one with the next id. Raises RefusedError if there are too many, or the quota of its
    namespace or of the user who asks for it (`by`) is used up."""
    if not is_system and state.users_topics.total() >= TOPICS_MAX:
        raise RefusedError("TOO_MANY_TOPICS", f"there are {TOPICS_MAX} topics already")
    if not is_system:
        quotas.charge_topic(state, name, by)
    topic = Topic(
        topic=name,
        topic_id=TopicId(state.next_topic_id),
        read_queues=dict(reads),
        write_queues=dict(writes),
        message_type=NORMAL,
        is_system=is_system,
    )
    state.next_topic_id += 1
    state.add_topic(topic)
    outcome.note("topic_created", topic=topic.topic, topic_id=topic.topic_id)
    outcome.publish_topic(name)
    return topic


def check_is_new(state: State, name: TopicName) -> None:
    """Raise RefusedError for a name that a user cannot make a topic of."""
    _check_is_users(name)
    present = state.topics.get(name)
    if present is not None:
        raise RefusedError("TOPIC_EXISTS", f"topic {name} exists", topic=present.view().to_json())


def find_same(state: State, name: TopicName, topic_id: TopicId) -> Topic:
    """The user's topic that a command was decided on."""
    _check_is_users(name)
    topic = _find(state, name)
    if topic.topic_id != topic_id:
        raise RefusedError("TOPIC_CHANGED", f"topic {name} was deleted and made again meanwhile")
    return topic


def check_static_type(message_type: str) -> None:
    """Raise RefusedError for what a static topic cannot take."""
    if message_type not in STATIC_MESSAGE_TYPES:
        raise RefusedError(
            "BAD_MESSAGE_TYPE",
            f"a static topic is of type {' or '.join(STATIC_MESSAGE_TYPES)}, not {message_type}:"
            " what waits would come due for a queue that has moved",
        )


def _check_static(topic: Topic, command: AlterTopic) -> None:
    """Its queues are the segments of its logical queues: nobody sets their numbers."""
    if command.read_queues is not None or command.write_queues is not None:
        raise RefusedError(
            "STATIC_TOPIC",
            f"topic {topic.topic} is static: its logical queues are moved (paceline topic remap),"
            " and queue numbers follow from that",
        )
    if command.message_type is not None:
        check_static_type(command.message_type)


def _find(state: State, name: TopicName) -> Topic:
    topic = state.topics.get(name)
    if topic is None:
        raise RefusedError("TOPIC_UNKNOWN", f"there is no topic {name}")
    return topic


def _check_is_users(name: TopicName) -> None:
    # No more names than that: what older commands made, they make again when they are replayed.
    if name.startswith("%") or name in SYSTEM_TOPICS:
        raise RefusedError("SYSTEM_TOPIC", f"topic {name} is the system's own")


def _check_queues(
    state: State,
    reads: Mapping[GroupName, int],
    writes: Mapping[GroupName, int],
    *,
    present: Mapping[GroupName, int] | None = None,
) -> None:
    """Of registered groups, and no queue that is written but not read (6.: shrinking is safe)."""
    for group in sorted(reads):
        if group not in state.groups and group not in (present or {}):
            raise RefusedError("GROUP_UNKNOWN", f"no broker group {group} is registered")
        if reads[group] < writes[group]:
            raise RefusedError(
                "READ_BELOW_WRITE",
                f"group {group} would have {writes[group]} queues to write to and only "
                f"{reads[group]} to read from: what goes to the others would never be consumed",
            )
    if not any(reads.values()):
        raise RefusedError("BAD_QUEUES", "a topic has at least one queue to read from")
