"""The fingerprint of a run: every handle that ran and every byte that arrived, as one hash.

Two runs with equal digests did the same things in the same order at the same times. With
`keeps_log` the entries are kept as text too, so that `first_difference` can show where two runs
part; that costs memory and is for searching only.
"""

import hashlib
import zlib
from array import array
from collections.abc import Sequence
from itertools import zip_longest

_FLUSH_NUMBERS = 8192
"""So many numbers are hashed at once: one call of the hash for about 2700 handles."""


class Trace:
    """Owner: the loop."""

    __slots__ = ("_hash", "_numbers", "log")

    def __init__(self, *, keeps_log: bool = False) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self._numbers = array("Q")
        self.log: list[str] | None = [] if keeps_log else None

    def handle(self, now_ns: int, owner: int, sequence: int) -> None:
        """A handle is about to run."""
        numbers = self._numbers
        numbers.extend((now_ns, owner, sequence))
        if len(numbers) >= _FLUSH_NUMBERS:
            self._flush()

    def arrived(self, now_ns: int, socket: int, chunk: bytes) -> None:
        """Bytes have reached a socket."""
        self._numbers.extend((now_ns, socket, zlib.crc32(chunk)))
        if self.log is not None:
            self.log.append(f"{now_ns / 1000:.3f} bytes to socket {socket}: {chunk[:64]!r}")

    def note(self, now_ns: int, text: str) -> None:
        """Anything rare: a fault, the end of a process, an error that nobody caught."""
        self._numbers.extend((now_ns, zlib.crc32(text.encode())))
        if self.log is not None:
            self.log.append(f"{now_ns / 1000:.3f} {text}")

    def digest(self) -> str:
        """Of everything so far."""
        self._flush()
        return self._hash.hexdigest()

    def _flush(self) -> None:
        self._hash.update(self._numbers.tobytes())
        del self._numbers[:]


def first_difference(one: Sequence[str], other: Sequence[str]) -> str | None:
    """Where two logs part, with three lines before; None if they are equal."""
    for index, (left, right) in enumerate(zip_longest(one, other)):
        if left != right:
            before = "\n".join(one[max(0, index - 3) : index])
            return f"line {index}\n{before}\n- {left}\n+ {right}"
    return None
