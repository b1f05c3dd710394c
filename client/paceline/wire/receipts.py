"""Pure: receipt handles, by which a simple consumer acknowledges what it was given.

A handle names one delivery: the message (topic id, queue, offset), the record that granted it (its
position in the broker group's log) and which attempt that was. It is bound to its consumer group by
a checksum, so a handle that was cut, made up or is of another group is refused before anything is
looked up; whether it is still the present one, the master decides from the log.
"""

import binascii
import struct
from binascii import a2b_base64, b2a_base64
from functools import lru_cache
from typing import NamedTuple

from crc32c import crc32c

from paceline.errors import InvalidReceiptHandleError

_VERSION = 1
_FIELDS = struct.Struct("<BIHHQQ")
_CRC = struct.Struct("<I")
_TO_URL, _FROM_URL = bytes.maketrans(b"+/", b"-_"), bytes.maketrans(b"-_", b"+/")
HANDLE_LENGTH_MAX = 256
ATTEMPT_MAX = 2**16 - 1


class Receipt(NamedTuple):
    """What a handle says."""

    broker_group: str
    """Whose master gave it."""
    topic_id: int
    queue_id: int
    offset: int
    position: int
    """Of the record of the grant, or of the change of its invisible time."""
    attempt: int
    """1 = the first delivery."""

    @property
    def key(self) -> int:
        """The queue, as brokers key their state."""
        return self.topic_id << 16 | self.queue_id


def format_handle(receipt: Receipt, group: str) -> str:
    """The opaque text of a receipt of consumer group `group`."""
    broker_group, topic_id, queue_id, offset, position, attempt = receipt
    packed = _FIELDS.pack(_VERSION, topic_id, queue_id, attempt, offset, position)
    packed += broker_group.encode()
    return _text(packed + _CRC.pack(crc32c(packed, _seed(group)))).decode()


def parse_handle(text: object, group: str) -> Receipt:
    """The receipt; InvalidReceiptHandleError unless `format_handle` made it for this group."""
    if not isinstance(text, str) or not 1 <= len(text) <= HANDLE_LENGTH_MAX or not text.isascii():
        raise _invalid(group)
    raw = text.encode()
    try:
        packed = a2b_base64(raw.translate(_FROM_URL) + b"=" * (-len(raw) % 4))
        body = packed[: -_CRC.size]
        (found,) = _CRC.unpack(packed[-_CRC.size :])
        version, topic_id, queue_id, attempt, offset, position = _FIELDS.unpack_from(body)
        broker_group = body[_FIELDS.size :].decode()
    except (binascii.Error, struct.error, ValueError):
        raise _invalid(group) from None
    if version != _VERSION or found != crc32c(body, _seed(group)):
        raise _invalid(group)
    if _text(packed) != raw:  # one text for each receipt: no bits to play with
        raise _invalid(group)
    return Receipt(broker_group, topic_id, queue_id, offset, position, attempt)


def _text(packed: bytes) -> bytes:
    return b2a_base64(packed, newline=False).rstrip(b"=").translate(_TO_URL)


def why_refused(code: str) -> str:
    """What is the matter with a well-formed handle that a master answered with `code`."""
    if code == InvalidReceiptHandleError.code:
        return (
            "no message is to be had by this receipt: its topic or its consumer group was deleted"
            " since it was given, or no broker gave it; nothing was changed"
        )
    return (
        "the message was given anew when its invisible time was over, or is done otherwise:"
        " somebody else may process it, too; nothing was changed"
    )


@lru_cache(maxsize=1024)
def _seed(group: str) -> int:
    """What checksums of a group's receipts begin with."""
    return int(crc32c(group.encode()))


def _invalid(group: str) -> InvalidReceiptHandleError:
    return InvalidReceiptHandleError(
        f"this is no receipt handle of consumer group {group}: it was cut, made up, or is of"
        " another group; pass on what receive has returned, unchanged",
        field="handle",
    )
