"""Pure: properties of messages as RocketMQ writes them: name, byte 1, value, byte 2, and so on."""

from collections.abc import Mapping

from paceline.errors import BadRequestError

PROPERTIES_BYTES_MAX = 32_767
"""Clients read their length as a signed 16-bit number."""
_VALUE, _END = "\x01", "\x02"


def parse_properties(text: str) -> dict[str, str]:
    """The properties in a text. BadRequestError."""
    try:
        return dict([pair.split(_VALUE, 1) for pair in text.split(_END) if pair])
    except ValueError as error:
        raise BadRequestError("a property without a value", field="properties") from error


def properties_text(properties: Mapping[str, str]) -> bytes:
    """The text of properties, in UTF-8. What cannot be written there is left out: a name or value
    with one of the separators, and the last ones of what is too long together."""
    pairs = [f"{name}{_VALUE}{value}{_END}" for name, value in properties.items()]
    text = "".join(pairs)
    if text.count(_VALUE) != len(pairs) or text.count(_END) != len(pairs):
        text = "".join(pair for pair in pairs if pair.count(_VALUE) == 1 and pair.count(_END) == 1)
    encoded = text.encode()
    while len(encoded) > PROPERTIES_BYTES_MAX:
        encoded = encoded[: encoded.rfind(b"\x02", 0, -1) + 1]
    return encoded
