"""Pure: whether a stream connection stands still for too long, judged at each sweep."""

from paceline.server.connections import ConnectionState
from paceline_broker.server.stream_memory import FrameBuffer

STALL_SWEEP_S = 5.0
STALL_SWEEPS = 6
"""A frame that is not whole, or an answer that is not taken, after 30 s closes the connection."""
SILENT_SWEEPS = 2
"""So does a frame of which nothing at all comes for 5 to 10 s."""
IDLE_SWEEPS = 24
"""120 s, as serverChannelMaxIdleTimeSeconds of RocketMQ; our clients say who they are each 30 s."""
UNUSED_SWEEPS = 3
"""A stream is opened to be used: one that has never asked for anything ends after 15 s."""


class Stillness:
    """Of one connection: what was seen at the last sweep, and for how many sweeps."""

    __slots__ = (
        "_asked",
        "_frame",
        "_idle_sweeps",
        "_moved",
        "_silent_sweeps",
        "_stalled_sweeps",
        "_unwritten",
        "asked_count",
    )

    def __init__(self) -> None:
        self.asked_count = 0
        """Requests so far; the connection counts them."""
        self._frame = self._unwritten = self._stalled_sweeps = 0
        self._moved = (0, 0)
        self._silent_sweeps = self._asked = self._idle_sweeps = 0

    def is_stalled(self, frame: FrameBuffer, *, unwritten: int, is_reading_paused: bool) -> bool:
        """Whether its frame or its writing (of `unwritten` bytes) stood still too long."""
        is_in_frame = frame.view is not None or frame.left_out > 0
        is_frame_stuck = is_in_frame and frame.number == self._frame
        is_writing_stuck = unwritten > 0 and unwritten == self._unwritten
        self._frame, self._unwritten = frame.number if is_in_frame else 0, unwritten
        self._stalled_sweeps += 1
        if not is_frame_stuck and not is_writing_stuck:
            self._stalled_sweeps = 0
        moved = (frame.filled, frame.left_out)
        is_silent = is_frame_stuck and moved == self._moved and not is_reading_paused
        self._moved = moved
        self._silent_sweeps = self._silent_sweeps + 1 if is_silent else 0
        return self._stalled_sweeps >= STALL_SWEEPS or self._silent_sweeps >= SILENT_SWEEPS

    def standing(self, *, is_idle: bool) -> ConnectionState | None:
        """Whether it is idle, for whom looks for a place; None once that has lasted too long."""
        has_more, self._asked = self.asked_count > self._asked, self.asked_count
        if not is_idle:
            self._idle_sweeps = 0
            return ConnectionState.BUSY
        self._idle_sweeps = 0 if has_more else self._idle_sweeps + 1
        if self._idle_sweeps >= (IDLE_SWEEPS if self.asked_count else UNUSED_SWEEPS):
            return None
        return ConnectionState.IDLE if self.asked_count else ConnectionState.SILENT
