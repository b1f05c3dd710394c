"""What tests of stream share with others."""

from paceline.wire.stream import (
    FETCH_HEADER,
    FETCH_QUEUE,
)


def a_fetch(*queues: tuple[int, int, int], wait_ms: int = 0, max_bytes: int = 1 << 20) -> bytes:
    """Body of a fetch of (topic id, queue id, offset)."""
    rows = [FETCH_QUEUE.pack(*queue, max_bytes, 0) for queue in queues]
    return FETCH_HEADER.pack(wait_ms, max_bytes, 1, len(queues)) + b"".join(rows)
