"""What the operator has set for a consumer group, as its members obey it.

Brokers refuse what they can see (heartbeats, receives). Fetches name no group, so that a switched
off group reads nothing more is up to its members: they let go of all queues until they may again.
"""

import logging

from paceline.net.cluster import Cluster
from paceline.types import ConsumerGroupName
from paceline.wire.cluster import ClusterView
from paceline.wire.consumer_groups import ConsumerGroupSettings

log = logging.getLogger("paceline.client")

_USUAL = ConsumerGroupSettings()


def settings_of(view: ClusterView | None, group: str) -> ConsumerGroupSettings:
    """The settings of a consumer group; the usual ones while it is not on record."""
    found = None if view is None else view.consumer_groups.get(ConsumerGroupName(group))
    return _USUAL if found is None else found.settings


def consume_timeout_s(cluster: Cluster, group: str, own_ms: int | None) -> float:
    """How long a listener call may take: as the member says, else as the group does."""
    if own_ms is not None:
        return own_ms / 1000
    return settings_of(cluster.view, group).consume_timeout_minute * 60.0


class Permission:
    """Whether a member may consume; tells the log when that changes.

    Both the view and the brokers say it, and the later one to hear of a change counts: a member
    that hears nothing of the controllers stops at its next heartbeat.
    """

    def __init__(self, group: str, *, is_broadcasting: bool = False) -> None:
        self._group = group
        self._is_broadcasting = is_broadcasting
        self._was_given = True
        self.is_refused = False
        """A heartbeat was, with NO_PERMISSION, and none was taken since."""

    def is_given(self, view: ClusterView) -> bool:
        """By `consume_enable`, and for broadcasting `consume_broadcast_enable`."""
        name = settings_of(view, self._group).forbidden_by(is_broadcasting=self._is_broadcasting)
        is_given = not self.is_refused and name is None
        if is_given is not self._was_given:
            self._was_given = is_given
            if is_given:
                log.warning("consumer_group_on", extra={"consumer_group": self._group})
            else:
                about = {"consumer_group": self._group, "why": self._why_not(name)}
                log.warning("consumer_group_off", extra=about)
        return is_given

    def _why_not(self, name: str | None) -> str:
        if name is None:
            return "brokers refuse its members (NO_PERMISSION)"
        return (
            f"{name} is false; its operator can change that (paceline group alter {self._group}"
            f" --set {name}=true)"
        )
