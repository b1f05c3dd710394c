"""Pure: who may have how many of what all users of a gateway share: clients, streams, polls.

As with bytes and connections (ADR 18) it follows from what is left, as nobody knows how many users
there will be: one may have as many as are free. So one alone gets half of all, two that come
together a third each, and whoever comes next finds half of the rest.
"""

from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

from paceline.errors import OverloadedError
from paceline.wire.users import ANONYMOUS

Owner: TypeAlias = tuple[str, str]
"""A user; or, of those whom nobody knows, the address."""
POLLS_MAX = 20_000
"""Requests of all clients of a door that wait for messages: some 10 kB each."""
ALWAYS_COUNT = 2
"""One may have so many while there is room at all."""


def owner_of(user: str, source: str) -> Owner:
    """Whose share what this user does at that address counts for."""
    return (user, "") if user not in ("", ANONYMOUS) else ("", source)


class Shares:
    """Of one thing. Owner: the event loop."""

    def __init__(self, limit: int, what: str, *, retry_after_ms: int = 1_000) -> None:
        """`what`: their name in the refusal."""
        self._limit, self._what, self._retry_after_ms = limit, what, retry_after_ms
        self.count = 0
        self._held: Counter[Owner] = Counter()

    def has_room(self, owner: Owner) -> bool:
        """Whether it may have one more."""
        free = self._limit - self.count
        return free > 0 and self._held[owner] < max(ALWAYS_COUNT, free)

    def take(self, owner: Owner) -> Callable[[], None]:
        """One more; call what is returned, once or more, when it is needed no more.
        OverloadedError."""
        if not self.has_room(owner):
            raise OverloadedError(
                f"this gateway has {self.count} {self._what}, {self._held[owner]} of them for you,"
                " and no room for more of yours: connect to another one",
                retry_after_ms=self._retry_after_ms,
            )
        self.count += 1
        self._held[owner] += 1
        is_held = True

        def give() -> None:
            nonlocal is_held
            if is_held:
                is_held = False
                self._give(owner)

        return give

    def _give(self, owner: Owner) -> None:
        self.count -= 1
        self._held[owner] -= 1
        if not self._held[owner]:
            del self._held[owner]
