"""Pure: the words of rights, and how a request says which of them it needs.

Resources, actions and their names are RocketMQ's (ACL 2.0). A resource that a policy names is a
text: `Topic:orders` is one topic, `Topic:orders*` are all whose names begin so, `Topic:*` all
topics, `*` everything. `Namespace:shop` are all topics and groups of that namespace.
"""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

from paceline.wire.names import AUDIT_TOPIC, SYSTEM_TOPICS, without_system_prefix


class ResourceType(StrEnum):
    """What a right is on."""

    ANY = "Any"
    CLUSTER = "Cluster"
    NAMESPACE = "Namespace"
    TOPIC = "Topic"
    GROUP = "Group"


class Action(StrEnum):
    """What a right allows."""

    ALL = "All"
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


class Decision(StrEnum):
    """Of an entry that matches."""

    ALLOW = "Allow"
    DENY = "Deny"


ALL, PUB, SUB = Action.ALL, Action.PUB, Action.SUB
CREATE, UPDATE, DELETE = Action.CREATE, Action.UPDATE, Action.DELETE
GET, LIST = Action.GET, Action.LIST


class Resource(NamedTuple):
    """One thing that a request is about."""

    type: ResourceType
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


class Need(NamedTuple):
    """One of these actions, on each resource that stands in `field` of the request."""

    type: ResourceType
    actions: tuple[Action, ...]
    field: str = ""
    """Names of topics or groups, a row or a list of them; rows may have topic ids. Empty: the
    cluster."""


Needs: TypeAlias = tuple[Need, ...]

ANYBODY: Needs = ()
"""Also who has not said who he is: it tells nothing of what users have."""
KNOWN_USER: Needs = (Need(ResourceType.ANY, ()),)
"""Any user; what else is needed, the handler checks by the content of the request."""


def on_cluster(*actions: Action) -> Need:
    """On the cluster as a whole."""
    return Need(ResourceType.CLUSTER, actions)


def on_topic(*actions: Action, field: str = "topic") -> Need:
    """On each topic in `field`; on the consumer group whose retries or dead letters a topic has."""
    return Need(ResourceType.TOPIC, actions, field)


def on_group(*actions: Action, field: str = "group") -> Need:
    """On each consumer group in `field`."""
    return Need(ResourceType.GROUP, actions, field)


SEE_TOPIC = (PUB, SUB, GET)
"""Whoever uses a topic or may look at it sees that it is there."""
SEE_GROUP = (SUB, GET)
TRANSACT: Needs = (on_group(PUB, SUB),)
"""Of the producer group of a transaction: of whoever begins it, and whoever is asked about it."""
SEE_CLUSTER: Needs = (on_cluster(GET, LIST),)
CHANGE_CLUSTER: Needs = (on_cluster(UPDATE),)


def topic_resource(name: str) -> Resource:
    """The topic; of retries and dead letters the consumer group, as in RocketMQ."""
    prefix, rest = without_system_prefix(name)
    return Resource(ResourceType.GROUP if prefix else ResourceType.TOPIC, rest)


SHARED_RESOURCES = frozenset(map(topic_resource, (*SYSTEM_TOPICS, AUDIT_TOPIC)))
"""Each holds messages of many topics, so a right on it is given by its full name only."""


def named(value: object) -> Iterator[str | int]:
    """The names, or topic ids, in a field of a request: one, a row with one, or a list of them."""
    if isinstance(value, str | int):
        yield value
    elif isinstance(value, Iterable):
        for each in value:
            yield from named(each)
    elif value is not None:
        row: Any = value
        name = getattr(row, "topic", None)
        yield row.topic_id if name is None else name
