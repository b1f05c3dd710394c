"""Pure: the view that controllers publish, made from the one before it, and what changed lately.

It is no part of the replicated state: a machine that was restored knows of no changes, and whoever
asks for them is given the whole view. Of each name only the version of its last change is kept.
Whoever has the view of any version up to the present one is led to the present one by the present
entries of the names that changed since: an entry that it has already is replaced by itself.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Generic

from paceline.sorted_map import KeyT, shared
from paceline.types import ConsumerGroupName, GroupName, TopicName
from paceline.wire.cluster import ClusterView, GroupView, TopicView
from paceline.wire.views.changes import ViewChanges
from paceline.wire.views.scope import Scope
from paceline_controller.state.changes import Changed
from paceline_controller.state.model import State

NAMES_MAX = 10_000
"""Kept in all; some 1 MiB. A receiver lags by one long poll, and that many changes take 30 s."""


class Published:
    """Of one machine."""

    def __init__(self, version: int = 0) -> None:
        """`version`: the present one; of what came before nothing is known."""
        self._view: ClusterView | None = None
        """Of the version at which it was asked for last."""
        self._known_from = version
        self._rights_version = version
        self._for_all_version = version
        self._groups: _Latest[GroupName] = _Latest()
        self._topics: _Latest[TopicName] = _Latest()
        self._consumer_groups: _Latest[ConsumerGroupName] = _Latest()

    def add(self, version: int, changed: Changed) -> None:
        """What led from the version before to this one."""
        if changed.concerns_all:
            self._for_all_version = version
        if changed.is_all:
            self._known_from = version
            for latest in self._all:
                latest.clear()
            return
        if changed.are_rights:
            self._rights_version = version
        self._groups.add(changed.groups, version)
        self._topics.add(changed.topics, version)
        self._consumer_groups.add(changed.consumer_groups, version)
        while sum(map(len, self._all)) > NAMES_MAX:
            oldest = min((each for each in self._all if len(each)), key=_Latest.oldest)
            self._known_from = max(self._known_from, oldest.forget_oldest())

    def view(self, state: State, controllers: tuple[str, ...]) -> ClusterView:
        """As `Machine.view`."""
        view = self._view
        if view is None or view.version != state.version:
            changed = None if view is None else self.since(view.version)
            view = self._view = made(state, controllers, view, changed)
        return view

    def changes_since(
        self,
        state: State,
        version: int,
        controllers: tuple[str, ...],
        scope: Scope | None,
    ) -> ViewChanges | None:
        """As `Machine.changes_since`."""
        changed, view = self.since(version, scope), self.view(state, controllers)
        if changed is None or version > view.version:
            return None
        return ViewChanges(
            since=version,
            head=replace(view, groups={}, topics={}, consumer_groups={}),
            groups={name: view.groups.get(name) for name in sorted(changed.groups)},
            topics={name: view.topics.get(name) for name in sorted(changed.topics)},
            consumer_groups={
                name: view.consumer_groups.get(name) for name in sorted(changed.consumer_groups)
            },
            are_rights=changed.are_rights,
        )

    def since(self, version: int, scope: Scope | None = None) -> Changed | None:
        """What changed after that version, in that scope (None: in all); None: not all is known."""
        if version < self._known_from:
            return None
        return Changed(
            groups=self._groups.after(version, None),
            topics=self._topics.after(version, None if scope is None else scope.topics),
            consumer_groups=self._consumer_groups.after(
                version, None if scope is None else scope.consumer_groups
            ),
            are_rights=version < self._rights_version,
        )

    def concerns(self, version: int, scope: Scope) -> bool:
        """Whether anything changed after that version that a client of this scope is told of."""
        if version < max(self._known_from, self._for_all_version):
            return True
        return bool(
            self._topics.after(version, scope.topics)
            or self._consumer_groups.after(version, scope.consumer_groups)
        )

    @property
    def _all(self) -> "tuple[_Latest[Any], ...]":
        return self._groups, self._topics, self._consumer_groups


class _Latest(Generic[KeyT]):
    """Versions of the last changes by name, the oldest first."""

    def __init__(self) -> None:
        self._versions: dict[KeyT, int] = {}

    def __len__(self) -> int:
        return len(self._versions)

    def clear(self) -> None:
        self._versions.clear()

    def add(self, names: Iterable[KeyT], version: int) -> None:
        for name in names:
            self._versions.pop(name, None)
            self._versions[name] = version

    def oldest(self) -> int:
        return next(iter(self._versions.values()))

    def forget_oldest(self) -> int:
        """The version of what is not known any more."""
        return self._versions.pop(next(iter(self._versions)))

    def after(self, version: int, names: Iterable[KeyT] | None) -> set[KeyT]:
        """Those that changed after a version, of these names, or of all."""
        if names is not None:
            return {name for name in names if self._versions.get(name, -1) > version}
        found = set()
        for name, of in reversed(self._versions.items()):
            if of <= version:
                break
            found.add(name)
        return found


def made(
    state: State,
    controllers: tuple[str, ...],
    before: ClusterView | None = None,
    changed: Changed | None = None,
) -> ClusterView:
    """The view of a state. With an earlier view and what changed since only that is made."""
    if before is None or changed is None:
        before = ClusterView(cluster_id="", version=0)
        changed = Changed(
            groups=set(state.groups),
            topics=set(state.topics),
            consumer_groups=set(state.consumer_groups),
        )
    groups = {name: _group(state, name) for name in changed.groups}
    topics = {name: _topic(state, name) for name in changed.topics}
    consumers = {name: state.consumer_groups.get(name) for name in changed.consumer_groups}
    return ClusterView(
        cluster_id=state.cluster_id,
        version=state.version,
        groups=shared(before.groups).changed(groups),
        topics=shared(before.topics).changed(topics),
        consumer_groups=shared(before.consumer_groups).changed(consumers),
        controllers=tuple(state.controllers) or controllers,
        controllers_generation=state.controllers_generation,
        replaces=tuple(state.replaced_clusters),
        topic_id_max=state.next_topic_id - 1,
    )


def _group(state: State, name: GroupName) -> GroupView | None:
    group = state.groups.get(name)
    return None if group is None else group.view()


def _topic(state: State, name: TopicName) -> TopicView | None:
    topic = state.topics.get(name)
    if topic is None:
        return None
    groups = (state.groups.get(group) for group in topic.write_queues)
    return topic.view({each.group for each in groups if each and each.is_write_wiped})
