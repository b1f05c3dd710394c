"""Pure: queue locks of ordered consumption with fencing tokens (R33, INV-11).

A token is (master epoch, physical offset of the record that granted it), so tokens only grow.
Leases run in log time: the store time of the records, never a clock. A holder that shows its token
renews its lease and keeps the token; one that lost it gets a new grant, which fences its past.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from paceline.types import MasterEpoch, PhysicalOffset
from paceline_broker.projections.consume_queues import topic_of

LEASE_MS_DEFAULT = 60_000
"""RocketMQ's rebalance.lockMaxLiveTime."""


class Token(NamedTuple):
    """Fencing token; compared as a tuple."""

    epoch: MasterEpoch
    position: PhysicalOffset

    @classmethod
    def from_json(cls, value: Sequence[int] | None) -> "Token | None":
        return None if value is None else cls(MasterEpoch(value[0]), PhysicalOffset(value[1]))


def token_json(token: "Token | None") -> list[int] | None:
    """The JSON form (orjson leaves named tuples to us)."""
    return None if token is None else [token.epoch, token.position]


class Lock(NamedTuple):
    """One held lock; it is free again once log time reaches `expires_unix_ms`."""

    client_id: str
    token: Token
    expires_unix_ms: int
    lease_ms: int


class Withheld(NamedTuple):
    """No lock is granted before log time `until_unix_ms`: an acting master's leases run (R36)."""

    until_unix_ms: int
    leases_ms: int
    since_epoch: MasterEpoch = MasterEpoch(0)
    """Its start record was the first to withhold them; later ones only go on."""


class LockEntry(NamedTuple):
    """One queue of a lock or unlock request."""

    key: int
    token: Token | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LockRequest:
    """The document of a lock record."""

    group: str
    client_id: str
    is_unlock: bool
    lease_ms: int
    entries: tuple[LockEntry, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "client_id": self.client_id,
            "entries": [[entry.key, token_json(entry.token)] for entry in self.entries],
            "group": self.group,
            "is_unlock": self.is_unlock,
            "lease_ms": self.lease_ms,
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> "LockRequest":
        return cls(
            group=document["group"],
            client_id=document["client_id"],
            is_unlock=document["is_unlock"],
            lease_ms=document["lease_ms"],
            entries=tuple(
                LockEntry(key, Token.from_json(token)) for key, token in document["entries"]
            ),
        )


class LockOutcome(NamedTuple):
    """What was decided about one queue: `lock` is the one that stands afterwards."""

    key: int
    code: str | None
    """None = done; else LOCK_HELD (another client's) or LOCK_FENCED (not the present token)."""
    lock: Lock | None


class Locks:
    """All queue locks, by (consumer group, queue key)."""

    def __init__(self) -> None:
        self._locks: dict[tuple[str, int], Lock] = {}
        self._withheld = Withheld(0, 0)

    def get(self, group: str, key: int, *, now_unix_ms: int) -> Lock | None:
        """The lock in force at a log time."""
        lock = self._locks.get((group, key))
        return lock if lock is not None and now_unix_ms < lock.expires_unix_ms else None

    def barred_until(self, group: str, key: int, *, now_unix_ms: int) -> int | None:
        """Log time at which the queue may be anybody's: it is locked until then, or may be, by a
        lock that an acting master granted (R36). None = now."""
        lock = self.get(group, key, now_unix_ms=now_unix_ms)
        until = max(self._withheld.until_unix_ms, 0 if lock is None else lock.expires_unix_ms)
        return until if now_unix_ms < until else None

    def token_of(self, group: str, key: int) -> Token | None:
        """The last token granted, also after its lease, until it was given back (fencing)."""
        lock = self._locks.get((group, key))
        return None if lock is None else lock.token

    def decide(
        self, request: LockRequest, *, new_token: Token, now_unix_ms: int
    ) -> list[LockOutcome]:
        """What the request gives at log time `now_unix_ms`; changes nothing."""
        decide_one = self._decide_unlock if request.is_unlock else self._decide_lock
        return [decide_one(request, entry, new_token, now_unix_ms) for entry in request.entries]

    def _decide_lock(
        self, request: LockRequest, entry: LockEntry, new_token: Token, now_unix_ms: int
    ) -> LockOutcome:
        held = self._locks.get((request.group, entry.key))
        if now_unix_ms < self._withheld.until_unix_ms:
            return LockOutcome(entry.key, "LOCK_HELD", held)
        is_free = held is None or now_unix_ms >= held.expires_unix_ms
        if held is not None and held.client_id == request.client_id:
            if entry.token is not None and entry.token != held.token:
                return LockOutcome(entry.key, "LOCK_FENCED", held)
            token = new_token if entry.token is None else held.token
        elif not is_free:
            return LockOutcome(entry.key, "LOCK_HELD", held)
        else:
            # A token of a lease that has run out is worth nothing once somebody else had the lock.
            token = new_token
        expires = now_unix_ms + request.lease_ms
        lock = Lock(request.client_id, token, expires, request.lease_ms)
        return LockOutcome(entry.key, None, lock)

    def _decide_unlock(
        self, request: LockRequest, entry: LockEntry, new_token: Token, now_unix_ms: int
    ) -> LockOutcome:
        held = self._locks.get((request.group, entry.key))
        if held is None:
            return LockOutcome(entry.key, None, None)  # given back before: the same answer
        if held.client_id != request.client_id or entry.token != held.token:
            return LockOutcome(entry.key, "LOCK_FENCED", held)
        return LockOutcome(entry.key, None, None)

    def apply(
        self, request: LockRequest, *, new_token: Token, now_unix_ms: int
    ) -> list[LockOutcome]:
        """Fold a lock record: decide, and change what was granted."""
        outcomes = self.decide(request, new_token=new_token, now_unix_ms=now_unix_ms)
        for outcome in outcomes:
            at = (request.group, outcome.key)
            if outcome.code is not None:
                continue
            if outcome.lock is None:
                self._locks.pop(at, None)
                continue
            old = self._locks.get(at)
            assert old is None or outcome.lock.token >= old.token, (old, outcome)  # INV-11
            self._locks[at] = outcome.lock
        return outcomes

    def renew_all(
        self, *, log_time_before_ms: int, now_unix_ms: int, withheld_rest_ms: int | None = None
    ) -> None:
        """An epoch begins: leases that stood when the log stopped run once more in full (R33).

        So does what is withheld, but for the time that the epoch's master has seen pass: then
        `withheld_rest_ms` is left (R36).
        """
        withheld = self._withheld
        if log_time_before_ms < withheld.until_unix_ms:
            rest_ms = withheld.leases_ms
            if withheld_rest_ms is not None:
                rest_ms = min(rest_ms, withheld_rest_ms)
            self._withheld = withheld._replace(until_unix_ms=now_unix_ms + rest_ms)
        for at, lock in list(self._locks.items()):
            if log_time_before_ms >= lock.expires_unix_ms:
                del self._locks[at]
            else:
                self._locks[at] = lock._replace(expires_unix_ms=now_unix_ms + lock.lease_ms)

    def withhold(self, leases_ms: int, *, now_unix_ms: int, epoch: MasterEpoch) -> None:
        """An epoch begins after an acting master that may have granted locks (R36).

        Its tokens are above all that is known here, so all of that is fenced; and nobody is granted
        anything before its leases have surely run out.
        """
        self._locks.clear()
        self._withheld = Withheld(now_unix_ms + leases_ms, leases_ms, epoch)

    def void_all(self) -> None:
        """An unclean epoch begins (R21)."""
        self._locks.clear()

    def keys(self) -> set[int]:
        """Queues that a group has a lock of."""
        return {key for _, key in self._locks}

    def groups(self) -> set[str]:
        """Consumer groups that have a lock."""
        return {group for group, _ in self._locks}

    def drop_group(self, group: str) -> None:
        for at in [at for at in self._locks if at[0] == group]:
            del self._locks[at]

    def drop_topic(self, topic_id: int) -> None:
        for at in [at for at in self._locks if topic_of(at[1]) == topic_id]:
            del self._locks[at]

    @property
    def withheld(self) -> Withheld:
        """Part of the state, beside `to_json`."""
        return self._withheld

    def to_json(self) -> list[list[Any]]:
        return [
            [
                group,
                key,
                lock.client_id,
                token_json(lock.token),
                lock.expires_unix_ms,
                lock.lease_ms,
            ]
            for (group, key), lock in sorted(self._locks.items())
        ]

    @classmethod
    def from_json(cls, rows: list[list[Any]], withheld: Sequence[int] = (0, 0)) -> "Locks":
        locks = cls()
        until_unix_ms, leases_ms, *since = withheld
        since_epoch = since[0] if since else 0  # feature level 2 named none
        locks._withheld = Withheld(until_unix_ms, leases_ms, MasterEpoch(since_epoch))
        for group, key, client_id, token, expires, lease in rows:
            found = Token(MasterEpoch(token[0]), PhysicalOffset(token[1]))
            locks._locks[group, key] = Lock(client_id, found, expires, lease)
        return locks
