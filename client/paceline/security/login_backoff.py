"""Pure: who guesses passwords has to wait: longer by source than by user name.

By user name only a little, and never a source that has not failed yet: whoever knows a name could
otherwise keep its user out. A source is an IPv4 address, or a /64 of IPv6.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from paceline.errors import QuotaExceededError
from paceline.server.byte_budget import source_of

FREE_OF_SOURCE, FREE_OF_USER = 5, 10
"""Failures in a row without a wait."""
WAIT_MS = 1_000
"""After the next one; doubled by each further."""
WAIT_MS_MAX_OF_SOURCE, WAIT_MS_MAX_OF_USER = 60_000, 10_000
FORGOTTEN_AFTER_MS = 15 * 60_000
KEPT_MAX = 10_000


class _Failures(NamedTuple):
    tries: int
    last_ms: int


class LoginBackoff:
    """Of one controller, in memory."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._sources: OrderedDict[str, _Failures] = OrderedDict()
        self._users: OrderedDict[str, _Failures] = OrderedDict()

    def begin(self, user: str, source: str) -> None:
        """Count a try as failed until `succeeded` is told, so that many at once gain nothing.

        QuotaExceededError while the source or the user has to wait; it does not count.
        """
        now_ms, source = self._clock_ms(), source_of(source)
        of_source = self._sources.get(source)
        wait_ms = _wait_ms(of_source, FREE_OF_SOURCE, WAIT_MS_MAX_OF_SOURCE, now_ms)
        if of_source is not None and of_source.tries and not _is_forgotten(of_source, now_ms):
            of_user = self._users.get(user)
            wait_ms = max(wait_ms, _wait_ms(of_user, FREE_OF_USER, WAIT_MS_MAX_OF_USER, now_ms))
        if wait_ms:
            raise QuotaExceededError(
                f"too many logins have failed from this address or for this user; wait"
                f" {-(-wait_ms // 1000)} s",
                retry_after_ms=wait_ms,
            )
        _add(self._sources, source, now_ms)
        _add(self._users, user, now_ms)

    def succeeded(self, user: str, source: str) -> None:
        """The password was right. Of the source only this one try is taken back: who has a user of
        his own does not get free guesses for others by it."""
        self._users.pop(user, None)
        source = source_of(source)
        failures = self._sources.get(source)
        if failures is not None:
            self._sources[source] = failures._replace(tries=failures.tries - 1)


def _wait_ms(failures: _Failures | None, free: int, most_ms: int, now_ms: int) -> int:
    if failures is None or failures.tries < free or _is_forgotten(failures, now_ms):
        return 0
    waits_ms = min(most_ms, WAIT_MS << min(failures.tries - free, 16))
    return max(0, failures.last_ms + waits_ms - now_ms)


def _is_forgotten(failures: _Failures, now_ms: int) -> bool:
    return now_ms - failures.last_ms >= FORGOTTEN_AFTER_MS


def _add(kept: OrderedDict[str, _Failures], name: str, now_ms: int) -> None:
    before = kept.pop(name, None)
    count = 0 if before is None or _is_forgotten(before, now_ms) else before.tries
    kept[name] = _Failures(count + 1, now_ms)
    if len(kept) > KEPT_MAX:
        kept.popitem(last=False)
