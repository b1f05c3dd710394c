"""Pure: which topics and consumer groups of a cluster view a client is told of."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from paceline.errors import BadRequestError
from paceline.sorted_map import KeyT, SortedMap, ValueT
from paceline.types import ConsumerGroupName, TopicName
from paceline.wire.cluster import ClusterView
from paceline.wire.views.changes import ViewChanges

SCOPE_BYTES_MAX = 4_000
"""Of all names together: they stand in the head of a request, which has at most 8,190 bytes. A
client that uses more is told of everything."""
TOPICS, CONSUMER_GROUPS = "topics", "consumer_groups"
"""Parameters of `/v1/watch`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Names as nodes know them. Broker groups are told of all."""

    topics: frozenset[TopicName] = frozenset()
    consumer_groups: frozenset[ConsumerGroupName] = frozenset()

    @property
    def is_too_long(self) -> bool:
        return sum(map(len, self.topics | self.consumer_groups)) > SCOPE_BYTES_MAX

    def covers(self, other: "Scope") -> bool:
        return self.topics >= other.topics and self.consumer_groups >= other.consumer_groups

    def with_(self, other: "Scope") -> "Scope":
        return Scope(
            topics=self.topics | other.topics,
            consumer_groups=self.consumer_groups | other.consumer_groups,
        )

    def view(self, view: ClusterView) -> ClusterView:
        """What it shows of a view."""
        return replace(
            view,
            topics=_only(view.topics, self.topics),
            consumer_groups=_only(view.consumer_groups, self.consumer_groups),
        )

    def changes(self, changes: ViewChanges) -> ViewChanges:
        """What it shows of changes."""
        return replace(
            changes,
            topics=_there(changes.topics, self.topics),
            consumer_groups=_there(changes.consumer_groups, self.consumer_groups),
        )

    def parameters(self) -> dict[str, str]:
        """The query of a request."""
        return {
            TOPICS: ",".join(sorted(self.topics)),
            CONSUMER_GROUPS: ",".join(sorted(self.consumer_groups)),
        }

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, str]) -> "Scope | None":
        """None: everything is asked for. BadRequestError: more names than a scope may have."""
        if TOPICS not in parameters and CONSUMER_GROUPS not in parameters:
            return None
        scope = cls(
            topics=frozenset(map(TopicName, _names(parameters.get(TOPICS, "")))),
            consumer_groups=frozenset(
                map(ConsumerGroupName, _names(parameters.get(CONSUMER_GROUPS, "")))
            ),
        )
        if scope.is_too_long:
            raise BadRequestError(
                f"the names of topics and consumer groups have over {SCOPE_BYTES_MAX} bytes:"
                " leave both parameters out to be told of all"
            )
        return scope


def _only(entries: Mapping[KeyT, ValueT], names: Iterable[KeyT]) -> SortedMap[KeyT, ValueT]:
    return SortedMap(_there(entries, names))


def _there(entries: Mapping[KeyT, ValueT], names: Iterable[KeyT]) -> dict[KeyT, ValueT]:
    return {name: entries[name] for name in names if name in entries}


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]
