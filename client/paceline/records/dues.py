"""Pure: due times of DELAY batches: how a client writes a delay, and what the broker makes of it.

In the log a DUE value is always the wall-clock time in unix ms. A client that sends may write:

    0 and above               that time, by the wall clock of whoever chose it
    -1 .. -DELAY_MS_MAX       a delay of 1 .. DELAY_MS_MAX ms, from when the broker stores it
    -(LEVEL_ZERO + level)     the delay of RocketMQ's level, as the broker's settings have it

so that a client's wrong clock makes nothing early that was meant as a delay. The master puts the
times in (`with_dues`); the payload's CRC is then its own, which is no loss: readers never see a
DELAY batch, they get the one that delivers it.
"""

import struct
from collections.abc import Sequence

from crc32c import crc32c

from paceline.errors import BadRequestError, TooLargeError
from paceline.platform.ports import Buffer
from paceline.records.compression import compress
from paceline.records.decode import BatchView
from paceline.records.header import (
    BATCH_BYTES_MAX,
    HEADER_BYTES,
    BatchHeader,
    Codec,
    Section,
    pack_header,
    parse_header,
)

DELAY_MS_MAX = 2**53
LEVEL_ZERO = 2**62
LEVEL_MAX = 2**16
"""No more levels can be written; brokers have far fewer."""

MESSAGE_DELAY_LEVEL = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
"""RocketMQ's 18 delay levels: the default of a broker's setting of that name."""

_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def due_of_delay(delay_ms: int) -> int:
    """What a client writes for a delay of at least 1 ms."""
    if type(delay_ms) is not int or not 1 <= delay_ms <= DELAY_MS_MAX:
        raise BadRequestError(
            f"a delay of {delay_ms!r} ms: it is a number that is not negative", field="delay_ms"
        )
    return -delay_ms


def due_of_level(level: int) -> int:
    """What a client writes for a delay level, from 1 on."""
    if type(level) is not int or not 1 <= level <= LEVEL_MAX:
        raise BadRequestError(
            f"delay level {level!r}: levels begin at 1, 0 is no delay", field="delay_level"
        )
    return -(LEVEL_ZERO + level)


def written_due(
    level: int | None, delay_ms: int | None, delivery_unix_ms: int | None
) -> int | None:
    """What a client writes for a message; a level wins over a delay, that over a time.

    None: it is not delayed, as 0 says everywhere. BadRequestError for what is no such number.
    """
    if level:
        return due_of_level(level)
    if delay_ms:
        return due_of_delay(delay_ms)
    if delivery_unix_ms:
        if type(delivery_unix_ms) is not int or delivery_unix_ms < 0:
            raise BadRequestError(
                f"a delivery time of {delivery_unix_ms!r}: it is in unix ms",
                field="delivery_unix_ms",
            )
        return delivery_unix_ms
    return None


def parse_levels(text: str) -> tuple[int, ...]:
    """RocketMQ's messageDelayLevel, "1s 5s 10s ... 2h", as ms; ValueError says what is wrong."""
    levels = []
    for word in text.split():
        number, unit = word[:-1], word[-1]
        if unit not in _UNITS_MS or not number.isascii() or not number.isdecimal():
            raise ValueError(f"{word!r} is no delay: write a number and s, m, h or d, as in 10s")
        levels.append(int(number) * _UNITS_MS[unit])
    if not levels:
        raise ValueError("no delay level is named")
    return tuple(levels)


def resolve_dues(
    written: Sequence[int], *, levels_ms: Sequence[int], now_unix_ms: int
) -> list[int]:
    """Times of what a client wrote; a level above the highest is the highest (as RocketMQ has it).

    BadRequestError for a value that means nothing.
    """
    return [
        due if due >= 0 else now_unix_ms + _delay_ms(due, levels_ms=levels_ms) for due in written
    ]


def _delay_ms(written: int, *, levels_ms: Sequence[int]) -> int:
    if written >= -DELAY_MS_MAX:
        return -written
    level = -written - LEVEL_ZERO
    if not 1 <= level <= LEVEL_MAX:
        raise BadRequestError(f"due time {written} means nothing", field="due")
    return levels_ms[min(level, len(levels_ms)) - 1]


def with_dues(batch: Buffer, dues: Sequence[int]) -> tuple[bytes, BatchHeader]:
    """The batch with other due times, and its header; nothing else changes.

    TooLargeError if its payload does not shrink any more and is over the limit then.
    """
    view = BatchView(batch)
    header = view.header
    payload = bytearray(view.payload())
    start, length = view.place_of(Section.DUE)
    payload[start : start + length] = struct.pack(f"<{header.record_count}q", *dues)
    packed = compress(memoryview(payload), Codec(header.codec)) if header.codec else None
    body = bytes(payload) if packed is None else packed
    size = HEADER_BYTES + len(body)
    if size > BATCH_BYTES_MAX:
        raise TooLargeError(f"batch of {size} bytes", limit=BATCH_BYTES_MAX)
    header = header._replace(
        size_bytes=size,
        payload_crc32c=crc32c(body),
        codec=header.codec if packed is not None else Codec.NONE,
    )
    whole = pack_header(header) + body
    return whole, parse_header(whole)
