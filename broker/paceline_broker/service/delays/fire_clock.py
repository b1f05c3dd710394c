"""What time it is for messages that wait: delays count from it, and what is due is due by it (R29).

The wall clock counts while the controllers' majority agrees with it. While they say nothing, it is
what it was when they agreed last, plus the process's running time. While they contradict it,
nothing is due, and new delays count from that reckoning, or from what the controllers say where
they never agreed: a wrong clock makes nothing early. Log time says less, as it never goes back
behind what a clock that ran ahead has left in the log.
"""

from collections.abc import Callable

from paceline.platform.ports import Clock
from paceline_broker.controllers.clock_skew import ClockTrust


class FireClock:
    """Of one broker; asked at least twice a second, so that it knows when the clock was right."""

    def __init__(
        self,
        clock: Clock,
        trust: Callable[[], ClockTrust],
        told_unix_ms: Callable[[], int | None] = lambda: None,
    ) -> None:
        """`told_unix_ms`: what it is by the controllers."""
        self._clock = clock
        self._trust = trust
        self._told_unix_ms = told_unix_ms
        self._agreed: tuple[int, int] | None = None
        """(wall clock, running time) when the controllers agreed last."""

    def due_until_ms(self) -> int | None:
        """Unix ms up to which messages are due now; None: nobody knows that the clock is right."""
        trust, unix_ms, reckoned_ms = self._look()
        if trust is ClockTrust.AGREES:
            return unix_ms
        if trust is ClockTrust.DIFFERS or reckoned_ms is None:
            return None
        return min(unix_ms, reckoned_ms)

    def delays_from_ms(self) -> int:
        """Unix ms from which a delay counts that begins now."""
        trust, unix_ms, reckoned_ms = self._look()
        if reckoned_ms is None and trust is not ClockTrust.AGREES:
            reckoned_ms = self._told_unix_ms()  # its clock was wrong before anybody could tell it
        return unix_ms if reckoned_ms is None else reckoned_ms

    def _look(self) -> tuple[ClockTrust, int, int | None]:
        """The controllers' word, the wall clock, and the reckoning from when they agreed."""
        unix_ms, running_ms = self._clock.unix_ms(), self._clock.monotonic_ms()
        trust = self._trust()
        if trust is ClockTrust.AGREES:
            self._agreed = (unix_ms, running_ms)
        if self._agreed is None:
            return trust, unix_ms, None
        agreed_unix_ms, agreed_running_ms = self._agreed
        return trust, unix_ms, agreed_unix_ms + running_ms - agreed_running_ms
