"""Pure: compression of a batch's payload, bounded against bombs.

A compressed payload is `u32 compressed_bytes, u32 0`, the compressed bytes, zero padding to 8.
lz4 is one raw block, zstd one frame that carries its content size. What comes out must be exactly
`payload_raw_bytes`, which the header bounds to 16 MiB, and never more than that is allocated.
"""

import struct
from typing import Any

import lz4.block
import zstandard

from paceline.errors import CorruptLogError
from paceline.platform.ports import Buffer
from paceline.records.header import Codec

_PREFIX = struct.Struct("<II")
FASTEST = 1
"""Level 1: the broker never compresses, but a producer does it once per batch on its loop."""
ZSTD_LEVEL_MAX = 22
LZ4_LEVEL_MAX = 12
_LZ4_FAST_MAX = 2  # above, lz4 searches for better matches


def compress(raw: memoryview, codec: Codec, *, level: int = FASTEST) -> bytes | None:
    """The compressed payload with prefix and padding, or None if that is not smaller than `raw`."""
    assert codec != Codec.NONE
    if codec == Codec.LZ4:
        how: dict[str, Any] = {}
        if level > _LZ4_FAST_MAX:
            how = {"mode": "high_compression", "compression": level}
        packed: bytes = lz4.block.compress(raw, store_size=False, **how)
    else:
        packed = zstandard.ZstdCompressor(level=level).compress(raw)
    if _PREFIX.size + len(packed) + 7 >= len(raw):
        return None
    return b"".join((_PREFIX.pack(len(packed), 0), packed, bytes(-len(packed) % 8)))


def decompress(payload: memoryview, codec: int, raw_bytes: int) -> bytes:
    """The `raw_bytes` bytes `payload` stands for. Raises CorruptLogError for anything else."""
    if len(payload) < _PREFIX.size:
        raise CorruptLogError(f"compressed payload of {len(payload)} bytes has no length")
    packed_bytes, zero = _PREFIX.unpack_from(payload)
    if zero or not 0 <= len(payload) - _PREFIX.size - packed_bytes < 8:
        raise CorruptLogError(
            f"compressed payload of {len(payload)} bytes names a length of {packed_bytes}"
        )
    packed = payload[_PREFIX.size : _PREFIX.size + packed_bytes]
    raw = _unlz4(packed, raw_bytes) if codec == Codec.LZ4 else _unzstd(packed, raw_bytes)
    if len(raw) != raw_bytes:
        raise CorruptLogError(f"payload decompressed to {len(raw)} bytes, not {raw_bytes}")
    return raw


def _unlz4(packed: Buffer, raw_bytes: int) -> bytes:
    try:
        raw: bytes = lz4.block.decompress(packed, uncompressed_size=raw_bytes)
    except (lz4.block.LZ4BlockError, ValueError) as error:
        raise CorruptLogError(f"lz4 payload does not decompress: {error}") from error
    return raw


def _unzstd(packed: Buffer, raw_bytes: int) -> bytes:
    try:
        # The decompressor trusts a frame's own size over max_output_size: compare it first.
        content_bytes = zstandard.frame_content_size(packed)
        if content_bytes != raw_bytes:
            raise CorruptLogError(f"zstd frame of {content_bytes} bytes, not {raw_bytes}")
        # A context per call: one shared by two threads would corrupt memory.
        return zstandard.ZstdDecompressor().decompress(
            packed, max_output_size=raw_bytes, allow_extra_data=False
        )
    except (zstandard.ZstdError, ValueError) as error:
        raise CorruptLogError(f"zstd payload does not decompress: {error}") from error
