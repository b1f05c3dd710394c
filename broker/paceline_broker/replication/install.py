"""A projection checkpoint on its way from a master to a replica below its log's start (R14).

After a welcome that names it come the bytes of the master's checkpoint file and their SHA-256. The
master sends piece by piece, as the connection takes them; the replica writes them beside its own
checkpoints and trusts nothing before size, hash, CRC and position agree.
"""

import hashlib
from collections.abc import Awaitable
from typing import Protocol

from paceline.errors import PeerError
from paceline.platform.ports import Buffer
from paceline_broker.log.epochs import EpochTable
from paceline_broker.replication.handshake import Install

HASH_BYTES = 32
PIECE_BYTES = 256 * 1024
"""One callback hashes and sends at most this: 0.3 ms."""
INSTALL_BYTES_MAX = 4 * 1024 * 1024 * 1024
INSTALL_S_MAX = 600.0
"""From the welcome to the first acknowledgement; 4 GiB at 7 MB/s."""


class PieceWriter(Protocol):
    """The connection, to the sender."""

    def write(self, buffers: list[Buffer]) -> None: ...

    def drained(self) -> Awaitable[bool]:
        """Wait until more may be written; False: the connection has gone."""
        ...


async def send_checkpoint(link: PieceWriter, content: bytes) -> None:
    """Send `content` and its hash; returns early when the connection goes."""
    digest = hashlib.sha256()
    view = memoryview(content)
    for at in range(0, len(view), PIECE_BYTES):
        if not await link.drained():
            return
        piece = view[at : at + PIECE_BYTES]
        digest.update(piece)
        link.write([piece])
    link.write([digest.digest()])


class CheckpointTarget(Protocol):
    """A file beside the replica's own checkpoints, and what becomes of it. The store makes it."""

    def write(self, piece: Buffer) -> None:
        """StorageError if the disk refuses it."""
        ...

    def synced(self) -> Awaitable[None]:
        """All that was written is on the disk."""
        ...

    def discard(self) -> None: ...


class Reception:
    """The replica's side: takes bytes until all are there and the hash agrees."""

    def __init__(self, install: Install, epochs: EpochTable, target: CheckpointTarget) -> None:
        self.install = install
        self.epochs = epochs
        """Of the master's log: where the replica's begins, they are not in its bytes."""
        self.target = target
        self._digest = hashlib.sha256()
        self._left = install.size_bytes
        self._hash = b""

    @property
    def is_complete(self) -> bool:
        return len(self._hash) == HASH_BYTES

    def take(self, received: memoryview) -> int:
        """How much of `received` belonged to the checkpoint. PeerError if the hash differs."""
        piece = received[: self._left]
        if len(piece):
            self._digest.update(piece)
            self.target.write(bytes(piece))
            self._left -= len(piece)
        rest = received[len(piece) :][: HASH_BYTES - len(self._hash)]
        self._hash += bytes(rest)
        if self.is_complete and self._hash != self._digest.digest():
            raise PeerError("the checkpoint's hash differs from the master's")
        return len(piece) + len(rest)
