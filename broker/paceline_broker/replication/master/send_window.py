"""Pure: how many bytes may wait for confirm, so that none waits long (R27).

A fixed limit is too much for a slow disk, where 256 MiB take longer than any send may, and too
little for a fast one. So the window follows what was seen: it shrinks when bytes that were appended
since it last shrank have waited for longer than `TARGET_MS`, and grows while it is in use and none
do. Where the wait does not come from the bytes, as when each sync takes a second, it stays at its
least: more would not wait less, and less would not either.

Who may have how much of it follows from what is left, as in `paceline.server.byte_budget`: a
connection may have as much unanswered as is free. So however many fill it, some is left for the
next one.
"""

MIB = 1024 * 1024
TARGET_MS = 80
"""The sends of others wait behind what is in the window: a tenth of a second at most, with the
turn of the loop and the way back."""
SIZE_START = 32 * MIB
SIZE_MIN = 8 * MIB
"""Two syncs of some 40 ms at 100 MB/s."""
GROWTH, FALL_MIN = 1.1, 0.5
"""Of one tick in which it was in use and nobody waited long; at most, of one fall."""
REFUSAL_RATIO = 2
"""Connections that have had their share are not read from. What comes all the same, from those with
nothing unanswered and from this broker's own work, is refused only beyond twice the window."""


class SendWindow:
    """Of one mastership. Owner: the term."""

    __slots__ = ("_fell_ms", "_is_late", "_peak_bytes", "_size_max", "size_bytes")

    def __init__(self, *, now_ms: int, bytes_max: int) -> None:
        """`bytes_max`: `unconfirmed_bytes_max`, beyond which everything is refused."""
        self._size_max = max(bytes_max // REFUSAL_RATIO, 1)
        self.size_bytes = min(SIZE_START, self._size_max)
        self._fell_ms = now_ms
        self._is_late = False
        """Bytes have waited long in this tick."""
        self._peak_bytes = 0
        """The most that waited in this tick."""

    @property
    def refusal_bytes(self) -> int:
        """Sends are refused while more than this is unconfirmed."""
        return self.size_bytes * REFUSAL_RATIO

    def has_room(self, unanswered_bytes: int, unconfirmed_bytes: int) -> bool:
        """Whether a connection that has so much unanswered may send more now."""
        return unanswered_bytes <= self.size_bytes - unconfirmed_bytes

    def wrote(self, unconfirmed_bytes: int) -> None:
        """So much waits for confirm, with what was written just now."""
        if unconfirmed_bytes > self._peak_bytes:
            self._peak_bytes = unconfirmed_bytes

    def waited(self, waits_ms: list[int], now_ms: int) -> None:
        """Bytes were confirmed now, after they had waited so long."""
        for wait_ms in waits_ms:
            self._judge(wait_ms, now_ms)

    def tick(self, longest_ms: int | None, now_ms: int) -> None:
        """A tick is over; `longest_ms`: so long the oldest of the unconfirmed bytes wait."""
        if longest_ms is not None:
            self._judge(longest_ms, now_ms)
        if self._peak_bytes * 2 >= self.size_bytes and not self._is_late:
            self.size_bytes = min(int(self.size_bytes * GROWTH), self._size_max)
        self._is_late = False
        self._peak_bytes = 0

    def _judge(self, wait_ms: int, now_ms: int) -> None:
        """What was appended before the last fall still waits behind what was let in before it."""
        if wait_ms <= TARGET_MS:
            return
        self._is_late = True
        if now_ms - wait_ms >= self._fell_ms:
            factor = max(TARGET_MS / wait_ms, FALL_MIN)
            least = min(SIZE_MIN, self._size_max)
            self.size_bytes = max(int(self.size_bytes * factor), least)
            self._fell_ms = now_ms
