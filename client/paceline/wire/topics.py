"""Pure: what a topic is like: permissions, message type, attributes; with its JSON form."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias, TypeGuard

from msgspec import Meta

from paceline.errors import BadRequestError, MessageTypeError
from paceline.types import GroupName, TopicId, TopicName
from paceline.wire.calls.request import Text, matching
from paceline.wire.names import REPLY_TOPIC
from paceline.wire.static_topics import LogicalQueue

PERM_WRITE: Literal[2] = 2
PERM_READ: Literal[4] = 4
"""RocketMQ's bits."""
Perm: TypeAlias = Literal[0, 2, 4, 6]
PERM_BOTH: Perm = 6
NORMAL: Literal["NORMAL"] = "NORMAL"
FIFO: Literal["FIFO"] = "FIFO"
DELAY: Literal["DELAY"] = "DELAY"
TRANSACTION: Literal["TRANSACTION"] = "TRANSACTION"
PRIORITY: Literal["PRIORITY"] = "PRIORITY"
MIXED: Literal["MIXED"] = "MIXED"
MESSAGE_TYPES: tuple[str, ...] = (NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY, MIXED)
"""RocketMQ's message.type: what a topic takes. FIFO: each message has a key or names its queue.
PRIORITY: a message's priority chooses its queue (`queue_of_priority`); it may be delayed, too."""
MessageType: TypeAlias = Literal["NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "MIXED"]
ATTRIBUTES_MAX = 32
ATTRIBUTE_PATTERN = r"[a-z][a-z0-9._-]{0,63}"
Attributes: TypeAlias = Annotated[
    dict[Annotated[str, matching(ATTRIBUTE_PATTERN)], Text | None], Meta(max_length=ATTRIBUTES_MAX)
]
"""Name -> text; null takes an attribute away."""
PRIORITY_MAX = 2**31 - 1
_PERM_LETTERS = {0: "---", PERM_READ: "R--", PERM_WRITE: "-W-", PERM_BOTH: "RW-"}


def is_priority(value: object) -> TypeGuard[int]:
    """Whether it is an integer from 0 to `PRIORITY_MAX`."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= PRIORITY_MAX


def queue_of_priority(priority: int, queues: int) -> int:
    """Which of a broker group's queues has the messages of a priority: 0 has the lowest, the last
    all from its number on. RocketMQ's rule; simple consumers are given higher queues first."""
    return min(priority, queues - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicView:
    """One topic: how many queues it has in each broker group (queue ids 0 .. count-1 there)."""

    topic: TopicName
    topic_id: TopicId
    queues: Mapping[GroupName, int]
    """The larger one of both numbers that follow."""
    read_queues: Mapping[GroupName, int] = field(default_factory=dict)
    """What consumers read; left out, it is `queues`."""
    write_queues: Mapping[GroupName, int] = field(default_factory=dict)
    """What producers send to; below `read_queues` while the topic shrinks. Left out: `queues`."""
    perm: int = PERM_BOTH
    """RocketMQ's: 2 = write, 4 = read, 6 = both."""
    message_type: str = NORMAL
    attributes: Mapping[str, str] = field(default_factory=dict)
    is_system: bool = False
    """Made and written by brokers only."""
    logical_queues: tuple[LogicalQueue, ...] = ()
    """Of a static topic, by number; empty for all others. The numbers of queues of each broker
    group are then how many segments were ever made there."""

    def __post_init__(self) -> None:
        for name in ("read_queues", "write_queues"):
            if not getattr(self, name):
                object.__setattr__(self, name, self.queues)

    @property
    def is_for_clients(self) -> bool:
        """Whether clients may send to it: any but the system's own, and replies."""
        return not self.is_system or self.topic == REPLY_TOPIC

    @property
    def is_static(self) -> bool:
        return bool(self.logical_queues)

    @property
    def can_read(self) -> bool:
        return bool(self.perm & PERM_READ)

    @property
    def can_write(self) -> bool:
        return bool(self.perm & PERM_WRITE)

    @property
    def perm_letters(self) -> str:
        """As RocketMQ's tools show it."""
        return _PERM_LETTERS[self.perm]

    def to_json(self) -> dict[str, Any]:
        document = {
            "topic": self.topic,
            "topic_id": self.topic_id,
            "queues": dict(sorted(self.queues.items())),
            "read_queues": dict(sorted(self.read_queues.items())),
            "write_queues": dict(sorted(self.write_queues.items())),
            "perm": self.perm,
            "message_type": self.message_type,
            "attributes": dict(sorted(self.attributes.items())),
            "is_system": self.is_system,
        }
        if self.logical_queues:
            document["logical_queues"] = [queue.to_json() for queue in self.logical_queues]
        return document

    def packed(self) -> dict[str, Any]:
        """As `to_json` without what `from_json` supplies: a view may hold 15,000 topics."""
        document = self.to_json()
        for name, usual in (
            ("read_queues", document["queues"]),
            ("write_queues", document["queues"]),
            ("perm", PERM_BOTH),
            ("message_type", NORMAL),
            ("attributes", {}),
            ("is_system", False),
        ):
            if document[name] == usual:
                del document[name]
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "TopicView":
        """Members that are left out have their defaults."""
        return cls(
            topic=document["topic"],
            topic_id=document["topic_id"],
            queues=dict(document["queues"]),
            read_queues=dict(document.get("read_queues", {})),
            write_queues=dict(document.get("write_queues", {})),
            perm=document.get("perm", PERM_BOTH),
            message_type=document.get("message_type", NORMAL),
            attributes=dict(document.get("attributes", {})),
            is_system=document.get("is_system", False),
            logical_queues=tuple(
                LogicalQueue.from_json(queue) for queue in document.get("logical_queues", ())
            ),
        )


def check_labels(attributes: dict[str, str | None]) -> dict[str, str | None]:
    """Attributes that a client gives a topic. Here they are labels; RocketMQ's (cleanup.policy,
    queue.type) and Kafka's settings have a dot in their names. One that is taken and does nothing
    would deceive: BadRequestError. What has been stored may be taken away."""
    for name, value in attributes.items():
        if "." in name and value is not None:
            raise BadRequestError(
                f"topics have no setting {name}: {_INSTEAD.get(name, 'it would change nothing')}"
                "; attributes are labels, whose names have no dot",
                field="attributes",
            )
    return attributes


_INSTEAD = {
    "cleanup.policy": "messages are deleted by age and size, and compaction is not supported",
    "message.type": "say message_type (--message-type) instead",
    "queue.type": "all topics have queues of one type",
    "reserve.time": "brokers keep messages for file_reserved_time_ms, which is their setting",
}
"""What somebody who names a setting of RocketMQ's topics should know."""


def no_priorities(topic: TopicView, **details: str) -> MessageTypeError:
    """What is wrong with a priority, where the topic's type is not PRIORITY."""
    return MessageTypeError(
        f"topic {topic.topic} is of type {topic.message_type}, and takes no priorities: send"
        " without one, or have its operator give it type PRIORITY",
        topic=topic.topic,
        message_type=topic.message_type,
        **details,
    )
