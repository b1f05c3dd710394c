"""Pure: requests about topics."""

from typing import Annotated, TypeAlias

from msgspec import UNSET, Meta, UnsetType

from paceline.wire.calls.request import U32_MAX, Answer, Request, Route
from paceline.wire.controller_calls.base import GroupId, Read, Written
from paceline.wire.rights import CREATE, DELETE, GET, KNOWN_USER, PUB, SUB, UPDATE, on_topic
from paceline.wire.static_topics import LOGICAL_QUEUES_MAX
from paceline.wire.topic_commands import (
    GROUPS_MAX,
    LogicalQueueCount,
    QueueCount,
    QueueCountLeft,
)
from paceline.wire.topics import NORMAL, PERM_BOTH, Attributes, MessageType, Perm

_InGroups = Meta(min_length=1, max_length=GROUPS_MAX)
Queues: TypeAlias = QueueCount | Annotated[dict[str, QueueCount], _InGroups]
"""A number for every broker group (as RocketMQ counts), or a table of broker groups."""
QueuesLeft: TypeAlias = QueueCount | Annotated[dict[str, QueueCountLeft], _InGroups]
"""The same; a broker group may be left with none."""
GroupNames: TypeAlias = Annotated[list[GroupId], Meta(max_length=GROUPS_MAX)]


class Segment(Answer, kw_only=True):
    """A stretch of a logical queue: one queue of one broker group."""

    generation: int
    group: str
    queue: int
    start: int
    end: int | None


class LogicalQueue(Answer, kw_only=True):
    """One logical queue of a static topic."""

    segments: list[Segment]
    moving_to: str | None


class Topic(Answer, kw_only=True):
    """One topic."""

    topic: str
    topic_id: int
    queues: dict[str, int]
    """By broker group, the larger one of both numbers that follow."""
    read_queues: dict[str, int]
    write_queues: dict[str, int]
    perm: Perm
    """2 = write, 4 = read, 6 = both."""
    message_type: MessageType
    attributes: dict[str, str]
    is_system: bool
    logical_queues: list[LogicalQueue] | UnsetType = UNSET
    """Of a static topic."""


class WrittenTopic(Topic, kw_only=True):
    """The topic as the command left it."""

    version: int
    """Of the cluster view that shows it."""


class TopicList(Answer, kw_only=True):
    """The topics, by name."""

    version: int
    topics: list[Topic]


class ListTopics(Read[TopicList], kw_only=True):
    """All topics."""

    routes = (Route("GET", "/v1/topics"),)
    needs = KNOWN_USER
    lists_all = ("topics",)
    system: bool = False
    """Also those that the system made."""


class GetTopic(Read[Topic], kw_only=True):
    """One topic. TOPIC_NOT_FOUND."""

    routes = (Route("GET", "/v1/topics/{topic}"),)
    needs = (on_topic(PUB, SUB, GET),)
    topic: str


class CreateTopic(Request[WrittenTopic], kw_only=True):
    """Create a topic. TOPIC_EXISTS, GROUP_NOT_FOUND."""

    routes = (Route("POST", "/v1/topics", 201),)
    needs = (on_topic(CREATE),)
    topic: str
    queues: Queues | None = None
    """Queues to write to, 8 if left out; without `read_queues` also to read from."""
    read_queues: Queues | None = None
    logical_queues: LogicalQueueCount | None = None
    """Makes a static topic of so many queues in all; then no other number is given."""
    groups: GroupNames | None = None
    """Of a static topic: the broker groups that it is spread over; default: all."""
    perm: Perm = PERM_BOTH
    message_type: MessageType = NORMAL
    attributes: Attributes = {}


class AlterTopic(Request[WrittenTopic], kw_only=True):
    """Change a topic; what is left out stays. READ_BELOW_WRITE is 400. STILL_WRITTEN,
    UNREAD_MESSAGES (the masters were asked) and TOPIC_CHANGED (it was altered since they were) are
    409."""

    routes = (Route("PUT", "/v1/topics/{topic}"),)
    needs = (on_topic(UPDATE),)
    topic: str
    queues: QueuesLeft | None = None
    """Both numbers that follow."""
    read_queues: QueuesLeft | None = None
    write_queues: QueuesLeft | None = None
    logical_queues: LogicalQueueCount | None = None
    """Alone, or with `groups`: more logical queues for a static topic."""
    groups: GroupNames | None = None
    perm: Perm | None = None
    message_type: MessageType | None = None
    attributes: Attributes = {}
    force: bool = False
    """Messages in queues that are not read any more may stay unread."""


class DeleteTopic(Request[Written], kw_only=True):
    """Delete a topic with its messages. TOPIC_NOT_FOUND."""

    routes = (Route("DELETE", "/v1/topics/{topic}"),)
    needs = (on_topic(DELETE),)
    topic: str


class RemapQueue(Request[WrittenTopic], kw_only=True):
    """Have a logical queue of a static topic move to a broker group: `moving_to` is set. Asked
    again it finds it moving, or moved. STALE_GENERATION, MOVING (another move is under way) and
    WRITE_WIPED are 409, NOT_STATIC 400."""

    routes = (Route("POST", "/v1/topics/{topic}/remap"),)
    needs = (on_topic(UPDATE),)
    topic: str
    logical_queue: Annotated[int, Meta(ge=0, lt=LOGICAL_QUEUES_MAX)]
    group: GroupId
    generation: Annotated[int, Meta(ge=0, le=U32_MAX)] | None = None
    """Of the segment that it leaves; default: the present one."""
