"""Pure: how much of a node users may take: token buckets for rates, and open connections.

What a user has asked for is served, and what it cost may take a bucket below zero. Until the bucket
is at zero again a stream of the user is not read from, and a request over HTTP is answered 429. So
nothing that was sent is thrown away, and the limit holds over all connections of the user to this
node. A second's worth may be taken at once.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from paceline.errors import QuotaExceededError, StorageQuotaExceededError
from paceline.wire.users import ANONYMOUS, EACH, Quota, Security

WAIT_MS_MAX = 1_000
"""A stream rests at most so long at a time, then one request is served: a client that hears nothing
for some seconds would hold the broker for silent, and a group its member."""

DEBT_S_MAX = 30
"""A bucket is at most so many seconds' worth below zero. Because each stream is served once a
second, many streams of one user could take it so low that the user would have to wait for days."""
BUCKETS_MAX = 20_000
"""Of quotas that each user or each client has. Clients choose their ids: beyond it all others of
such a quota share one bucket."""
CONNECTION_RETRY_MS = 1_000
_NAMESPACE = "Namespace:"
QUOTA_ERRORS = (QuotaExceededError, StorageQuotaExceededError)
RATES = ("bytes_in", "bytes_out", "requests")


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
    """What counts for a user, or for one client of it, at this node."""

    def __init__(
        self,
        buckets: dict[str, Bucket],
        now_ms: Callable[[], int],
        throttled: Callable[[str], None],
    ) -> None:
        """`buckets` by rate; others may spend from them too. `throttled` is told the rate when
        somebody has to wait."""
        self.buckets = buckets
        self._now_ms = now_ms
        self._throttled = throttled
        self._free_at_ms = now_ms()
        """When the next request over HTTP is served, whatever was taken."""

    def spend(self, *, bytes_in: int = 0, bytes_out: int = 0, requests: int = 0) -> int:
        """Count what was asked for or answered; ms until the user may go on."""
        now_ms, longest_ms = self._now_ms(), 0
        for rate, amount in zip(RATES, (bytes_in, bytes_out, requests), strict=True):
            bucket = self.buckets.get(rate)
            if bucket is None:
                continue
            wait_ms = bucket.spend(amount, now_ms=now_ms)
            if wait_ms:
                self._throttled(rate)
                longest_ms = max(longest_ms, wait_ms)
        return longest_ms

    def wait_for_request(self) -> int:
        """ms until a request over HTTP is served; 0: now.

        One a second is served in any case, as of each stream: else streams of the user could keep
        it out for ever.
        """
        now_ms = self._now_ms()
        wait_ms = min(self.spend(), max(0, self._free_at_ms - now_ms))
        if not wait_ms:
            self._free_at_ms = now_ms + WAIT_MS_MAX
        return wait_ms

    def check(self) -> None:
        """QuotaExceededError while the user has taken more than it may; else a request over HTTP is
        served, and must `spend` what it costs."""
        wait_ms = self.wait_for_request()
        if wait_ms:
            raise QuotaExceededError(
                "this user has taken more of this node than its quota allows; wait, or have a super"
                " user raise it (paceline quota set)",
                retry_after_ms=wait_ms,
            )


class _Kept(NamedTuple):
    """A bucket, and the subject whose quota it is of."""

    subject: str
    bucket: Bucket


class Quotas:
    """Of all users at this node."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        """`now_ms`: of the monotonic clock."""
        self._now_ms = now_ms
        self._quotas: dict[str, Quota] = {}
        self._buckets: dict[tuple[str, str], _Kept] = {}
        """By whose they are, and rate."""
        self._found: dict[tuple[str, str], UserQuota | None] = {}
        """By user, and its client's id or the subject of a namespace."""
        self._connections: Counter[str] = Counter()
        """Open ones, by user."""
        self.limits_namespaces = False
        """Bytes of a namespace are limited."""
        self._throttled: Counter[tuple[str, str]] = Counter()
        """How often somebody had to wait or was refused, by user and kind."""

    def apply(self, security: Security) -> None:
        """Users or quotas have changed; who has the same limit keeps what was counted."""
        self._quotas = dict(security.quotas)
        self.limits_namespaces = any(
            subject.startswith(_NAMESPACE) and (quota.bytes_in_per_s or quota.bytes_out_per_s)
            for subject, quota in self._quotas.items()
        )
        self._found.clear()
        self._buckets = {
            key: kept
            for key, kept in self._buckets.items()
            if self._limit(kept.subject, key[1]) == kept.bucket.per_s
        }
        users = {*security.users, ANONYMOUS}
        self._throttled = Counter(
            {key: count for key, count in self._throttled.items() if key[0] in users}
        )

    def of(self, user: str, client_id: str = "") -> UserQuota | None:
        """What counts for a user's client; None: it has no limit. `client_id` empty: unknown."""
        if not self._quotas:
            return None
        key = (user, f"Client:{client_id}")
        if key not in self._found:
            self._find(key, tuple(_subjects(user, client_id)))
        return self._found[key]

    def of_namespace(self, namespace: str, user: str) -> UserQuota | None:
        """What counts for all who send to topics of a namespace or read them, for one of them."""
        key = (user, _NAMESPACE + namespace)
        if key not in self._found:
            self._find(key, ((key[1], key[1]),))
        return self._found[key]

    # -- connections ------------------------------------------------------------------------------

    def connect(self, user: str) -> Callable[[], None]:
        """Count one more open connection of a user; to be called when it has ended, once.
        QuotaExceededError where it has as many as it may."""
        limit = next(
            (quota.connections for quota in self._of_user(user) if quota.connections is not None),
            None,
        )
        if limit is not None and self._connections[user] >= limit:
            raise QuotaExceededError(
                f"user {user} has {limit} connections to this node, and its quota allows no more:"
                " close some, or have a super user raise it (paceline quota set)",
                retry_after_ms=CONNECTION_RETRY_MS,
                kind="connections",
            )
        self._connections[user] += 1
        return partial(self._disconnect, user)

    def _disconnect(self, user: str) -> None:
        self._connections[user] -= 1
        if not self._connections[user]:
            del self._connections[user]

    def connections(self) -> dict[tuple[str, ...], float]:
        """By user, for metrics."""
        return {(user,): float(count) for user, count in self._connections.items()}

    # -- who had to wait --------------------------------------------------------------------------

    def throttle(self, user: str, kind: str) -> None:
        """Count that a user had to wait, or was refused."""
        self._throttled[user, kind] += 1

    def throttled(self) -> dict[tuple[str, ...], float]:
        """By user and kind, for metrics."""
        return {key: float(count) for key, count in self._throttled.items()}

    # -- small things -----------------------------------------------------------------------------

    def _limit(self, subject: str, rate: str) -> int | None:
        quota = self._quotas.get(subject)
        limit: int | None = None if quota is None else getattr(quota, f"{rate}_per_s")
        return limit

    def _find(self, key: tuple[str, str], subjects: tuple[tuple[str, str], ...]) -> None:
        """Note what counts for a user and its client, or in a namespace."""
        if len(self._found) >= BUCKETS_MAX:
            self._found.clear()
        buckets = {rate: self._bucket(subjects, rate) for rate in RATES}
        given = {rate: bucket for rate, bucket in buckets.items() if bucket is not None}
        throttled = partial(self.throttle, key[0])
        self._found[key] = UserQuota(given, self._now_ms, throttled) if given else None

    def _bucket(self, subjects: tuple[tuple[str, str], ...], rate: str) -> Bucket | None:
        for subject, own in subjects:
            limit = self._limit(subject, rate)
            if limit is None:
                continue
            is_full = len(self._buckets) >= BUCKETS_MAX
            key = (subject if is_full and (own, rate) not in self._buckets else own, rate)
            if key not in self._buckets:
                self._buckets[key] = _Kept(subject, Bucket(limit, now_ms=self._now_ms()))
            return self._buckets[key].bucket
        return None

    def _of_user(self, user: str) -> Iterator[Quota]:
        for subject, _ in _subjects(user, ""):
            if subject in self._quotas:
                yield self._quotas[subject]


def _subjects(user: str, client_id: str) -> Iterator[tuple[str, str]]:
    """Subjects of quotas that may count for a client of a user, the first one first (Kafka's
    order); and whose the bucket is then."""
    own = f"User:{user}"
    if client_id:
        client = f"{own}/Client:{client_id}"
        yield client, client
        yield f"{own}/Client:{EACH}", client
    yield own, own
    if user != ANONYMOUS:
        yield f"User:{EACH}", own
