"""What tests of group records share with others."""

from tests.support.service.fakes import a_view

from paceline.wire.cluster import ClusterView

RETRIES = "%RETRY%g"


def with_group(version: int, *, topic_id: int) -> ClusterView:
    """The topic of its retries has that id; those between were deleted."""
    queues = {"orders": 4, **{f"gone{number}": 1 for number in range(2, topic_id)}, RETRIES: 1}
    view = a_view(version=version, topics=queues)
    topics = {name: topic for name, topic in view.topics.items() if not name.startswith("gone")}
    return ClusterView(
        cluster_id=view.cluster_id, version=version, groups=view.groups, topics=topics
    )
