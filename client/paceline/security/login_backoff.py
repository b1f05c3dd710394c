"""Pure: who guesses passwords has to wait: longer by source than by user name.

By user name only a little, and never a source that has not failed yet: whoever knows a name could
otherwise keep its user out. A source is an IPv4 address, or a /64 of IPv6.

Only a wrong password is a failure. Whatever else a try comes to, it leaves all as it was before it:
who has a user of his own gets no free guesses for others by it, and those who log in rightly behind
one address do not keep the failures of others there alive.

Tries that are under way are no failures yet, so as many may run as log in at once in an office, and
not more; whoever has to wait after failures has one at a time. So nobody guesses more than
FREE_OF_SOURCE - 1 + AT_ONCE_MAX times in a row from one source, and 100 times an hour.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from paceline.errors import LoginFailedError, OverloadedError, QuotaExceededError
from paceline.server.byte_budget import source_of

FREE_OF_SOURCE, FREE_OF_USER = 5, 10
"""Failures in a row without a wait."""
AT_ONCE_MAX = 16
"""Tries under way of one source, or for one user: half of those that a controller has at once."""
WAIT_MS = 1_000
"""After the next one; doubled by each further."""
WAIT_MS_MAX_OF_SOURCE, WAIT_MS_MAX_OF_USER = 60_000, 10_000
FORGOTTEN_AFTER_MS = 15 * 60_000
KEPT_MAX = 10_000


class _Failures(NamedTuple):
    times: int
    last_ms: int


class _Tries:
    """Of sources, or for users, by their name."""

    def __init__(self, *, free: int, wait_ms_max: int) -> None:
        self._free = free
        self._wait_ms_max = wait_ms_max
        self.failures: OrderedDict[str, _Failures] = OrderedDict()
        self.under_way: Counter[str] = Counter()

    def failed_times(self, name: str, now_ms: int) -> int:
        """How often, as far as it is not forgotten."""
        found = self.failures.get(name)
        is_kept = found is not None and now_ms - found.last_ms < FORGOTTEN_AFTER_MS
        return found.times if found is not None and is_kept else 0

    def check(self, name: str, now_ms: int) -> None:
        """QuotaExceededError, OverloadedError while there may be no further try."""
        beyond = self.failed_times(name, now_ms) - self._free
        if beyond < 0:
            if self.under_way[name] >= AT_ONCE_MAX:
                raise OverloadedError(
                    f"{AT_ONCE_MAX} logins from this address or for this user are under way;"
                    " try again",
                    retry_after_ms=WAIT_MS,
                )
            return
        waits_ms = min(self._wait_ms_max, WAIT_MS << min(beyond, 16))
        wait_ms = self.failures[name].last_ms + waits_ms - now_ms
        if self.under_way[name]:
            wait_ms = max(wait_ms, WAIT_MS)
        if wait_ms > 0:
            raise QuotaExceededError(
                f"too many logins have failed from this address or for this user; wait"
                f" {-(-wait_ms // 1000)} s",
                retry_after_ms=wait_ms,
            )

    def end(self, name: str) -> None:
        self.under_way[name] -= 1
        if not self.under_way[name]:
            del self.under_way[name]

    def fail(self, name: str, now_ms: int) -> None:
        self.failures[name] = _Failures(self.failed_times(name, now_ms) + 1, now_ms)
        self.failures.move_to_end(name)
        if len(self.failures) > KEPT_MAX:
            self.failures.popitem(last=False)


class LoginBackoff:
    """Of one controller, in memory."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._sources = _Tries(free=FREE_OF_SOURCE, wait_ms_max=WAIT_MS_MAX_OF_SOURCE)
        self._users = _Tries(free=FREE_OF_USER, wait_ms_max=WAIT_MS_MAX_OF_USER)

    @contextmanager
    def trying(self, user: str, source: str) -> Iterator[None]:
        """One try, that has failed if LoginFailedError is raised in it.

        QuotaExceededError while the source or the user has to wait, OverloadedError while too many
        tries are under way; neither is a try.
        """
        now_ms, source = self._clock_ms(), source_of(source)
        self._sources.check(source, now_ms)
        # Neither has failed whose first try is under way: many at once would all be the first.
        if self._sources.failed_times(source, now_ms) or self._sources.under_way[source]:
            self._users.check(user, now_ms)
        names = ((self._sources, source), (self._users, user))
        for tries, name in names:
            tries.under_way[name] += 1
        try:
            yield
        except LoginFailedError:
            for tries, name in names:
                tries.fail(name, self._clock_ms())
            raise
        finally:
            for tries, name in names:
                tries.end(name)
