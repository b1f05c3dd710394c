"""Pure: how much of a node users may take: token buckets for rates, and open connections.

What a user has asked for is served, and what it cost may take a bucket below zero. Until the bucket
is at zero again nothing more is begun: a stream of the user is not read from, and a request over
HTTP is answered 429. So nothing that was sent is thrown away, and the limit holds over all
connections of the user to this node, however many they are. A second's worth may be taken at once.

While a bucket is below zero, small requests of streams and one request over HTTP at a time are
served in some cases (`Bucket.small_wait_ms`, `UserQuota.wait_for_request`): else one request of
16 MiB would silence all connections of a user for as long as it takes to pay for it. They are paid
for as well, and get half of the rate at most, so that the debt shrinks meanwhile.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import NamedTuple

from paceline.errors import QuotaExceededError, StorageQuotaExceededError
from paceline.wire.users import ANONYMOUS, EACH, Quota, Security

WAIT_MS_MAX = 1_000
"""So often a request over HTTP is served in any case, unless the last such one was a large one."""
DEBT_S_MAX = 30
"""What is taken from a bucket that is below zero already counts for at most so many seconds: what
must be served in any case, and long polls that are answered at one moment, would else make a user
wait for days."""
SMALL_SHARE = 2
"""What is served while a bucket is below zero takes 1/2 of its rate, and the debt shrinks."""
BUCKETS_MAX = 20_000
"""Of clients that share a user's quota for each client. Clients choose their ids: beyond it all
others of a user share one bucket."""
USER_BUCKETS_MAX = 1_000
"""The same for one user, so that no user takes those of others."""
SWEEP_BUCKETS = 8
"""For each bucket that is made, or not made, so many are looked at, and dropped if they are full: a
bucket that is full has nothing to remember."""
CONNECTION_RETRY_MS = 1_000
_NAMESPACE = "Namespace:"
_EACH_CLIENT = f"/Client:{EACH}"
QUOTA_ERRORS = (QuotaExceededError, StorageQuotaExceededError)
RATES = ("bytes_in", "bytes_out", "requests")


class Bucket:
    """One limit."""

    def __init__(self, per_s: int, *, now_ms: int) -> None:
        self.per_s = per_s
        self._left = float(per_s)
        self._counted_ms = now_ms
        self._lowest = 0.0
        """What is taken while it is below zero makes it no lower than that."""
        self._small_at_ms = 0.0

    def spend(self, amount: int, *, now_ms: int) -> int:
        """Take so much; ms until the bucket is at zero again, 0: it is not below."""
        left = self._count(now_ms)
        if amount and left >= 0:
            left -= amount
            self._lowest = min(0.0, left) - DEBT_S_MAX * self.per_s
        elif amount:
            left = max(left - amount, min(left, self._lowest))
            paid_ms = SMALL_SHARE * 1000 * amount / self.per_s
            small_at_ms = max(self._small_at_ms, float(now_ms)) + paid_ms
            all_paid_ms = now_ms - SMALL_SHARE * 1000 * left / self.per_s
            self._small_at_ms = min(small_at_ms, all_paid_ms)
        self._left = left
        return 0 if left >= 0 else int(-left / self.per_s * 1000) + 1

    def small_wait_ms(self, *, now_ms: int) -> int:
        """ms until a small request is served though the bucket is below zero."""
        return max(0, int(self._small_at_ms - now_ms))

    def is_full(self, *, now_ms: int) -> bool:
        """It is as a new one."""
        return self._count(now_ms) >= self.per_s

    def _count(self, now_ms: int) -> float:
        """What is left now."""
        passed_s = max(0, now_ms - self._counted_ms) / 1000
        self._counted_ms = max(now_ms, self._counted_ms)
        self._left = min(float(self.per_s), self._left + passed_s * self.per_s)
        return self._left


class UserQuota:
    """What counts for a user, or for one client of it, at this node."""

    def __init__(
        self,
        find: dict[str, Callable[[], Bucket]],
        now_ms: Callable[[], int],
        throttled: Callable[[str], None],
    ) -> None:
        """`find`: by rate the bucket, which others may spend from too. `throttled` is told the rate
        when somebody has to wait."""
        self._find = find
        self._now_ms = now_ms
        self._throttled = throttled
        self._free_at_ms = now_ms()
        """When the next request over HTTP is served, whatever was taken."""

    @property
    def buckets(self) -> dict[str, Bucket]:
        """By rate."""
        return {rate: find() for rate, find in self._find.items()}

    def spend(self, *, bytes_in: int = 0, bytes_out: int = 0, requests: int = 0) -> int:
        """Count what was asked for or answered; ms until the user may go on."""
        now_ms, longest_ms = self._now_ms(), 0
        for rate, amount in zip(RATES, (bytes_in, bytes_out, requests), strict=True):
            find = self._find.get(rate)
            if find is None:
                continue
            wait_ms = find().spend(amount, now_ms=now_ms)
            if wait_ms:
                self._throttled(rate)
                longest_ms = max(longest_ms, wait_ms)
        return longest_ms

    def answer_bytes_max(self, least: int) -> int | None:
        """How much one answer may have: a second's worth, but `least` where that is less or the
        limit is exceeded; None: as much as it wants."""
        find = self._find.get("bytes_out")
        if find is None:
            return None
        bucket = find()
        is_exceeded = bucket.spend(0, now_ms=self._now_ms()) > 0
        return least if is_exceeded else max(least, bucket.per_s)

    # -- requests over HTTP -----------------------------------------------------------------------

    def wait_for_request(self) -> int:
        """ms until a request over HTTP is served; 0: now.

        One a second is served in any case, or after what the last one has cost is paid for twice:
        else streams of the user could keep it out for ever.
        """
        now_ms = self._now_ms()
        wait_ms = min(self.spend(), max(0, self._free_at_ms - now_ms))
        if not wait_ms:
            self._free_at_ms = now_ms + WAIT_MS_MAX
        return wait_ms

    def check(self) -> None:
        """QuotaExceededError while the user has taken more than it may; else a request over HTTP is
        served, and must `pay` what it costs."""
        wait_ms = self.wait_for_request()
        if wait_ms:
            raise exceeded(wait_ms)

    def pay(self, *, bytes_in: int = 0, bytes_out: int = 0, requests: int = 0) -> None:
        """As `spend`, of a request over HTTP: it also delays the next one that is served in any
        case."""
        if not self.spend(bytes_in=bytes_in, bytes_out=bytes_out, requests=requests):
            return
        amounts = dict(zip(RATES, (bytes_in, bytes_out, requests), strict=True))
        cost_s = max(amounts[rate] / find().per_s for rate, find in self._find.items())
        paid_ms = self._now_ms() + int(SMALL_SHARE * 1000 * cost_s)
        self._free_at_ms = max(self._free_at_ms, paid_ms)


def exceeded(wait_ms: int) -> QuotaExceededError:
    """What is answered to a request that cannot wait."""
    return QuotaExceededError(
        "this user has taken more of this node than its quota allows; wait, or have a super user"
        " raise it (paceline quota set)",
        retry_after_ms=wait_ms,
    )


class _Kept(NamedTuple):
    """A bucket, the subject whose quota it is of, and the user whose client made it, if one did."""

    subject: str
    bucket: Bucket
    user: str = ""


class Quotas:
    """Of all users at this node."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        """`now_ms`: of the monotonic clock."""
        self._now_ms = now_ms
        self._quotas: dict[str, Quota] = {}
        self._buckets: OrderedDict[tuple[str, str], _Kept] = OrderedDict()
        """By whose they are, and rate; those that were looked at last come last."""
        self._clients: Counter[str] = Counter()
        """How many of them are of clients that share a quota, by user."""
        self._found: dict[tuple[str, str], UserQuota | None] = {}
        """By user, and the subject of a namespace or nothing."""
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
        self._buckets = OrderedDict(
            (key, kept)
            for key, kept in self._buckets.items()
            if self._limit(kept.subject, key[1]) == kept.bucket.per_s
        )
        self._clients = Counter(kept.user for kept in self._buckets.values() if kept.user)
        users = {*security.users, ANONYMOUS}
        self._throttled = Counter(
            {key: count for key, count in self._throttled.items() if key[0] in users}
        )

    def of(self, user: str, client_id: str = "") -> UserQuota | None:
        """What counts for a user's client; None: it has no limit. `client_id` empty: unknown."""
        if not self._quotas:
            return None
        if client_id:  # whoever asks for it keeps it: of these there may be any number
            return self._make(user, tuple(_subjects(user, client_id)))
        return self._kept((user, ""), tuple(_subjects(user, "")))

    def of_namespace(self, namespace: str, user: str) -> UserQuota | None:
        """What counts for all who send to topics of a namespace or read them, for one of them."""
        subject = _NAMESPACE + namespace
        if subject not in self._quotas:
            return None
        return self._kept((user, subject), ((subject, subject),))

    def _kept(
        self, key: tuple[str, str], subjects: tuple[tuple[str, str], ...]
    ) -> UserQuota | None:
        if key not in self._found:
            if len(self._found) >= BUCKETS_MAX:
                self._found.clear()
            self._found[key] = self._make(key[0], subjects)
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

    def _make(self, user: str, subjects: tuple[tuple[str, str], ...]) -> UserQuota | None:
        """Of the first of the subjects that has a limit, for each rate by itself."""
        find: dict[str, Callable[[], Bucket]] = {}
        for rate in RATES:
            for subject, own in subjects:
                limit = self._limit(subject, rate)
                if limit is not None:
                    find[rate] = partial(self._bucket, (own, rate), subject, limit, user)
                    break
        return UserQuota(find, self._now_ms, partial(self.throttle, user)) if find else None

    def _bucket(self, key: tuple[str, str], subject: str, limit: int, user: str) -> Bucket:
        """The one that is kept, or a new one: that of a user's other clients where it has many."""
        kept = self._buckets.get(key)
        if kept is not None:
            return kept.bucket
        if self._limit(subject, key[1]) != limit:
            return Bucket(limit, now_ms=self._now_ms())  # of a quota that is no more: nobody's
        of_client = user if subject.endswith(_EACH_CLIENT) else ""
        if of_client:
            self._drop_full()
        is_crowded = len(self._buckets) >= BUCKETS_MAX
        if of_client and (is_crowded or self._clients[user] >= USER_BUCKETS_MAX):
            key, of_client = (f"User:{user}{_EACH_CLIENT}", key[1]), ""
            if key in self._buckets:
                return self._buckets[key].bucket
        bucket = Bucket(limit, now_ms=self._now_ms())
        self._buckets[key] = _Kept(subject, bucket, of_client)
        if of_client:
            self._clients[user] += 1
        return bucket

    def _drop_full(self) -> None:
        """Of those of clients, among the `SWEEP_BUCKETS` that were not looked at for longest."""
        now_ms = self._now_ms()
        for key in list(islice(self._buckets, SWEEP_BUCKETS)):
            kept = self._buckets[key]
            if not kept.user or not kept.bucket.is_full(now_ms=now_ms):
                self._buckets.move_to_end(key)
                continue
            del self._buckets[key]
            self._clients[kept.user] -= 1
            if not self._clients[kept.user]:
                del self._clients[kept.user]

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
