"""Pure: a nearly caught-up replica delays confirm until it can join the sync state set.

To join, a replica's position must be at or above confirm (R10). One whose disk is slower than those
of the set is always a flush late while the load is steady, so it would stay outside until the load
pauses, and with it a disk that could hold what is acknowledged. So confirm waits for one such
replica at a time, as if it were a member already: it asks for more acknowledgements than the set
does, never for fewer, and ends within `WAIT_MS_MAX`, as the replica is proposed or given up for a
while. Owner: `MasterReplication`; times are its running time.
"""

from collections.abc import Collection, Iterable

from paceline.types import PhysicalOffset, ReplicaId
from paceline_broker.replication.master.lag import Paces
from paceline_broker.replication.master.peer import Peer

NEAR_LAG_MS = 200
"""A member that lags so far is no trouble to anybody; ticks come every 100 ms."""
PATIENCE_MS = 300
"""So long it has been near, and acknowledged several times: what is left is no coincidence."""
WAIT_MS_MAX = 300
"""It has what confirm is now within its lag, or is not as near as it seemed."""
REST_MS = 10_000


class Approach:
    """Whom confirm waits for, though it is no member."""

    def __init__(self) -> None:
        self.replica: ReplicaId | None = None
        self._near_ms: dict[ReplicaId, int] = {}
        self._waited_ms = 0
        self._rest_ms = 0

    def ran(self, elapsed_ms: int, near: Collection[ReplicaId]) -> bool:
        """Time has passed; `near`: who could join but for confirm. True: `replica` has changed."""
        before = self.replica
        self._near_ms = {one: self._near_ms.get(one, 0) + elapsed_ms for one in near}
        self._rest_ms = max(0, self._rest_ms - elapsed_ms)
        if before is not None:
            self._waited_ms += elapsed_ms
            if before not in near:
                self.replica = None
            elif self._waited_ms >= WAIT_MS_MAX:
                self.replica, self._rest_ms = None, REST_MS
        elif self._rest_ms == 0:
            patient = [one for one, near_ms in self._near_ms.items() if near_ms > PATIENCE_MS]
            if patient:
                self.replica, self._waited_ms = min(patient), 0
        return self.replica != before

    def ended(self) -> None:
        """It is proposed as a member, or has left."""
        self.replica = None
        self._near_ms.clear()


def may_join(peer: Peer, paces: Paces, *, start_end: PhysicalOffset) -> bool:
    """Whether a replica has earned a place in the set, but for confirm (R10, R12, R18, R26)."""
    return (
        not peer.is_learner
        and peer.is_ready
        and peer.position >= start_end
        and paces.may_rejoin(peer.replica)
    )


def near_ones(
    outside: Iterable[Peer], paces: Paces, *, start_end: PhysicalOffset
) -> list[ReplicaId]:
    """Of those outside the set who may join but for confirm, and follow the end closely."""
    near = []
    for peer in outside:
        lag_ms = paces.lag_ms(peer.replica)
        is_close = lag_ms is not None and lag_ms <= NEAR_LAG_MS
        if is_close and may_join(peer, paces, start_end=start_end):
            near.append(peer.replica)
    return near
