"""Pure: bodies that clients have compressed, made plain here, bounded against bombs.

What the log keeps is the plain body, which every consumer reads; batches are compressed as a whole.
So the bit of the message's sysFlag is taken away with it.
"""

import zlib

import lz4.frame
import zstandard

from paceline.errors import BadRequestError, TooLargeError
from paceline.records.header import MESSAGE_BYTES_MAX
from paceline_gateway.remoting.codec.codes import BODY_COMPRESSED, COMPRESSION_SHIFT

_LZ4, _ZSTD, _ZLIB = 1, 2, 3


def plain_body(body: bytes, sys_flag: int) -> bytes:
    """The body of a message as its producer made it. BadRequestError: it is not compressed as
    `sys_flag` says; TooLargeError."""
    if not sys_flag & BODY_COMPRESSED:
        return body
    kind = sys_flag >> COMPRESSION_SHIFT & 7
    try:
        if kind == _LZ4:
            lz4_reader = lz4.frame.LZ4FrameDecompressor()
            plain = lz4_reader.decompress(body, max_length=MESSAGE_BYTES_MAX + 1)
            is_whole = bool(lz4_reader.eof)
        elif kind == _ZSTD:
            zstd_reader = zstandard.ZstdDecompressor(max_window_size=1 << 27)
            with zstd_reader.stream_reader(body) as stream:
                plain = stream.read(MESSAGE_BYTES_MAX + 1)
            is_whole = True
        elif kind in (0, _ZLIB):  # 4.x says nothing
            zlib_reader = zlib.decompressobj()
            plain = zlib_reader.decompress(body, MESSAGE_BYTES_MAX + 1)
            is_whole = zlib_reader.eof
        else:
            raise BadRequestError(f"compression {kind} is none of zlib, LZ4, Zstandard")
    except (zlib.error, zstandard.ZstdError, RuntimeError, EOFError) as error:
        raise BadRequestError(f"the body is not compressed as its sysFlag says: {error}") from error
    if len(plain) > MESSAGE_BYTES_MAX:
        raise TooLargeError(
            f"the body has more than {MESSAGE_BYTES_MAX} bytes when it is decompressed",
            limit=MESSAGE_BYTES_MAX,
        )
    if not is_whole:
        raise BadRequestError("the compressed body ends too early")
    return bytes(plain)
