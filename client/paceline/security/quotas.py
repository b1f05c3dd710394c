"""Pure: how much of a node a user may take each second: a token bucket for each limit.

What a user has asked for is served, and what it cost may take a bucket below zero. Until the bucket
is at zero again a stream of the user is not read from, and a request over HTTP is answered 429. So
nothing that was sent is thrown away, and the limit holds over all connections of the user to this
node. A second's worth may be taken at once.
"""

from collections.abc import Callable

from paceline.wire.users import Quota, Security

WAIT_MS_MAX = 1_000
"""A stream rests at most so long at a time, then one request is served: a client that hears nothing
for some seconds would hold the broker for silent, and a group its member."""

DEBT_S_MAX = 30
"""A bucket is at most so many seconds' worth below zero. Because each stream is served once a
second, many streams of one user could take it so low that the user would have to wait for days."""


class Bucket:
    """One limit."""

    def __init__(self, per_s: int, *, now_ms: int) -> None:
        self.per_s = per_s
        self._left = float(per_s)
        self._counted_ms = now_ms

    def spend(self, amount: int, *, now_ms: int) -> int:
        """Take so much; ms until the bucket is at zero again, 0: it is not below."""
        passed_s = max(0, now_ms - self._counted_ms) / 1000
        self._counted_ms = max(now_ms, self._counted_ms)
        left = min(float(self.per_s), self._left + passed_s * self.per_s) - amount
        self._left = max(left, -float(DEBT_S_MAX * self.per_s))
        return 0 if self._left >= 0 else int(-self._left / self.per_s * 1000) + 1


class UserQuota:
    """The limits of one user at this node."""

    def __init__(self, quota: Quota, now_ms: Callable[[], int]) -> None:
        self.quota = quota
        self._now_ms = now_ms
        self.throttled_count = 0
        """How often somebody had to wait."""
        self._free_at_ms = now_ms()
        """When the next request over HTTP is served, whatever was taken."""

        def bucket(per_s: int | None) -> Bucket | None:
            return None if per_s is None else Bucket(per_s, now_ms=now_ms())

        self._bytes_in = bucket(quota.bytes_in_per_s)
        self._bytes_out = bucket(quota.bytes_out_per_s)
        self._requests = bucket(quota.requests_per_s)

    def spend(self, *, bytes_in: int = 0, bytes_out: int = 0, requests: int = 0) -> int:
        """Count what was asked for or answered; ms until the user may go on."""
        now_ms, wait_ms = self._now_ms(), 0
        for bucket, amount in (
            (self._bytes_in, bytes_in),
            (self._bytes_out, bytes_out),
            (self._requests, requests),
        ):
            if bucket is not None:
                wait_ms = max(wait_ms, bucket.spend(amount, now_ms=now_ms))
        if wait_ms:
            self.throttled_count += 1
        return wait_ms

    def wait_for_request(self) -> int:
        """ms until a request over HTTP is served; 0: now, and it must `spend` what it costs.

        One a second is served in any case, as of each stream: else streams of the user could keep
        it out for ever.
        """
        now_ms = self._now_ms()
        wait_ms = min(self.spend(), max(0, self._free_at_ms - now_ms))
        if not wait_ms:
            self._free_at_ms = now_ms + WAIT_MS_MAX
        return wait_ms


class Quotas:
    """Of all users that have one."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        """`now_ms`: of the monotonic clock."""
        self._now_ms = now_ms
        self._users: dict[str, UserQuota] = {}

    def apply(self, security: Security) -> None:
        """Users or their limits have changed; who has the same limit keeps what was counted."""
        kept = self._users
        self._users = {
            name: kept[name]
            if name in kept and kept[name].quota == user.quota
            else UserQuota(user.quota, self._now_ms)
            for name, user in security.users.items()
            if user.quota != Quota()
        }

    def of(self, user: str) -> UserQuota | None:
        """None: no limit."""
        return self._users.get(user)

    def throttled(self) -> dict[tuple[str, ...], float]:
        """By user, for metrics."""
        return {(name,): float(each.throttled_count) for name, each in self._users.items()}
