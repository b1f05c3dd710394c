"""Queue locks of the fake cluster: decided by the brokers' own state of them."""

import asyncio
from typing import TYPE_CHECKING, Any

from paceline.errors import BY_CODE, TopicNotFoundError
from paceline.types import MasterEpoch, PhysicalOffset
from paceline_broker.projections.locks import (
    LockEntry,
    LockOutcome,
    LockRequest,
    Locks,
    Token,
    token_json,
)

if TYPE_CHECKING:
    from tests.support.client.fake_broker import FakeBroker


class FakeLocks:
    """Log time is the loop's, and what `pass_ms` adds: leases run out without a wait."""

    def __init__(self) -> None:
        self._locks: dict[str, Locks] = {}
        self._position = 0
        self.ahead_ms = 0
        self.calls: list[dict[str, Any]] = []
        self.lease_ms_max = 60_000
        """The brokers' lock_lease_ms."""
        self.gone: set[int] = set()
        """Ids of topics that were deleted."""

    @property
    def now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000) + self.ahead_ms

    def of(self, group: str) -> Locks:
        return self._locks.setdefault(group, Locks())

    def holder(self, broker_group: str, group: str, key: int) -> str | None:
        lock = self.of(broker_group).get(group, key, now_unix_ms=self.now_ms)
        return None if lock is None else lock.client_id

    def take(self, broker_group: str, group: str, key: int, client_id: str) -> Token:
        """Another client gets the lock; the lease of whoever had it must be over."""
        outcome = self._change_one(broker_group, group, key, client_id, None)
        assert outcome.lock is not None
        assert outcome.code is None, outcome
        return outcome.lock.token

    def give_back(self, broker_group: str, group: str, key: int, client_id: str) -> None:
        token = self.of(broker_group).token_of(group, key)
        assert self._change_one(broker_group, group, key, client_id, token).code is None

    def _change_one(
        self, broker_group: str, group: str, key: int, client_id: str, unlocks: Token | None
    ) -> LockOutcome:
        self._position += 1
        request = LockRequest(
            group=group,
            client_id=client_id,
            is_unlock=unlocks is not None,
            lease_ms=60_000,
            entries=(LockEntry(key, unlocks),),
        )
        token = Token(MasterEpoch(1), PhysicalOffset(self._position))
        [outcome] = self.of(broker_group).apply(request, new_token=token, now_unix_ms=self.now_ms)
        return outcome

    def change(self, broker: "FakeBroker", document: dict[str, Any]) -> dict[str, Any]:
        self.calls.append(document)
        if any(row["topic_id"] in self.gone for row in document["queues"]):
            raise TopicNotFoundError("a topic is gone")
        request = LockRequest(
            group=document["group"],
            client_id=document["client_id"],
            is_unlock=document["call"] == "unlock",
            lease_ms=min(document.get("lease_ms", 60_000), self.lease_ms_max),
            entries=tuple(
                LockEntry(row["topic_id"] << 16 | row["queue"], Token.from_json(row.get("token")))
                for row in document["queues"]
            ),
        )
        self._position += 1
        epoch = MasterEpoch(broker.cluster.epoch(broker.group))
        outcomes = self.of(broker.group).apply(
            request,
            new_token=Token(epoch, PhysicalOffset(self._position)),
            now_unix_ms=self.now_ms,
        )
        rows = [
            {
                "topic_id": outcome.key >> 16,
                "queue": outcome.key & 0xFFFF,
                "code": outcome.code,
                "token": None
                if outcome.code or outcome.lock is None
                else token_json(outcome.lock.token),
                "holder": None if outcome.lock is None else outcome.lock.client_id,
                "expires_unix_ms": None,
            }
            for outcome in outcomes
        ]
        codes = [row["code"] for row in rows]
        if all(codes):
            raise BY_CODE[str(codes[0])]("refused", queues=rows)
        return {"queues": rows, "lease_ms": request.lease_ms}

    def is_fenced(self, broker: "FakeBroker", group: str, row: dict[str, Any], key: int) -> bool:
        """As a commit is decided (R33, INV-11)."""
        locks = self.of(broker.group)
        if "token" not in row:
            return locks.get(group, key, now_unix_ms=self.now_ms) is not None
        return locks.token_of(group, key) != Token.from_json(row["token"])
