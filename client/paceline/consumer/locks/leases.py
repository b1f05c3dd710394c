"""Pure: the queue locks a member holds, as far as it may rely on them (R33).

A lease counts from when we *asked* for it, by our own monotonic clock: however long the answer took
and whatever has stopped this process since, the master's lease ends no earlier. What outlives the
lease all the same is harmless, because the fencing token it names is not the present one by then.
"""

from collections.abc import Iterable

from paceline.message import LockToken
from paceline.queues import QueueKey
from paceline.types import GroupName

PACE_SHARE = 100
"""Clocks of two machines differ in pace by far less than one part in this."""


def asked_lease_ms(lease_ms: int) -> int:
    """The lease to ask a master for, so that ours, on another clock, ends first."""
    return lease_ms - (-lease_ms // PACE_SHARE)


def relied_lease_ms(granted_ms: int) -> int:
    """How much of a lease that a master has granted we rely on: the inverse, rounded down."""
    return granted_ms * PACE_SHARE // (PACE_SHARE + 1)


class Lease:
    """One lock that we were granted, for `lease_ms` from when we asked."""

    __slots__ = ("asked_ms", "lease_ms", "token")

    def __init__(self, token: LockToken, asked_ms: int, lease_ms: int) -> None:
        self.token = token
        self.asked_ms = asked_ms
        self.lease_ms = lease_ms

    @property
    def end_ms(self) -> int:
        return self.asked_ms + self.lease_ms


class Leases:
    """All locks of one member. `now_ms` is the monotonic clock."""

    def __init__(self, *, lease_ms: int, renew_ms: int) -> None:
        """What is wanted; a shorter lease is renewed after the same share of it."""
        self._lease_ms = lease_ms
        self._renew_ms = renew_ms
        self._held: dict[QueueKey, Lease] = {}

    def granted(self, key: QueueKey, token: LockToken, *, asked_ms: int, lease_ms: int) -> None:
        """A new grant: whatever we held of that queue before is fenced."""
        before = self._held.get(key)
        assert before is None or token > before.token, (before, token)  # INV-11
        self._held[key] = Lease(token, asked_ms, min(lease_ms, self._lease_ms))

    def renewed(self, key: QueueKey, token: LockToken, *, asked_ms: int, lease_ms: int) -> None:
        """The master still has our lock; unless it was given up while we asked."""
        lease = self._held.get(key)
        if lease is not None and lease.token == token and asked_ms >= lease.asked_ms:
            lease.asked_ms = asked_ms
            lease.lease_ms = min(lease_ms, self._lease_ms)

    def forget(self, key: QueueKey, token: LockToken) -> bool:
        """The lock is not ours any more, or given up; False if that grant was not the present."""
        lease = self._held.get(key)
        if lease is None or lease.token != token:
            return False
        del self._held[key]
        return True

    def is_valid(self, key: QueueKey, token: LockToken | None, *, now_ms: int) -> bool:
        """Whether nobody else can have the lock: only then may a message be processed."""
        lease = self._held.get(key)
        return lease is not None and lease.token == token and now_ms < lease.end_ms

    def token_of(self, key: QueueKey) -> LockToken | None:
        lease = self._held.get(key)
        return None if lease is None else lease.token

    def of_group(self, group: GroupName) -> list[tuple[QueueKey, LockToken]]:
        """Everything held at one broker group, in order."""
        return sorted((key, lease.token) for key, lease in self._held.items() if key.group == group)

    def due_in_ms(self, group: GroupName, *, now_ms: int) -> int | None:
        """Until the first lease of a broker group must be renewed; None: there is none."""
        due = [self._due_ms(lease) for key, lease in self._held.items() if key.group == group]
        return None if not due else max(0, min(due) - now_ms)

    def _due_ms(self, lease: Lease) -> int:
        return lease.asked_ms + self._renew_ms * lease.lease_ms // self._lease_ms

    def groups(self) -> Iterable[GroupName]:
        """Broker groups that we hold something at."""
        return sorted({key.group for key in self._held})
