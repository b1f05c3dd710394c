"""Pure: what one stream connection holds of the broker's memory (ADR 18): frames that arrive, and
requests that are not answered.

A frame's buffer begins small and doubles as bytes arrive, each step held in the budget before it
is made: who only announces 16 MiB gets 64 KiB. Who has sent large frames gets the next one in one
piece. A frame that may not grow is refused, and the rest of it passed over.

Requests are held in steps of `STEP_BYTES`, so that most of them ask nothing of the budget.
"""

from paceline.platform.ports import Buffer
from paceline.server.byte_budget import ByteHolder

FIRST_BYTES = 64 * 1024
"""Of the buffer of a first large frame: what a socket gives at once, and a memcpy of some us."""
STEP_BYTES = 64 * 1024
AHEAD_BYTES = 256 * 1024
"""One read of a socket: while other requests are unanswered, reading goes on only with room for
that, so that few are refused for want of it."""


class FrameBuffer:
    """The frame that is being received, if there is one, or the rest of one that was refused."""

    __slots__ = ("_holder", "_usual_bytes", "filled", "left_out", "number", "total", "view")

    def __init__(self, holder: ByteHolder) -> None:
        self._holder = holder
        self._usual_bytes = FIRST_BYTES
        """What this connection has shown to send."""
        self.view: memoryview | None = None
        """What is allocated; `filled` bytes of it are there, `total` will be."""
        self.filled = 0
        self.total = 0
        self.left_out = 0
        """Bytes of a refused frame that are still to come."""
        self.number = 0
        """Counts frames, so that one can be told from the next."""

    @property
    def missing_bytes(self) -> int:
        """What the frame under way still has to be given."""
        return 0 if self.view is None else self.total - len(self.view)

    def begin(self, total: int, *pieces: Buffer) -> bool:
        """A frame of `total` bytes begins with these. False: refused, `left_out` says what comes
        of it."""
        arrived = sum(map(len, pieces))
        self.number += 1
        self.total, self.filled = total, 0
        size = min(total, max(self._usual_bytes, arrived))
        if not self._holder.has_room(size):
            size = arrived
        if not self._holder.take(size):
            self.left_out = total - arrived
            return False
        self.view = memoryview(bytearray(size))
        for piece in pieces:
            self.view[self.filled : self.filled + len(piece)] = piece
            self.filled += len(piece)
        return True

    def grow(self, wanted: int) -> bool:
        """Make room for `wanted` bytes more, or for the rest of the frame. False: there is none."""
        view = self.view
        assert view is not None
        size, needed = len(view), min(self.total, self.filled + wanted)
        if needed <= size:
            return True
        doubled = max(needed, min(self.total, 2 * size))
        if self._holder.has_room(doubled - size):
            needed = doubled
        if not self._holder.take(needed - size):
            return False
        self.view = memoryview(bytearray(needed))
        self.view[: self.filled] = view[: self.filled]
        return True

    def refuse(self) -> None:
        """Give it up half-way."""
        self.left_out = self.total - self.filled
        self._give()

    def completed(self) -> memoryview | None:
        """The whole frame, once it is there; from now on it is the caller's, and not held here."""
        view = self.view
        if view is None or self.filled < self.total:
            return None
        self._usual_bytes = self.total
        self._give()
        return view

    def _give(self) -> None:
        assert self.view is not None
        self._holder.give(len(self.view))
        self.view = None


class RequestBytes:
    """The unanswered requests of one connection; `held` bytes of the budget are theirs."""

    __slots__ = ("_holder", "held")

    def __init__(self, holder: ByteHolder) -> None:
        self._holder = holder
        self.held = 0

    def grow(self, unanswered: int) -> bool:
        """Hold at least `unanswered`. False: there is no room, and what came last is refused."""
        size = unanswered - self.held
        stepped = -(-size // STEP_BYTES) * STEP_BYTES
        if self._holder.has_room(stepped):
            size = stepped
        if not self._holder.take(size):
            return False
        self.held += size
        return True

    def shrink(self, unanswered: int) -> None:
        """Give back what is not needed now, but for one step."""
        kept = max(STEP_BYTES, -(-unanswered // STEP_BYTES) * STEP_BYTES)
        if kept < self.held:
            self._holder.give(self.held - kept)
            self.held = kept

    def is_short(self, unanswered: int, frame: FrameBuffer) -> bool:
        """Whether a read more, or the rest of the frame that is received, could not be held."""
        wanted = frame.missing_bytes
        if not wanted and self.held - unanswered >= AHEAD_BYTES:
            return False
        return not self._holder.has_room(wanted + AHEAD_BYTES)

    def rest(self) -> None:
        """Nothing is unanswered: give everything back."""
        self._holder.give(self.held)
        self.held = 0
