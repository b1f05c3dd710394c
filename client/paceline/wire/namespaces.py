"""Pure: the names of a client that is in a namespace, and how they become full names and back.

On the wire and at nodes names are full: `shop%orders`. A program in the namespace `shop` says
`orders`, and is shown `orders`: RocketMQ's NamespaceUtil. Requests are wrapped where they are sent,
answers and views unwrapped where they are received, so whatever is between knows the program's
names only. A name that is full already is left: with it a program reaches another namespace. A
topic in no namespace cannot be named; where an answer has one it is shown as `%orders`.
"""

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import replace
from functools import cache
from typing import Any, TypeAlias

from msgspec import structs

from paceline.sorted_map import KeyT, SortedMap, ValueT, shared
from paceline.types import ConsumerGroupName, TopicId, TopicName
from paceline.wire.calls.request import Request, RequestT
from paceline.wire.cluster import ClusterView, TopicView
from paceline.wire.consumer_groups import ConsumerGroupView
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

_Change: TypeAlias = Callable[[str], str]

_TOPICS = ("topic", "topics", "inconsistent_topics")
_GROUPS = ("group", "groups", "owner")
"""Members of answers that have such names. Those of broker groups are no full names."""
_BY_TOPIC = ("filters",)
"""Members of answers whose keys are topics."""
_OF_ALL = (*SYSTEM_TOPICS, AUDIT_TOPIC)
"""Topics in no namespace, which every program knows by their names."""
_OPAQUE = ("properties", "attributes", "settings", "body")


class Listed(Mapping[KeyT, ValueT]):
    """What a client lists by its own names, and finds by full names of any namespace too."""

    def __init__(
        self,
        named: Mapping[KeyT, ValueT],
        to_own: Callable[[KeyT, ValueT | None], tuple[KeyT, ValueT | None] | None],
    ) -> None:
        """`named`: by the names that nodes know; `to_own`: how the client lists one, if at all."""
        self._to_own = to_own
        self.own: SortedMap[KeyT, ValueT] = SortedMap()
        self.full: SortedMap[KeyT, ValueT] = SortedMap()
        self._change(named)

    def _change(self, changes: Mapping[KeyT, ValueT | None]) -> None:
        listed = (self._to_own(name, value) for name, value in changes.items())
        self.own = self.own.changed(dict(each for each in listed if each is not None))
        self.full = self.full.changed(
            {name: value for name, value in changes.items() if namespace_of(name)}
        )

    def changed(self, changes: Mapping[KeyT, ValueT | None]) -> "Listed[KeyT, ValueT]":
        """As `SortedMap.changed`, by the names that nodes know."""
        following = copy(self)
        following._change(changes)
        return following

    def __getitem__(self, key: KeyT) -> ValueT:
        return self.own[key] if key in self.own else self.full[key]

    def __iter__(self) -> Iterator[KeyT]:
        return iter(self.own)

    def __len__(self) -> int:
        return len(self.own)

    def __contains__(self, key: object) -> bool:
        return key in self.own or key in self.full


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
        return replace(
            view,
            topics=Listed(view.topics, self._listed_topic),
            consumer_groups=Listed(view.consumer_groups, self._listed_group),
        )

    def _listed_topic(
        self, name: TopicName, topic: TopicView | None
    ) -> tuple[TopicName, TopicView | None] | None:
        if name not in _OF_ALL and namespace_of(name) != self.name:
            return None
        own = TopicName(self.own_topic(name))
        return own, None if topic is None else replace(topic, topic=own)

    def _listed_group(
        self, name: ConsumerGroupName, group: ConsumerGroupView | None
    ) -> tuple[ConsumerGroupName, ConsumerGroupView | None] | None:
        if namespace_of(name) != self.name:
            return None
        own = ConsumerGroupName(self.own_group(name))
        return own, None if group is None else replace(group, group=own)

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


class TopicNames:
    """What topics are called in one view after the other, by their ids; those that a view does not
    list too."""

    def __init__(self) -> None:
        self._names: dict[TopicId, TopicName] = {}
        self._topics: Mapping[TopicName, TopicView] = {}

    def of(self, view: ClusterView) -> Mapping[TopicId, TopicName]:
        """In this view; until it is asked for another one."""
        before, now = self._topics, view.topics
        if now is not before:
            self._topics = now
            if isinstance(now, Listed):  # its own names are the last word
                self._follow(now.full, before.full if isinstance(before, Listed) else {})
                self._follow(now.own, before.own if isinstance(before, Listed) else {})
            else:
                self._follow(shared(now), before)
        return self._names

    def _follow(
        self, now: SortedMap[TopicName, TopicView], before: Mapping[TopicName, TopicView]
    ) -> None:
        changes = now.changes_since(before)
        for name in changes:
            if name in before and self._names.get(before[name].topic_id) == name:
                del self._names[before[name].topic_id]
        for name, topic in changes.items():
            if topic is not None:
                self._names[topic.topic_id] = name


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
