"""Frames out of what a stream connection receives (docs/protocol/stream.md)."""

import asyncio
from abc import abstractmethod
from typing import NoReturn

from paceline.errors import BadRequestError
from paceline.platform.ports import Buffer
from paceline.platform.telemetry import strangers
from paceline.server.turns import Turns
from paceline.wire.http import JSON_BYTES_MAX
from paceline.wire.stream import (
    FRAME_BYTES_MAX,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    STATUS_OK,
    Operation,
)
from paceline_broker.server.stream_memory import AHEAD_BYTES, FrameBuffer

SCRATCH_BYTES = AHEAD_BYTES
"""One read of a socket."""
DIRECT_BYTES = 64 * 1024
"""From here the rest of a frame is received in place: to copy less is cheaper than a read more."""
TURN_REQUESTS_MAX = 64
"""Fetches and calls of one connection in one turn of the loop: some 50 us each (measured). All
connections together have `turns`."""
_unpack_header = FRAME_HEADER.unpack_from


class StreamFrames(asyncio.BufferedProtocol):
    """The receiving half of a connection; what is done with its requests is the subclass's.

    `_take` hears of each request, `_refuse_request` of each for which there is no memory, and
    `_regulate` when reading may have to wait: `_later` holds what is read in the next turn.
    """

    def __init__(self, scratch: memoryview, turns: Turns) -> None:
        """`scratch`: of all connections, `SCRATCH_BYTES` long; so are `turns`."""
        self._transport: asyncio.Transport | None = None
        self._scratch = scratch
        self._turns = turns
        self._frame: FrameBuffer
        self._is_direct = False
        self._head = b""
        """Bytes that are no whole frame header yet."""
        self._later = b""
        self._turn_requests = 0
        """Fetches and calls since `_read_later`; who has had enough for a turn sets the limit."""

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def _take(self, request_id: int, operation: int, body: Buffer) -> None: ...

    @abstractmethod
    def _may_take(self, size: int) -> bool:
        """Whether a request with a body of `size` bytes may be read now; else the rest of what was
        read is kept for `_read_later`."""

    @abstractmethod
    def _refuse_request(self, request_id: int, operation: int, what: str) -> None: ...

    @abstractmethod
    def _regulate(self) -> None: ...

    def get_buffer(self, sizehint: int) -> memoryview:
        frame = self._frame
        view = frame.view
        if view is not None and len(view) - frame.filled >= DIRECT_BYTES:
            self._is_direct = True
            return view[frame.filled :]
        self._is_direct = False
        return self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        try:
            if self._is_direct:
                self._frame.filled += nbytes
                self._advance_frame(min(DIRECT_BYTES, self._frame.total - self._frame.filled))
            else:
                self._read_frames(nbytes)
        except BadRequestError as error:
            strangers.warning("stream_broken", extra={"reason": error.message})
            self.close()

    def _read_frames(self, size: int) -> None:
        scratch = self._scratch
        at = 0
        if self._frame.view is not None or self._frame.left_out:
            at = self._fill_frame(size)
        elif self._head:
            at = self._complete_head(size)
            if at < 0:
                return
        while size - at >= FRAME_HEADER_BYTES:
            if self._turn_requests >= TURN_REQUESTS_MAX or not self._turns.take():
                self._wait_with(at, size)
                return
            frame_bytes, request_id, operation, status, reserved = _unpack_header(scratch, at)
            if not self._is_header(frame_bytes, operation, status, reserved):
                _refuse(frame_bytes, operation)
            if not self._may_take(frame_bytes - FRAME_HEADER_BYTES):
                self._wait_with(at, size)
                return
            end = at + frame_bytes
            if end > size:
                self._begin_frame(scratch[at:size])
                return
            self._take(request_id, operation, bytes(scratch[at + FRAME_HEADER_BYTES : end]))
            at = end
        self._head = bytes(scratch[at:size])

    def _wait_with(self, start: int, end: int) -> None:
        """What was read and is not taken waits for `_read_later`, and reading with it."""
        self._later = bytes(self._scratch[start:end])
        self._regulate()

    def _read_later(self) -> None:
        """The next turn: what was left of the last read."""
        self._turn_requests = 0
        later, self._later = self._later, b""
        self._scratch[: len(later)] = later
        self._is_direct = False
        self.buffer_updated(len(later))

    def _complete_head(self, size: int) -> int:
        """Bytes were left that are no whole header: put the start of this read behind them. -1: the
        request has to wait."""
        left = self._head
        take: int = min(FRAME_HEADER_BYTES - len(left), size)
        head = left + bytes(self._scratch[:take])
        if len(head) < FRAME_HEADER_BYTES:
            self._head = head
            return take
        frame_bytes, _, operation, status, reserved = _unpack_header(head)
        if not self._is_header(frame_bytes, operation, status, reserved):
            _refuse(frame_bytes, operation)
        if not self._may_take(frame_bytes - FRAME_HEADER_BYTES):
            self._wait_with(0, size)  # with the same start of a header before it
            return -1
        self._head = b""
        end: int = min(take + frame_bytes - FRAME_HEADER_BYTES, size)
        self._begin_frame(head, self._scratch[take:end])
        self._advance_frame(0)
        return end

    def _is_header(self, frame_bytes: int, operation: int, status: int, reserved: int) -> bool:
        limit = FRAME_BYTES_MAX if operation == Operation.PRODUCE else JSON_BYTES_MAX
        return (
            FRAME_HEADER_BYTES <= frame_bytes <= limit
            and Operation.PRODUCE <= operation <= Operation.FOLLOW
            and status == STATUS_OK
            and reserved == 0
        )

    def _begin_frame(self, *pieces: Buffer) -> None:
        frame_bytes, request_id, operation, _, _ = _unpack_header(pieces[0])
        if not self._frame.begin(frame_bytes, *pieces):
            self._refuse_request(request_id, operation, f"a frame of {frame_bytes} bytes")
        elif self._frame.missing_bytes:
            self._regulate()

    def _fill_frame(self, size: int) -> int:
        """Bytes of this read that belong to the frame under way, or to one that was refused."""
        frame, at = self._frame, 0
        while frame.view is not None and at < size:
            view, filled = frame.view, frame.filled
            count: int = min(len(view) - filled, size - at)
            view[filled : filled + count] = self._scratch[at : at + count]
            frame.filled, at = filled + count, at + count
            if not self._advance_frame(size - at):
                break
        passed: int = min(frame.left_out, size - at)
        frame.left_out -= passed
        return at + passed

    def _advance_frame(self, wanted: int) -> bool:
        """Take the frame if it is complete, else have room for `wanted` bytes more of it. False: it
        was refused."""
        frame = self._frame
        if frame.view is None:
            return frame.left_out == 0
        whole = frame.completed()
        if whole is not None:
            _, request_id, operation, _, _ = _unpack_header(whole)
            self._take(request_id, operation, whole[FRAME_HEADER_BYTES:])
        elif not frame.grow(wanted):
            _, request_id, operation, _, _ = _unpack_header(frame.view)
            frame.refuse()
            self._refuse_request(request_id, operation, f"a frame of {frame.total} bytes")
            return False
        return True


def _refuse(frame_bytes: int, operation: int) -> NoReturn:
    raise BadRequestError(f"no frame: {frame_bytes} bytes, operation {operation}")
