"""Pure: a debounce for each group: a condition counts once it has held for a while."""

from dataclasses import dataclass, field

from paceline.types import GroupName


@dataclass(slots=True)
class Settling:
    """Owned by `Liveness`, which forgets a group as soon as it is no longer so."""

    settle_ms: int
    _since: dict[GroupName, int] = field(default_factory=dict)

    def forget(self, group: GroupName) -> None:
        """It is not so at this moment, or it is not known yet."""
        self._since.pop(group, None)

    def forget_all(self) -> None:
        """Another leader judges from now on."""
        self._since.clear()

    def has_lasted(self, group: GroupName, *, floor_ms: int, now_ms: int) -> bool:
        """It is so now: whether it has been for `settle_ms`. No time before `floor_ms` counts."""
        since_ms = self._since.setdefault(group, now_ms)
        return now_ms >= max(since_ms, floor_ms) + self.settle_ms
