"""Fencing tokens of the queue locks that the gateway holds for clients (R33)."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from paceline.types import GroupName

LEASE_MS = 60_000
"""RocketMQ's rebalanceLockMaxLiveTime; clients renew every 20 s."""
LockKey = tuple[str, str, str, str, int]
Token = tuple[int, int]


class _Held(NamedTuple):
    token: Token
    good_until: float
    """Loop time: the end of the lease, as far as is known here."""


class Locks:
    """Tokens by (group, client, topic, broker group, queue). Owned by one user.

    A token outlives its lease as long as its client is a member of the group: what the client still
    does is named by it, and fenced. Once the client has gone, and the lease is over, it goes too.
    """

    def __init__(self, is_member: Callable[[str, str], bool]) -> None:
        """`is_member`: whether a client, by its id, is in a group, which comes first."""
        self._is_member = is_member
        self._loop = asyncio.get_running_loop()
        self._held: dict[LockKey, _Held] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._held)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def token_of(
        self, group: str, client_id: str, topic: str, broker_group: GroupName, queue_id: int
    ) -> Token | None:
        """None: the client holds no lock that we know of."""
        held = self._held.get((group, client_id, topic, broker_group, queue_id))
        return None if held is None else held.token

    def held(self, key: LockKey, token: Token) -> None:
        """Granted or renewed."""
        self._held[key] = _Held(token, self._loop.time() + LEASE_MS / 1000)
        if self._timer is None:
            self._timer = self._loop.call_later(LEASE_MS / 1000, self._forget_ended)

    def lost(self, key: LockKey) -> Token | None:
        held = self._held.pop(key, None)
        return None if held is None else held.token

    def gone(self, group: str, client_id: str) -> None:
        """A client has left a group: its locks run out."""
        for key in [key for key in self._held if key[:2] == (group, client_id)]:
            del self._held[key]

    def _forget_ended(self) -> None:
        """A connection that is lost says nothing of its locks."""
        self._timer = None
        now = self._loop.time()
        for key, held in list(self._held.items()):
            if held.good_until <= now and not self._is_member(key[0], key[1]):
                del self._held[key]
        if self._held:
            self._timer = self._loop.call_later(LEASE_MS / 1000, self._forget_ended)
