"""Pure: when access keys were used last, to an hour: for whoever wonders which may be revoked.

Nodes note each use in memory. Brokers tell new ones with a heartbeat, the leading controller writes
them into the replicated state with its next tick: so a key costs a line of the log at most each
hour, however often it is shown.
"""

from collections.abc import Callable, Container, Mapping

from paceline.wire.session import KEY_USES_MAX

GRANULARITY_MS = 3600 * 1000


class KeyUses:
    """Of one node."""

    def __init__(self, clock_unix_ms: Callable[[], int]) -> None:
        self._clock_unix_ms = clock_unix_ms
        self._told: dict[str, int] = {}
        self._due: dict[str, int] = {}
        """What is to be told."""

    def used(self, access_key: str) -> None:
        """It was shown, or counts on an open connection, now."""
        self.heard({access_key: self._clock_unix_ms()})

    def heard(self, uses: Mapping[str, int]) -> None:
        """Access key -> when it was used, Unix time in ms: at this node or another one.

        What is ahead of the own clock was now: one that was wrong for a moment does not hide uses.
        """
        now_unix_ms = self._clock_unix_ms()
        for access_key, used in uses.items():
            at, told = min(used, now_unix_ms), self._told.get(access_key, 0)
            if at - told >= GRANULARITY_MS or told > now_unix_ms:
                self._due[access_key] = max(at, self._due.get(access_key, 0))

    def due(self) -> dict[str, int]:
        """What is to be told next, KEY_USES_MAX at most; `told` says that it was."""
        return dict(list(self._due.items())[:KEY_USES_MAX])

    def told(self, uses: Mapping[str, int]) -> None:
        self._told.update(uses)
        for access_key in uses:
            self._due.pop(access_key, None)

    def keep_only(self, access_keys: Container[str]) -> None:
        """Forget all others: they were revoked."""
        for kept in (self._told, self._due):
            for gone in [each for each in kept if each not in access_keys]:
                del kept[gone]
