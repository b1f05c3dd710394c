"""Pure: latency fault tolerance (RocketMQ's `sendLatencyEnable`): slow brokers get a pause.

Each answer of a broker group says how long it took; a long time keeps new keyless messages away
from that group for a while, by RocketMQ's table. An attempt that failed counts as 10 s. It is
advice only: where no group is left, the next one in turn is taken all the same.
"""

from collections.abc import Sequence

LATENCY_MAX_MS = (50, 100, 550, 1_800, 3_000, 5_000, 15_000)
NOT_AVAILABLE_DURATION_MS = (0, 0, 2_000, 5_000, 6_000, 10_000, 30_000)
"""RocketMQ's defaults: from a latency of the first table on, the pause of the second."""
FAILURE_LATENCY_MS = 10_000
"""What a failed attempt counts as: a pause of 10 s with the defaults."""


class LatencyTable:
    """How long each broker group is to be avoided; times are the caller's monotonic ms."""

    __slots__ = ("_duration_ms", "_latency_max_ms", "_until_ms")

    def __init__(
        self,
        latency_max_ms: Sequence[int] = LATENCY_MAX_MS,
        not_available_duration_ms: Sequence[int] = NOT_AVAILABLE_DURATION_MS,
    ) -> None:
        assert len(latency_max_ms) == len(not_available_duration_ms)
        self._latency_max_ms = tuple(latency_max_ms)
        self._duration_ms = tuple(not_available_duration_ms)
        self._until_ms: dict[str, float] = {}

    def answered(self, group: str, latency_ms: float, *, now_ms: float) -> None:
        """An attempt was answered with success after `latency_ms`."""
        pause_ms = self.pause_ms(latency_ms)
        if pause_ms or group in self._until_ms:
            self._until_ms[group] = now_ms + pause_ms

    def failed(self, group: str, *, now_ms: float) -> None:
        """An attempt was refused or lost."""
        self._until_ms[group] = now_ms + self.pause_ms(FAILURE_LATENCY_MS)

    def is_available(self, group: str, *, now_ms: float) -> bool:
        """Whether nothing says that the group should be avoided now."""
        return self._until_ms.get(group, 0.0) <= now_ms

    def pause_ms(self, latency_ms: float) -> int:
        """How long a group with such an answer is avoided."""
        for limit, duration in zip(
            reversed(self._latency_max_ms), reversed(self._duration_ms), strict=True
        ):
            if latency_ms >= limit:
                return duration
        return 0
