"""Confirmed bytes of the log for the service, on a master and on a replica alike."""

from collections.abc import Awaitable, Callable

from paceline.types import PhysicalOffset
from paceline_broker.log.repair import first_bad
from paceline_broker.storage.store import Store

ConfirmListener = Callable[[PhysicalOffset], None]


class StoreReader:
    """LogReader over the store; owned by the role, which calls `confirm_moved` after folding."""

    def __init__(self, store: Store, *, on_damage: Callable[[PhysicalOffset, str], None]) -> None:
        """`on_damage(position, reason)`: a reader met bytes that are not what was written."""
        self._log = store.log
        self._store = store
        self._listeners: dict[int, ConfirmListener] = {}
        self._next_key = 0
        self._on_damage = on_damage
        self.is_readable = False
        """Set by the role once a master's frame, or an own open epoch, has told confirm (R3)."""

    @property
    def start(self) -> PhysicalOffset:
        return self._log.start

    @property
    def confirm(self) -> PhysicalOffset:
        return self._log.confirm

    def epochs(self) -> list[dict[str, int]]:
        """Which master epoch wrote which bytes of this log, oldest first."""
        entries, end = self._log.epochs.entries, self._log.end
        stops = [*(entry.start for entry in entries[1:]), end]
        return (
            [
                {"epoch": entry.epoch, "start": entry.start, "end": stop}
                for entry, stop in zip(entries, stops, strict=True)
            ]
            if entries
            else []
        )

    def read(self, start: PhysicalOffset, max_bytes: int) -> memoryview:
        return self._log.read(start, max_bytes)

    def is_damaged(self, start: PhysicalOffset, end: PhysicalOffset) -> bool:
        """Whether bytes of [start, end) are known to be wrong: nobody is given them (R24)."""
        damage = self._log.damage
        return damage is not None and damage.covers(start, end)

    def is_sound(self, view: memoryview, position: PhysicalOffset) -> bool:
        """Whether the whole batches of `view` are right there; a bad one is reported."""
        bad = first_bad(view, position)
        if bad is not None:
            self._on_damage(bad, "a reader found it")
        return bad is None

    def is_cold(self, view: memoryview) -> bool:
        return self._log.is_cold(view)

    def warm(self, view: memoryview) -> Awaitable[None]:
        return self._log.warm(view)

    def on_confirm(self, callback: ConfirmListener) -> Callable[[], None]:
        """Call `callback` after each move of confirm; returns what cancels that."""
        key = self._next_key
        self._next_key += 1
        self._listeners[key] = callback

        def cancel() -> None:
            self._listeners.pop(key, None)

        return cancel

    def confirm_moved(self, confirm: PhysicalOffset) -> None:
        """Confirm moved and is folded."""
        self._store.projections.retain(confirm)
        for listener in list(self._listeners.values()):
            listener(confirm)
