"""Pure: what workloads put into messages: the value's name, a blank, padding made of the name.

The name tells which send a stored message comes from; the padding makes sizes vary and makes a
byte that moved from one message to another show.
"""

from crc32c import crc32c

_ALPHABET = 26


def make_body(value: str, size_bytes: int) -> bytes:
    """The body of a message called `value`, at least `size_bytes` long."""
    head = value.encode() + b" "
    missing = max(0, size_bytes - len(head))
    first = crc32c(head) % _ALPHABET
    pattern = bytes(97 + (first + step) % _ALPHABET for step in range(_ALPHABET))
    return head + (pattern * (missing // _ALPHABET + 1))[:missing]


def value_of(body: bytes) -> str:
    """What a body says that it is called; any bytes give some name."""
    return body.partition(b" ")[0][:64].decode(errors="replace")


def crc_of(body: bytes) -> int:
    """crc32c of a whole body."""
    return int(crc32c(body))
