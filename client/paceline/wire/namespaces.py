"""Pure: the names of a client that is in a namespace, and how they become full names and back.

On the wire and at nodes names are full: `shop%orders`. A program in the namespace `shop` says
`orders`, and is shown `orders`: RocketMQ's NamespaceUtil. Requests are wrapped where they are sent,
answers and views unwrapped where they are received, so whatever is between knows the program's
names only. A name that is full already is left: with it a program reaches another namespace. A
topic in no namespace cannot be named; where an answer has one it is shown as `%orders`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, TypeAlias, TypeVar

from msgspec import structs

from paceline.types import ConsumerGroupName, TopicId, TopicName
from paceline.wire.calls.request import Request, RequestT
from paceline.wire.cluster import ClusterView
from paceline.wire.names import (
    AUDIT_TOPIC,
    DELAY_GROUP,
    NAMESPACE_END,
    SYSTEM_TOPICS,
    check_namespace,
    is_system_topic,
    namespace_of,
    without_system_prefix,
)
from paceline.wire.rights import ResourceType

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")
_Change: TypeAlias = Callable[[str], str]

_TOPICS = ("topic", "topics", "inconsistent_topics")
_GROUPS = ("group", "groups", "owner")
"""Members of answers that have such names. Those of broker groups are no full names."""
_BY_TOPIC = ("filters",)
"""Members of answers whose keys are topics."""
_OF_ALL = (*SYSTEM_TOPICS, AUDIT_TOPIC)
"""Topics in no namespace, which every program knows by their names."""
_OPAQUE = ("properties", "attributes", "settings", "body")


class Listed(dict[KeyT, ValueT]):
    """What a client lists by its own names, and finds by full names of any namespace too."""

    def __init__(self, own: Mapping[KeyT, ValueT], full: Mapping[KeyT, ValueT]) -> None:
        super().__init__(own)
        self.full = full

    def __missing__(self, key: KeyT) -> ValueT:
        return self.full[key]

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or key in self.full

    def get(self, key: KeyT, default: Any = None) -> Any:
        return super().get(key) or self.full.get(key, default)


class Namespace:
    """The namespace of a client; "": none, and all names stay as they are."""

    def __init__(self, name: str = "") -> None:
        """BadNameError."""
        self.name = name and check_namespace(name)

    # -- names ------------------------------------------------------------------------------------

    def full_topic(self, name: str) -> str:
        """A topic as nodes know it."""
        prefix, rest = without_system_prefix(name)
        if prefix:
            return prefix + self.full_group(rest)
        return name if is_system_topic(name) else self._full(name)

    def full_group(self, name: str) -> str:
        """A consumer group as nodes know it."""
        return name if name == DELAY_GROUP else self._full(name)

    def own_topic(self, name: str) -> str:
        """A topic as the program knows it."""
        if not self.name or not name or name in _OF_ALL:
            return name
        prefix, rest = without_system_prefix(name)
        return self.own_group(name) if namespace_of(name) else prefix + NAMESPACE_END + rest

    def own_group(self, name: str) -> str:
        """A consumer group as the program knows it. The names of broker groups stay."""
        if not self.name or namespace_of(name) != self.name:
            return name
        prefix, rest = without_system_prefix(name)
        return prefix + rest.removeprefix(self.name + NAMESPACE_END)

    def _full(self, name: str) -> str:
        if not self.name:
            return name
        if NAMESPACE_END in name:
            return name.removeprefix(NAMESPACE_END)
        return f"{self.name}{NAMESPACE_END}{name}"

    # -- what is sent and received ----------------------------------------------------------------

    def request(self, request: RequestT) -> RequestT:
        """With full names."""
        if not self.name:
            return request
        changes: dict[str, Any] = {}
        for field, type_ in _named_fields(type(request)):
            full = self.full_topic if type_ is ResourceType.TOPIC else self.full_group
            changes[field] = _changed(getattr(request, field), full)
        return structs.replace(request, **changes)

    def answer(self, request: Request[Any], document: Any) -> Any:
        """The JSON that answers a request, with the program's names; lists without the rows of
        other namespaces."""
        if not self.name or not isinstance(document, dict):
            return document
        kept = {
            name: [row for row in document[name] if self._is_of(row)]
            for name in request.lists_all
            if name in document
        }
        return self._own_values({**document, **kept})

    def view(self, view: ClusterView) -> ClusterView:
        """What the program sees of the cluster: its namespace, and topics of the system."""
        if not self.name:
            return view
        topics = {
            TopicName(own): replace(topic, topic=TopicName(own))
            for name, topic in view.topics.items()
            if name in _OF_ALL or namespace_of(name) == self.name
            for own in (self.own_topic(name),)
        }
        groups = {
            ConsumerGroupName(own): replace(group, group=ConsumerGroupName(own))
            for name, group in view.consumer_groups.items()
            if namespace_of(name) == self.name
            for own in (self.own_group(name),)
        }
        return replace(
            view,
            topics=Listed(topics, _in_namespaces(view.topics)),
            consumer_groups=Listed(groups, _in_namespaces(view.consumer_groups)),
        )

    def _is_of(self, row: Mapping[str, Any]) -> bool:
        name = row.get("topic") or row.get("group") or ""
        return namespace_of(name) == self.name

    def _own_values(self, value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            if key in _BY_TOPIC:
                return {self.own_topic(name): each for name, each in value.items()}
            return {name: self._own_value(each, name) for name, each in value.items()}
        if isinstance(value, list):
            return [self._own_value(each, key) for each in value]
        return value

    def _own_value(self, value: Any, key: str) -> Any:
        if isinstance(value, str):
            if key in _TOPICS:
                return self.own_topic(value)
            return self.own_group(value) if key in _GROUPS else value
        return value if key in _OPAQUE else self._own_values(value, key)


def topic_names(view: ClusterView) -> dict[TopicId, TopicName]:
    """What topics are called in a view, by their ids; those that it does not list too."""
    topics = view.topics
    others: Iterable[Any] = topics.full.values() if isinstance(topics, Listed) else ()
    return {topic.topic_id: topic.topic for topic in (*others, *topics.values())}


def _in_namespaces(named: Mapping[KeyT, ValueT]) -> dict[KeyT, ValueT]:
    return {name: each for name, each in named.items() if namespace_of(str(name))}


@cache
def _named_fields(type_: type[Request[Any]]) -> tuple[tuple[str, ResourceType], ...]:
    """The fields of a request that have names of topics or consumer groups."""
    needs = (*(type_.needs or ()), *type_.also_names)
    return tuple(dict.fromkeys((need.field, need.type) for need in needs if need.field))


def _changed(value: Any, change: _Change) -> Any:
    """The names in a field: one, the keys of a table, in a row, or a list of them."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(name): each for name, each in value.items()}
    if isinstance(value, list):
        return [_changed(each, change) for each in value]
    topic = getattr(value, "topic", None)
    return value if topic is None else structs.replace(value, topic=change(topic))
