"""What consumers that fetch from queues themselves have in common."""

from functools import partial

from paceline.consumer.not_started import OnError
from paceline.net.client_base import Client
from paceline.net.group_links import GroupLinks
from paceline.net.introduction import Who
from paceline.queues import acting_groups
from paceline.types import GroupName


class ReadingConsumer(Client):
    """It reads from an acting master too."""

    def _make_links(self, who: Who, on_error: OnError | None) -> GroupLinks:
        """`on_error` is told of rights that are lacking; no queue goes with them."""
        return GroupLinks(self._cluster, who, on_error and partial(on_error, None))

    @property
    def acting_groups(self) -> frozenset[GroupName]:
        """Broker groups without a master now: an acting one is read, which may be behind (R36)."""
        view = self._cluster.view
        return frozenset() if view is None else acting_groups(view)
