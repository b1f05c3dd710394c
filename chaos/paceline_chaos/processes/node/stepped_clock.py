"""A Clock whose wall time jumps and whose speed changes as the control page says."""

from paceline.platform.ports import Clock
from paceline_chaos.processes.node.control import Control

_MILLION = 1_000_000


class SteppedClock:
    """`base` with offset and rate. Running time never goes back, also when the rate changes."""

    def __init__(self, base: Clock, control: Control) -> None:
        self._base = base
        self._control = control
        self._seen_ms = base.monotonic_ms()
        self._gained_millionths = 0
        """What a rate other than 1 has added so far, in millionths of ms."""

    def monotonic_ms(self) -> int:
        now = self._base.monotonic_ms()
        passed, self._seen_ms = now - self._seen_ms, now
        # Slower than standing still would be going back.
        rate_ppm = max(self._control.get("rate_ppm"), -_MILLION)
        self._gained_millionths += passed * rate_ppm
        return now + self._gained_millionths // _MILLION

    def unix_ms(self) -> int:
        self.monotonic_ms()
        gained = self._gained_millionths // _MILLION
        return self._base.unix_ms() + gained + self._control.get("wall_offset_ms")
