"""What consumers that fetch from queues themselves have in common."""

from paceline.net.client_base import Client
from paceline.queues import acting_groups
from paceline.types import GroupName


class ReadingConsumer(Client):
    """It reads from an acting master too."""

    @property
    def acting_groups(self) -> frozenset[GroupName]:
        """Broker groups without a master now: an acting one is read, which may be behind (R36)."""
        view = self._cluster.view
        return frozenset() if view is None else acting_groups(view)
