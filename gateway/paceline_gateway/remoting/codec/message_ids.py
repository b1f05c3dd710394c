"""Pure: offset message ids as RocketMQ writes them: store host, port, physical offset, in hex.

A client finds a message by it: it asks the host and port that the id names, here the listener of a
broker group, for the physical offset. What we call so has both where the batch of the message lies
and which record of it the message is (`pack_source`).
"""

import ipaddress
import struct

from paceline.errors import BadRequestError
from paceline.records.header import pack_source, unpack_source
from paceline.wire.message_ids import OffsetMessageId

_PORT = struct.Struct(">i")
I64_MAX = 2**63 - 1


def host_bytes(host: str, port: int) -> bytes:
    """An address as messages have it: 4 bytes, of IPv6 16, and 4 of the port."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        address = ipaddress.ip_address("0.0.0.0")  # a name: clients read only addresses
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).packed + _PORT.pack(port)


def physical_offset(position: int, number: int) -> int:
    """What stands for a record of the batch at `position` of its broker group's log."""
    return pack_source(position, number)


def place_of(offset: int, group: str) -> OffsetMessageId:
    """The message of a physical offset that a client names. BadRequestError: no log has it."""
    if not 0 <= offset <= I64_MAX:
        raise BadRequestError(f"offset {offset} names a place that no log has", field="offset")
    return OffsetMessageId(group, *unpack_source(offset))


def message_id(store_host: bytes, offset: int) -> str:
    """The id of a message at that store host."""
    return (store_host + offset.to_bytes(8, "big")).hex().upper()


def offset_in(message_id: str) -> int:
    """The physical offset in an id that `message_id` gave, of whatever host. BadRequestError."""
    try:
        content = bytes.fromhex(message_id)
    except ValueError:
        content = b""
    if len(content) not in (16, 28):
        raise BadRequestError(
            f"{message_id[:64]!r} is no offset message id: 32 hexadecimal digits, 56 by IPv6",
            field="msgId",
        )
    return int.from_bytes(content[-8:], "big")
