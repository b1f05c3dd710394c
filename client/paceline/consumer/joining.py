"""What a member of a consumer group says of itself, and how it joins the others."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from paceline.allocation import Allocation
from paceline.consumer.links import GroupLinks
from paceline.consumer.membership import Membership
from paceline.consumer.queue_owner import Join
from paceline.filters import Filter, told
from paceline.net.cluster import Cluster
from paceline.net.introduction import introduction
from paceline.routing import QueueKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Me:
    """One member."""

    group: str
    client_id: str
    topics: list[str]
    mode: str
    """How it consumes: concurrent, ordered, pull, simple."""
    filters: Mapping[str, Filter]
    """Of the topics that it does not want all of."""
    message_model: str = "clustering"

    @property
    def about(self) -> dict[str, Any]:
        """What people see of us: fields of a heartbeat."""
        return {
            "message_model": self.message_model,
            "mode": self.mode,
            "filters": {topic: told(wanted) for topic, wanted in self.filters.items()},
        }

    def introduction(self) -> dict[str, Any]:
        """What each broker that we connect to is told."""
        return introduction("consumer", self.group, self.client_id, self.topics, **self.about)


def clustering(cluster: Cluster, links: GroupLinks, me: Me, allocation: Allocation) -> Join:
    """Share the queues with the other members of the group."""

    def join(
        on_targets: Callable[[set[QueueKey]], None],
        on_owned: Callable[[QueueKey], None],
        on_lost: Callable[[], None],
    ) -> Membership:
        return Membership(
            cluster,
            links,
            group=me.group,
            client_id=me.client_id,
            topics=me.topics,
            about=me.about,
            allocation=allocation,
            on_targets=on_targets,
            on_owned=on_owned,
            on_lost=on_lost,
        )

    return join
