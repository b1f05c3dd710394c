"""Pure: how long locks are still withheld when another epoch begins (R33, R36).

The first epoch after an acting master withholds every lock until the acting one's leases have run
out. Log time cannot say in a later epoch how much of that is over, for it leaps with each new
master's clock. The process that begins the epoch can: since it first saw the record that withholds,
time has passed by its own monotonic clock, and the acting master had ended before that record was
made. A process that saw it late, or only now, withholds longer, never shorter.
"""

from paceline.types import MasterEpoch
from paceline_broker.projections.locks import Withheld


class WithheldWatch:
    """When this process first saw what withholds locks. `now_ms` is the monotonic clock."""

    def __init__(self) -> None:
        self._since_epoch = MasterEpoch(0)
        self._seen_ms = 0

    def look(self, withheld: Withheld, *, now_ms: int) -> None:
        """The projections say this now."""
        if withheld.since_epoch != self._since_epoch:
            self._since_epoch = withheld.since_epoch
            self._seen_ms = now_ms

    def rest_ms(self, withheld: Withheld, *, now_ms: int) -> int:
        """What is left of it, at most: for the record that begins the next epoch."""
        if withheld.since_epoch == 0:  # a checkpoint of feature level 2 does not say
            return withheld.leases_ms
        self.look(withheld, now_ms=now_ms)
        return max(0, withheld.leases_ms - (now_ms - self._seen_ms))
