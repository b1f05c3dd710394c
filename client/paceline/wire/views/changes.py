"""Pure: what leads from one cluster view to a later one, with its JSON form.

The document is that of a view whose lists have only the entries that came or became others since
the version `since`; `gone` names those that there are no more. Each entry is whole and is that of
the new version, so the changes lead from every version from `since` on to the new one. Older than
that is a gap: its receiver asks for the whole view (R38).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from paceline.errors import BadRequestError
from paceline.sorted_map import KeyT, ValueT, shared
from paceline.types import ConsumerGroupName, GroupName, TopicName
from paceline.wire.cluster import ClusterView, GroupView, TopicView
from paceline.wire.consumer_groups import ConsumerGroupView
from paceline.wire.namespaces import Listed

SINCE = "since"
"""Member that tells changes from a view."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewChanges:
    """By names the entries as they are now; None: gone."""

    since: int
    head: ClusterView
    """The view that it leads to, without its entries."""
    groups: Mapping[GroupName, GroupView | None]
    topics: Mapping[TopicName, TopicView | None]
    consumer_groups: Mapping[ConsumerGroupName, ConsumerGroupView | None]
    are_rights: bool = False
    """Users may be shown others than before: who is not shown all needs the whole view. It is not
    sent."""

    def follows(self, view: ClusterView | None) -> bool:
        """Whether it leads to a newer view from this one."""
        return (
            view is not None
            and view.cluster_id == self.head.cluster_id
            and self.since <= view.version < self.head.version
        )

    def is_old(self, view: ClusterView) -> bool:
        """Whether all that it tells is in this view."""
        return view.cluster_id == self.head.cluster_id and self.head.version <= view.version

    def applied_to(self, view: ClusterView) -> ClusterView:
        """The view that it leads to from one that it follows; both share what did not change."""
        assert self.follows(view)
        return replace(
            self.head,
            groups=shared(view.groups).changed(self.groups),
            topics=_changed(view.topics, self.topics),
            consumer_groups=_changed(view.consumer_groups, self.consumer_groups),
        )

    def limited(
        self,
        *,
        sees_topic: Callable[[str], bool],
        sees_group: Callable[[str], bool],
        namespace: str,
    ) -> "ViewChanges":
        """Of these topics and consumer groups and no others, for a user of that namespace."""
        return replace(
            self,
            head=replace(self.head, namespace=namespace),
            topics={name: topic for name, topic in self.topics.items() if sees_topic(name)},
            consumer_groups={
                name: group for name, group in self.consumer_groups.items() if sees_group(name)
            },
        )

    def to_json(self) -> dict[str, Any]:
        part = replace(
            self.head,
            groups=_there(self.groups),
            topics=_there(self.topics),
            consumer_groups=_there(self.consumer_groups),
        )
        return {**part.to_json(), **self.head_json()}

    def head_json(self) -> dict[str, Any]:
        """As `to_json`, without the entries."""
        gone = {
            "groups": _gone(self.groups),
            "topics": _gone(self.topics),
            "consumer_groups": _gone(self.consumer_groups),
        }
        return {SINCE: self.since, **self.head.head_json(), "gone": gone}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "ViewChanges":
        """Raises BadRequestError on any other shape."""
        part = ClusterView.from_json(document)
        try:
            since, gone = document[SINCE], document["gone"]
            return cls(
                since=since,
                head=replace(part, groups={}, topics={}, consumer_groups={}),
                groups={**dict.fromkeys(gone["groups"]), **part.groups},
                topics={**dict.fromkeys(gone["topics"]), **part.topics},
                consumer_groups={
                    **dict.fromkeys(gone["consumer_groups"]),
                    **part.consumer_groups,
                },
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise BadRequestError(f"not changes of a cluster view: {error!r}") from error


def _changed(
    entries: Mapping[KeyT, ValueT], changes: Mapping[KeyT, ValueT | None]
) -> Mapping[KeyT, ValueT]:
    known = entries if isinstance(entries, Listed) else shared(entries)
    return known.changed(changes)


def _there(entries: Mapping[Any, Any]) -> dict[Any, Any]:
    return {name: entry for name, entry in entries.items() if entry is not None}


def _gone(entries: Mapping[Any, Any]) -> list[Any]:
    return [name for name, entry in entries.items() if entry is None]
