"""How a member of a consumer group comes to its queues."""

from paceline.consumer.group.allocation import Allocation
from paceline.consumer.group.broadcasting import BroadcastMembership
from paceline.consumer.group.membership import MemberInfo, Membership
from paceline.consumer.group.segment_member import Join
from paceline.net.cluster import Cluster
from paceline.net.group_links import GroupLinks


def clustering(cluster: Cluster, links: GroupLinks, me: MemberInfo, allocation: Allocation) -> Join:
    """Share the queues with the other members of the group."""
    return lambda on_targets, on_owned, on_lost: Membership(
        cluster,
        links,
        me,
        allocation=allocation,
        on_targets=on_targets,
        on_owned=on_owned,
        on_lost=on_lost,
    )


def broadcasting(cluster: Cluster, links: GroupLinks, me: MemberInfo) -> Join:
    """Have all queues, whoever else is there."""
    return lambda on_targets, on_owned, on_lost: BroadcastMembership(
        cluster, links, me, on_targets=on_targets, on_owned=on_owned
    )
