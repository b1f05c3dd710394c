"""Pure: what the messages between nodes have: how each is read strictly, and how it is written.

A message is a struct; on the wire it is a JSON object with a member that names its kind. Fields may
be bytes, in hexadecimal digits, or of a plain class (no dataclass) with `to_json` and `from_json`.
"""

import re
from typing import Any, ClassVar, Self, TypeVar

import msgspec

from paceline.errors import BadRequestError, CorruptLogError
from paceline.platform.ports import Buffer, Random
from paceline.wire.fields import parse_object
from paceline.wire.proof import NONCE_BYTES, PROOF_BYTES

MessageT = TypeVar("MessageT", bound=msgspec.Struct)


class Hex(bytes):
    """Bytes of a fixed size, on the wire twice as many hexadecimal digits in lower case."""

    SIZE_BYTES: ClassVar[int]


class Nonce(Hex):
    """Random bytes of one side of a connection, never used before."""

    SIZE_BYTES = NONCE_BYTES

    @classmethod
    def fresh(cls, random: Random) -> Self:
        """A new one."""
        return cls(random.token(NONCE_BYTES))


class Proof(Hex):
    """That its sender holds the cluster secret (`Statement`)."""

    SIZE_BYTES = PROOF_BYTES


NO_PROOF = Proof(PROOF_BYTES)
"""Stands in a message until its proof is made over it."""


def read_message(body: Buffer | str, kinds: type[MessageT], *, size_bytes_max: int) -> MessageT:
    """The message that a JSON text is; `kinds` is a struct or a union of structs.

    BadRequestError on anything else, with `field` where it is one field.
    """
    text = body if isinstance(body, str) else bytes(body)
    document = parse_object(text, size_bytes_max=size_bytes_max)
    try:
        return msgspec.convert(document, kinds, dec_hook=_from_json)
    except (msgspec.ValidationError, CorruptLogError) as error:
        said = str(error)
        place = re.search(r"field `(\w+)`|`\$\.(\w+)", said)
        details = {} if place is None else {"field": place[1] or place[2]}
        raise BadRequestError(f"message: {said}", **details) from error


def message_json(message: msgspec.Struct) -> dict[str, Any]:
    """As on the wire."""
    document: dict[str, Any] = msgspec.to_builtins(message, enc_hook=_to_json)
    return document


def _from_json(type_: type, value: Any) -> Any:
    if not issubclass(type_, Hex):
        return type_.from_json(value)  # type: ignore[attr-defined]
    digits = 2 * type_.SIZE_BYTES
    if not isinstance(value, str) or re.fullmatch(f"[0-9a-f]{{{digits}}}", value) is None:
        raise ValueError(f"expected {digits} hexadecimal digits")
    return type_(bytes.fromhex(value))


def _to_json(value: Any) -> Any:
    return value.hex() if isinstance(value, Hex) else value.to_json()
