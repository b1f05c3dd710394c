"""Pure: how the messages of repairs and escapes are read. Those of the handshake read their own.

Any byte string is a message of one of the kinds that are expected now, or PeerError.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

from paceline.errors import BadRequestError, CorruptLogError, PeerError
from paceline.platform.ports import Buffer
from paceline.types import GroupName, Incarnation, ReplicaId
from paceline.wire.fields import Fields, parse_object
from paceline.wire.proof import NONCE_BYTES
from paceline_broker.replication.handshake import MESSAGE_BYTES_MAX, Hello, Refused

Message = TypeVar("Message")


def parse_message(body: Buffer, kinds: Mapping[str, Callable[[Fields], Message]]) -> Message:
    """The message, read by the function of its kind."""
    try:
        document = parse_object(bytes(body), size_bytes_max=MESSAGE_BYTES_MAX)
        fields = Fields(document, name="message")
        read = kinds.get(fields.text("kind"))
        if read is None:
            raise PeerError(f"expected one of {', '.join(kinds)}, got another message")
        return read(fields)
    except (BadRequestError, CorruptLogError) as error:
        raise PeerError(error.message) from error


def read_hello(fields: Fields) -> Hello:
    return Hello(
        cluster_id=fields.text("cluster_id"),
        group=GroupName(fields.text("group")),
        replica_id=ReplicaId(fields.integer("replica_id")),
        incarnation=Incarnation(fields.integer("incarnation")),
        nonce=fields.hexadecimal("nonce", size_bytes=NONCE_BYTES),
    )


def read_refused(fields: Fields) -> Refused:
    return Refused(code=fields.text("code"), detail=fields.text("detail", length_max=1024))
