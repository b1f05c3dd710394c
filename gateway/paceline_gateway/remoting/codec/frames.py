"""Pure: frames of RocketMQ's remoting protocol, and the commands in them.

    4 B  length of what follows
    4 B  serialization of the header (1 B: 0 JSON, 1 ROCKETMQ) and its length (3 B)
    ..   header: code, language, version, opaque, flag, remark, extFields
    ..   body

Numbers are big-endian. A binary header has code i16, language i8, version i16, opaque i32, flag
i32, remark (i32 length), and a map (i32 length) of keys (i16 length) and values (i32 length).
"""

import re
import struct
from typing import Any, NamedTuple

import orjson

from paceline.errors import BadRequestError
from paceline.platform.ports import Buffer
from paceline_gateway.remoting.codec.codes import (
    FLAG_ANSWER,
    FLAG_ONEWAY,
    LANGUAGES,
    SERVER_VERSION,
)

JSON, BINARY = 0, 1
HEADER_BYTES_MAX = 64 * 1024
"""The properties of a message are in it: at most 32 KiB of them."""
FRAME_BYTES_MAX = 4 * 1024 * 1024 + 2 * HEADER_BYTES_MAX
"""A message of 4 MiB and its header."""
_PREFIX = struct.Struct(">II")
_BINARY = struct.Struct(">hBhiii")
_LENGTH = struct.Struct(">i")
_KEY_LENGTH = struct.Struct(">h")
_OTHER = LANGUAGES.index("OTHER")
_OTHERS = {
    b"PRI": "a client speaks gRPC here",
    **dict.fromkeys((b"GET", b"POS", b"PUT", b"HEA"), "a client speaks HTTP here"),
    **{bytes((0x16, 0x03, minor)): "a client speaks TLS where none is" for minor in range(1, 4)},
}
"""Of what clients of other protocols begin with: those that come to the wrong port."""
_EXACT_BELOW = 2**53
"""Numbers of JavaScript, by which ali-ons reads physical offsets, are not exact from there on: a
broker group's log comes there with 128 GiB."""
_STRING = rb'"(?:[^"\\]+|\\.?)*+"?'
"""Also one that does not end: it is read once, not again from each quote in it."""
_BRACES = re.compile(_STRING + rb"|[{}]", re.DOTALL)
_TOKENS = re.compile(_STRING + rb"|[{}\[\],:]", re.DOTALL)
_TOKENS_MAX = 200_000
"""Some 3,500 queues of a consumer, and a tenth of a second."""
_BARE = re.compile(_STRING + rb"|([{,]\s*)(-?\d+)(?=\s*:)", re.DOTALL)


class Command:
    """A request or an answer. `fields` are texts, whatever the client wrote."""

    __slots__ = (
        *("body", "code", "fields", "flag", "language", "opaque", "remark", "serialization"),
        "version",
    )

    def __init__(
        self,
        code: int,
        fields: dict[str, str] | None = None,
        body: Buffer = b"",
        *,
        opaque: int = 0,
        flag: int = 0,
        remark: str | None = None,
        language: str = "OTHER",
        version: int = SERVER_VERSION,
        serialization: int = JSON,
    ) -> None:
        self.code = code
        self.fields = {} if fields is None else fields
        self.body = body
        self.opaque = opaque
        self.flag = flag
        self.remark = remark
        self.language = language
        self.version = version
        self.serialization = serialization

    @property
    def is_answer(self) -> bool:
        return bool(self.flag & FLAG_ANSWER)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & FLAG_ONEWAY)

    def answer(
        self,
        code: int,
        fields: dict[str, str] | None = None,
        body: Buffer = b"",
        *,
        remark: str | None = None,
    ) -> "Command":
        """The answer to this request, in the serialization of its header."""
        return Command(
            code,
            fields,
            body,
            opaque=self.opaque,
            flag=FLAG_ANSWER,
            remark=remark,
            language="JAVA",  # as servers always are; some clients know no other
            serialization=self.serialization,
        )


class Taken(NamedTuple):
    """What was at the front of the bytes that were received."""

    commands: list[Command]
    size_bytes: int
    """Of their frames."""
    fault: BadRequestError | None
    """Why what follows can never be a frame."""


def take_frames(received: Buffer, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> Taken:
    """The whole frames at the front."""
    view = memoryview(received)
    found: list[Command] = []
    at, end = 0, len(view)
    try:
        while end - at >= _PREFIX.size:
            length, kind = _PREFIX.unpack_from(view, at)
            header_bytes = kind & 0xFF_FFFF
            _check_lengths(length, header_bytes, frame_bytes_max=frame_bytes_max)
            frame_end = at + 4 + length
            if end < frame_end:
                break
            body_at = at + _PREFIX.size + header_bytes
            command = _command(kind >> 24, bytes(view[at + _PREFIX.size : body_at]))
            command.body = bytes(view[body_at:frame_end])
            found.append(command)
            at = frame_end
    except BadRequestError as fault:
        return Taken(found, at, fault)
    return Taken(found, at, None)


def _check_lengths(length: int, header_bytes: int, *, frame_bytes_max: int) -> None:
    """BadRequestError for lengths that no frame has, before the frame is there."""
    if not 4 <= length <= frame_bytes_max:
        other = _OTHERS.get(length.to_bytes(4, "big")[:3])
        if other is not None:
            raise BadRequestError(f"{other}: this is the door of remoting clients")
        raise BadRequestError(f"a frame of {length} bytes; they have 4 to {frame_bytes_max}")
    if header_bytes > min(HEADER_BYTES_MAX, length - 4):
        raise BadRequestError(
            f"a header of {header_bytes} bytes in a frame of {length}; at most {HEADER_BYTES_MAX}"
        )


def encode(command: Command) -> list[bytes]:
    """A frame, in pieces to be written one after the other: the body is not copied."""
    if command.serialization == BINARY:
        header = _binary_header(command)
    else:
        header = orjson.dumps(
            {
                "code": command.code,
                "extFields": command.fields,
                "flag": command.flag,
                "language": command.language,
                "opaque": command.opaque,
                "remark": command.remark,
                "serializeTypeCurrentRPC": "JSON",
                "version": command.version,
            }
        )
    size = len(header)
    prefix = _PREFIX.pack(4 + size + len(command.body), command.serialization << 24 | size)
    if not command.body:
        return [prefix + header]
    return [prefix + header, bytes(command.body)]


def lenient_json(text: bytes) -> Any:
    """JSON, also with bare numbers for keys, as Java's fastjson writes it. BadRequestError."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        pass  # perhaps it is that kind
    try:
        return orjson.loads(_BARE.sub(_quoted, text))
    except orjson.JSONDecodeError as error:
        raise BadRequestError(f"this is no JSON: {error}") from error


def object_in(text: bytes, name: str) -> bytes:
    """The object of that name in an object, as it stands there: with objects for keys, as fastjson
    writes maps, it is no JSON. BadRequestError."""
    begin = re.search(rb'"%s"\s*:\s*(?=\{)' % re.escape(name.encode()), text)
    depth = 0
    for each in _BRACES.finditer(text, begin.end() if begin else len(text)):
        depth += (each[0] == b"{") - (each[0] == b"}")
        if depth == 0:
            assert begin is not None
            return text[begin.end() : each.end()]
    raise BadRequestError(f"there is no object {name}")


def json_with_texts_for_keys(text: bytes) -> Any:
    """JSON, also with objects for keys, as fastjson writes maps: such a key becomes its own text.
    BadRequestError; also for what has very many objects."""
    found: list[bytes] = []
    inside: list[bytes] = []
    taken, key_begin, key_depth = 0, -1, 0
    last = b""
    for number, token in enumerate(_TOKENS.finditer(text)):
        if number >= _TOKENS_MAX:
            raise BadRequestError(f"JSON of more than {_TOKENS_MAX} tokens")
        kind = token[0]
        if kind == b"{":
            if key_begin < 0 and inside[-1:] == [b"{"] and last in (b"{", b","):
                key_begin, key_depth = token.start(), len(inside)
            inside.append(kind)
        elif kind == b"[":
            inside.append(kind)
        elif kind in b"}]" and inside:
            inside.pop()
            if key_begin >= 0 and len(inside) == key_depth:
                key = text[key_begin : token.end()].decode(errors="replace")
                found += text[taken:key_begin], orjson.dumps(key)
                taken, key_begin = token.end(), -1
        last = kind
    return lenient_json(b"".join((*found, text[taken:])))


def _quoted(match: "re.Match[bytes]") -> bytes:
    if match[2] is None:
        return match[0]
    return match[1] + b'"' + match[2] + b'"'


def _command(serialization: int, header: bytes) -> Command:
    if serialization == JSON:
        return _of_json(header)
    if serialization == BINARY:
        return _of_binary(header)
    raise BadRequestError(f"a header in serialization {serialization}; 0 is JSON, 1 is ROCKETMQ")


def _of_json(header: bytes) -> Command:
    document = lenient_json(header)
    if document.__class__ is not dict:
        raise BadRequestError("a header that is no JSON object")
    fields = document.get("extFields") or {}
    code, opaque, flag = document.get("code"), document.get("opaque", 0), document.get("flag", 0)
    version, language = document.get("version", 0), document.get("language", "OTHER")
    remark = document.get("remark")
    if fields.__class__ is not dict or not all(
        number.__class__ is int and -(2**31) <= number < 2**31
        for number in (code, opaque, flag, version)
    ):
        raise BadRequestError(
            "a header needs whole numbers code, opaque, flag, version and extFields"
        )
    if language.__class__ is int:
        language = LANGUAGES[language] if 0 <= language < len(LANGUAGES) else "OTHER"
    assert isinstance(code, int)
    return Command(
        code,
        _texts(fields),
        opaque=opaque,
        flag=flag,
        remark=remark if isinstance(remark, str) else None,
        language=language if language in LANGUAGES else "OTHER",
        version=version,
    )


def _texts(fields: dict[str, Any]) -> dict[str, str]:
    """ali-ons writes numbers, others true and null."""
    if set(map(type, fields.values())) <= {str}:
        return fields
    return {name: _text(value) for name, value in fields.items() if value is not None}


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    text = orjson.dumps(value).decode()
    if isinstance(value, int) and abs(value) >= _EXACT_BELOW:
        return f"{text} (rounded)"  # no number: a request must not mean a neighbour
    return text


def _of_binary(header: bytes) -> Command:
    try:
        code, language, version, opaque, flag, remark_bytes = _BINARY.unpack_from(header)
        at = _BINARY.size
        remark, at = _slice(header, at, remark_bytes)
        (map_bytes,) = _LENGTH.unpack_from(header, at)
        at += _LENGTH.size
        end = at + map_bytes
        if map_bytes < 0 or end > len(header):
            raise BadRequestError(f"a map of {map_bytes} bytes in a header of {len(header)}")
        fields: dict[str, str] = {}
        while at < end:
            (size,) = _KEY_LENGTH.unpack_from(header, at)
            name, at = _slice(header, at + _KEY_LENGTH.size, size)
            (size,) = _LENGTH.unpack_from(header, at)
            fields[name], at = _slice(header, at + _LENGTH.size, size)
    except (struct.error, UnicodeDecodeError) as error:
        raise BadRequestError(f"a binary header that does not hold together: {error}") from error
    return Command(
        code,
        fields,
        opaque=opaque,
        flag=flag,
        remark=remark or None,
        language=LANGUAGES[language] if language < len(LANGUAGES) else "OTHER",
        version=version,
        serialization=BINARY,
    )


def _slice(header: bytes, at: int, size: int) -> tuple[str, int]:
    end = at + size
    if size < 0 or end > len(header):
        raise BadRequestError(f"a text of {size} bytes in a header of {len(header)}")
    return header[at:end].decode(), end


def _binary_header(command: Command) -> bytes:
    remark = (command.remark or "").encode()
    pairs = b"".join(
        b"".join(
            (
                _KEY_LENGTH.pack(len(key := name.encode())),
                key,
                _LENGTH.pack(len(text := value.encode())),
                text,
            )
        )
        for name, value in command.fields.items()
    )
    language = LANGUAGES.index(command.language) if command.language in LANGUAGES else _OTHER
    code = (command.code + 2**15) % 2**16 - 2**15  # what does not fit is cut, as Java does
    head = _BINARY.pack(code, language, command.version, command.opaque, command.flag, len(remark))
    return b"".join((head, remark, _LENGTH.pack(len(pairs)), pairs))
