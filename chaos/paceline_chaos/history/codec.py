"""A history as JSON lines: the world first, then one line for each entry, in order of number.

    {"entry": "world", "version": 1, "world": {"seed": 7, ...}}
    {"entry": "send", "number": 0, "client": "c1", "asked_us": 12, ...}

A `Queue` is `[topic, group, queue]`, a `Seen` `[offset, value, crc]`, a fencing token `[epoch,
position]` (it has more than 64 bits). Members that have their default value are left out. Reading
is strict: an unknown entry or member, a missing one, a wrong type, a number out of order or a line
cut short is a `HistoryFormatError` that names the line.
"""

import dataclasses
import functools
import gc
import os
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, BinaryIO, NamedTuple

import orjson

from paceline_chaos.history.basis import Found
from paceline_chaos.history.model import Entry, Event, History, Queue, Seen, StoredBatch

VERSION = 1
TOKEN_SHIFT = 64  # a token is epoch * 2**64 + physical offset (R33)
TOKEN_MASK = (1 << TOKEN_SHIFT) - 1

Convert = Callable[[Any], Any]


class HistoryFormatError(ValueError):
    """A file is not a history; the message names the line."""


class HistoryWriter:
    """Writes lines as entries come, so that a crashed harness leaves what it has."""

    def __init__(self, path: str | os.PathLike[str], world: Mapping[str, Any]) -> None:
        # Unbuffered: each line is one write, so a killed process leaves whole lines behind.
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115 - closed by `close`
        self._file.write(_world_line(world))

    def write(self, entry: Event) -> None:
        self._file.write(encode(entry))

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "HistoryWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def save(history: History, target: str | os.PathLike[str] | BinaryIO) -> None:
    """Write a whole history to a path or a binary file."""
    if isinstance(target, str | os.PathLike):
        with open(target, "wb") as file:
            save(history, file)
        return
    target.write(_world_line(history.world))
    for entry in history.entries:
        target.write(encode(entry))


def load(
    source: str | os.PathLike[str] | BinaryIO, *, is_torn_end_allowed: bool = False
) -> History:
    """Read a whole history; a torn last line, as a crash leaves it, only if that is allowed."""
    if isinstance(source, str | os.PathLike):
        with open(source, "rb") as file:
            return load(file, is_torn_end_allowed=is_torn_end_allowed)
    lines = _lines(source, is_torn_end_allowed=is_torn_end_allowed)
    history = History(world=_read_world(next(lines, b"")))
    is_collecting = gc.isenabled()
    gc.disable()  # nothing that is made here is garbage, and looking for some takes half the time
    try:
        _read_entries(lines, history)
    finally:
        if is_collecting:
            gc.enable()
    return history


def _read_entries(lines: Iterator[bytes], history: History) -> None:
    for line_number, line in enumerate(lines, start=2):
        try:
            entry = decode(line)
        except (ValueError, TypeError) as error:
            raise HistoryFormatError(f"line {line_number}: {error}") from error
        if entry.number != len(history.entries):
            raise HistoryFormatError(
                f"line {line_number}: number {entry.number}, expected {len(history.entries)}"
            )
        history.entries.append(entry)


def encode(entry: Event) -> bytes:
    """One line, with its end."""
    layout = _LAYOUTS[type(entry)]
    return orjson.dumps(_to_json(entry, layout), _plain, orjson.OPT_APPEND_NEWLINE)


def decode(line: bytes) -> Entry:
    """The entry of one line; raises ValueError or TypeError that say what is wrong."""
    members = orjson.loads(line)
    if type(members) is not dict:
        raise ValueError("not a JSON object")
    kind = members.pop("entry", None)
    layout = _KINDS.get(kind) if isinstance(kind, str) else None
    if layout is None:
        raise ValueError(f"unknown entry {kind!r}")
    entry: Entry = _from_json(members, layout)
    return entry


# -- lines ----------------------------------------------------------------------------------------


def _world_line(world: Mapping[str, Any]) -> bytes:
    head = {"entry": "world", "version": VERSION, "world": dict(world)}
    return orjson.dumps(head, _plain, orjson.OPT_APPEND_NEWLINE)


def _read_world(line: bytes) -> Mapping[str, Any]:
    try:
        head = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise HistoryFormatError(f"line 1: {error}") from error
    if type(head) is not dict or head.get("entry") != "world":
        raise HistoryFormatError('line 1: a history begins with its "world"')
    if head.get("version") != VERSION or type(head.get("world")) is not dict:
        raise HistoryFormatError(f"line 1: not a history of version {VERSION}")
    world: dict[str, Any] = head["world"]
    return world


def _lines(file: Iterable[bytes], *, is_torn_end_allowed: bool) -> Iterator[bytes]:
    for count, line in enumerate(file, start=1):
        if not line.endswith(b"\n"):
            if is_torn_end_allowed:
                return
            raise HistoryFormatError(f"line {count}: cut short, as a crash leaves it")
        yield line


# -- layouts --------------------------------------------------------------------------------------


class _Member(NamedTuple):
    name: str
    to_json: Convert | None
    """None: the value is JSON as it is."""
    from_json: Convert | type[Any]
    """A type: the value is as it is, and must be of that type (no call: there are millions)."""
    default: Any
    """Left out of the line when it has this value; `MISSING` if it is always there."""


class _Layout(NamedTuple):
    cls: type[Any]
    kind: str | None
    members: tuple[_Member, ...]
    readers: Mapping[str, Convert | type[Any]]
    required: frozenset[str]


def _to_json(value: Any, layout: _Layout) -> dict[str, Any]:
    line: dict[str, Any] = {} if layout.kind is None else {"entry": layout.kind}
    for name, to_json, _, default in layout.members:
        member = getattr(value, name)
        if member is default or (default is not dataclasses.MISSING and member == default):
            continue
        line[name] = member if to_json is None or member is None else to_json(member)
    return line


def _from_json(members: dict[str, Any], layout: _Layout) -> Any:
    for name, value in members.items():
        reader = layout.readers.get(name)
        if reader is None:
            raise ValueError(f"unknown member {name!r}")
        if type(value) is not reader:
            try:
                members[name] = _read_type(value, reader) if reader in _TYPES else reader(value)
            except (ValueError, TypeError) as error:
                raise ValueError(f"{name}: {error}") from error
    if not members.keys() >= layout.required:
        raise ValueError(f"member {min(layout.required - members.keys())!r} is missing")
    return layout.cls(**members)


def _layout(cls: type[Any], kind: str | None) -> _Layout:
    hints = typing.get_type_hints(cls)
    members = tuple(
        _Member(field.name, *_conversion(field.name, hints[field.name]), field.default)
        for field in dataclasses.fields(cls)
    )
    return _Layout(
        cls,
        kind,
        members,
        {member.name: member.from_json for member in members},
        frozenset(member.name for member in members if member.default is dataclasses.MISSING),
    )


def _conversion(name: str, hint: Any) -> tuple[Convert | None, Convert | type[Any]]:
    """How a member of this type is written and read."""
    if isinstance(hint, types.UnionType):
        (inner,) = (part for part in typing.get_args(hint) if part is not types.NoneType)
        to_json, from_json = _conversion(name, inner)
        return to_json, _or_none(from_json)
    if name == "token":
        return _token_to_json, _read_token
    if name == "value":
        return None, str  # each is another one: not to be interned
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return None, _reader_of(hint)
    if typing.get_origin(hint) is tuple:
        return _TUPLES[typing.get_args(hint)[0]]
    if hint in _SCALARS:
        return _SCALARS[hint]
    return dict, dict  # a Mapping: JSON of its own


def _or_none(from_json: Convert | type[Any]) -> Convert:
    def read(value: Any) -> Any:
        if value is None or type(value) is from_json:
            return value
        return _read_type(value, from_json) if from_json in _TYPES else from_json(value)

    return read


def _reader_of(kinds: type[StrEnum]) -> Convert:
    table = {str(kind): kind for kind in kinds}

    def read(value: Any) -> Any:
        kind = table.get(value) if isinstance(value, str) else None
        if kind is None:
            raise ValueError(f"{value!r} is not one of {', '.join(table)}")
        return kind

    return read


_TYPES: frozenset[Any] = frozenset({int, str, bool, dict, list})


def _read_type(value: Any, wanted: Any) -> Any:
    if type(value) is not wanted:
        raise TypeError(f"{value!r} is not of type {wanted.__name__}")
    return value


def _read_name(value: Any) -> str:
    """Names repeat a million times: one object each."""
    return sys.intern(_read_type(value, str))


def _token_to_json(token: int) -> list[int]:
    return [token >> TOKEN_SHIFT, token & TOKEN_MASK]


def _read_token(value: Any) -> int:
    epoch, position = _read_type(value, list)
    return (int(_read_type(epoch, int)) << TOKEN_SHIFT) | int(_read_type(position, int))


def _read_queue(value: Any) -> Queue:
    topic, group, queue = _read_type(value, list)
    return Queue(_read_name(topic), _read_name(group), _read_type(queue, int))


def _read_seen(value: Any) -> Seen:
    offset, text, crc = _read_type(value, list)
    if type(offset) is int and type(text) is str and type(crc) is int:
        return Seen(offset, text, crc)
    raise TypeError(f"{value!r} is not [offset, value, crc]")


def _read_found(value: Any) -> Found:
    kinds = Found.__annotations__.values()
    pairs = zip(_read_type(value, list), kinds, strict=True)
    return Found(*(_read_type(member, kind) for member, kind in pairs))


def _read_stored(value: Any) -> tuple[str, int]:
    text, crc = _read_type(value, list)
    if type(text) is str and type(crc) is int:
        return text, crc
    raise TypeError(f"{value!r} is not [value, crc]")


def _sequence(to_json: Convert, from_json: Convert) -> tuple[Convert, Convert]:
    def write(values: Any) -> list[Any]:
        return [to_json(value) for value in values]

    def read(values: Any) -> tuple[Any, ...]:
        return tuple([from_json(value) for value in _read_type(values, list)])

    return write, read


@functools.cache
def _batch_layout() -> _Layout:  # asked when the tables below are complete
    return _layout(StoredBatch, None)


_SCALARS: dict[Any, tuple[Convert | None, Convert | type[Any]]] = {
    int: (None, int),
    str: (None, _read_name),
    bool: (None, bool),
    Queue: (list, _read_queue),
    Seen: (list, _read_seen),
}
_TUPLES: dict[Any, tuple[Convert, Convert]] = {
    str: _sequence(str, _read_name),
    Seen: _sequence(list, _read_seen),
    Queue: _sequence(list, _read_queue),
    Found: _sequence(list, _read_found),
    tuple[str, int]: _sequence(list, _read_stored),
    int: _sequence(int, lambda value: _read_type(value, int)),
    StoredBatch: _sequence(
        lambda batch: _to_json(batch, _batch_layout()),
        lambda batch: _from_json(_read_type(batch, dict), _batch_layout()),
    ),
}


def _plain(value: Any) -> Any:
    """Sets and mappings in `Decision.members` and the world become JSON; order is for people."""
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple):
        return list(value)
    raise TypeError(f"{type(value).__name__} has no place in a history")


def _kind(cls: type[Any]) -> str:
    """SendBack -> "send_back"."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in cls.__name__).lstrip("_")


_LAYOUTS: dict[type[Any], _Layout] = {
    cls: _layout(cls, _kind(cls)) for cls in typing.get_args(Entry)
}
_KINDS: dict[str, _Layout] = {layout.kind: layout for layout in _LAYOUTS.values() if layout.kind}
