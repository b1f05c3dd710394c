"""Blocks of bytes from a file or a pipe, without stopping the event loop for a slow writer."""

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from typing import BinaryIO

from paceline.platform.runtime import pause

BLOCK_BYTES = 128 * 1024
"""A few hundred messages: enough for a batch, little enough for a moving bar."""


async def blocks(file: BinaryIO) -> AsyncIterator[bytes]:
    """The content of `file` until its end. A pipe's bytes come as soon as they are written."""
    if _is_live(file):
        async for block in _pipe_blocks(file):
            yield block
        return
    while block := file.read(BLOCK_BYTES):
        yield block
        await pause(0)  # reading a file never waits, so let the sends go out


def _is_live(file: BinaryIO) -> bool:
    """Whether reading may wait for somebody; files and /dev/null cannot be polled."""
    try:
        mode = os.fstat(file.fileno()).st_mode
    except OSError:
        return False  # bytes in memory
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or file.isatty()


async def _pipe_blocks(file: BinaryIO) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=BLOCK_BYTES)
    was_blocking = os.get_blocking(file.fileno())
    # A copy of the descriptor, because the transport closes what it is given.
    copy = os.fdopen(os.dup(file.fileno()), "rb", buffering=0)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), copy)
    try:
        while block := await reader.read(BLOCK_BYTES):
            yield block
    finally:
        transport.close()
        # The mode belongs to the terminal or pipe, which others go on using.
        os.set_blocking(file.fileno(), was_blocking)
