"""Cluster views as controllers tell them."""

from dataclasses import replace

from paceline.sorted_map import shared
from paceline.wire.cluster import ClusterView
from paceline.wire.views.changes import ViewChanges


def view_changes(before: ClusterView, view: ClusterView) -> ViewChanges:
    """What leads from one view to a later one."""
    return ViewChanges(
        since=before.version,
        head=replace(view, groups={}, topics={}, consumer_groups={}),
        groups=shared(view.groups).changes_since(before.groups),
        topics=shared(view.topics).changes_since(before.topics),
        consumer_groups=shared(view.consumer_groups).changes_since(before.consumer_groups),
    )
