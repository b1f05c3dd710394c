"""Consumers that lag far behind are sent to a replica (RocketMQ's suggestWhichBrokerId).

What lies more than `slow_read_bytes` (40 % of this machine's memory) below confirm is not in the
page cache any more. Reading it would push out what the others read, and replicas have the same
bytes: so the master names one with each such answer, and the replica itself as long as that holds
there. Nothing else moves: commits, locks and ends stay the master's.
"""

from paceline.types import PhysicalOffset
from paceline.wire.stream import FETCH_SUGGESTION_SHIFT
from paceline_broker.ports import Role, RoleState
from paceline_broker.service.routes import Routes


class SlowReads:
    """Whom to ask for batches far behind."""

    def __init__(self, role: Role, routes: Routes, behind_bytes: int | None) -> None:
        """`behind_bytes` None: everything is read from the master."""
        self._role = role
        self._routes = routes
        self._behind_bytes = behind_bytes
        self.named_count = 0
        """Parts of a master's answers that named a replica."""

    def floor(self, confirm: PhysicalOffset) -> int:
        """What lies below this physical offset is far behind."""
        if self._behind_bytes is None or self._role.acting is not None:
            return -1
        return confirm - self._behind_bytes

    def flags(self, topic_id: int, queue_id: int) -> int:
        """The bits of a part's flags that name a replica; 0 if there is none to name."""
        return self._replica_for(topic_id, queue_id) << FETCH_SUGGESTION_SHIFT

    def _replica_for(self, topic_id: int, queue_id: int) -> int:
        own = self._role.identity.replica_id
        if self._role.state is RoleState.REPLICA:
            return own or 0
        view = self._routes.view
        group = None if view is None else view.groups.get(self._routes.group)
        if group is None:
            return 0
        members = sorted(member for member in group.sync_state_set if member != own)
        # Each queue has its replica, so that slow queues spread.
        if not members:
            return 0
        self.named_count += 1
        return members[(topic_id + queue_id) % len(members)]
