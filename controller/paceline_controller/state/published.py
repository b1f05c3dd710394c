"""Pure: the view that controllers publish, made from the one before it, and what changed lately.

It is no part of the replicated state: a machine that was restored knows of no changes, and whoever
asks for them is given the whole view. Of the changes of each version only names are kept. Whoever
has the view of any version up to the present one is led to the present one by the present entries
of the names that changed since: an entry that it has already is replaced by itself.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from paceline.sorted_map import shared
from paceline.types import GroupName, TopicName
from paceline.wire.cluster import ClusterView, GroupView, TopicView
from paceline.wire.views.changes import ViewChanges
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
        self._kept: deque[tuple[int, Changed]] = deque()
        self._names = 0

    def add(self, version: int, changed: Changed) -> None:
        """What led from the version before to this one."""
        self._kept.append((version, changed))
        self._names += changed.count
        while self._names > NAMES_MAX or (changed.is_all and self._kept):
            self._known_from, oldest = self._kept.popleft()
            self._names -= oldest.count

    def view(self, state: State, controllers: tuple[str, ...]) -> ClusterView:
        """As `Machine.view`."""
        view = self._view
        if view is None or view.version != state.version:
            changed = None if view is None else self._since(view.version)
            view = self._view = made(state, controllers, view, changed)
        return view

    def changes_since(
        self, state: State, version: int, controllers: tuple[str, ...]
    ) -> ViewChanges | None:
        """As `Machine.changes_since`."""
        changed, view = self._since(version), self.view(state, controllers)
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

    def _since(self, version: int) -> Changed | None:
        """What changed after that version; None: not all is known."""
        if version < self._known_from:
            return None
        found = Changed()
        for changed in self._newer(version):
            found.add(changed)
        return found

    def _newer(self, version: int) -> Iterator[Changed]:
        for of, changed in reversed(self._kept):
            if of <= version:
                return
            yield changed


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
