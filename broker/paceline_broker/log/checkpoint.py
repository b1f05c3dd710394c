"""The log's checkpoint: durable lower bounds, so that a restart verifies only the end of the log.

`log/checkpoint.json` (docs/format/commit-log.md). Written lazily and replaced atomically; it is
always behind the truth, never ahead: everything below `flushed` was durable before it was written,
and truncation lowers it before it touches a segment (R25). So a bad batch below `flushed` is
damage, never a torn write (R23).
"""

from dataclasses import dataclass, field
from typing import Any

import orjson
from crc32c import crc32c

from paceline.errors import CorruptLogError
from paceline.types import PhysicalOffset
from paceline_broker.log.epochs import EpochTable

VERSION = 2
VERSION_WITHOUT_START = 1
"""Of logs that all begin at 0; still read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """`verify_from <= flushed`, `confirm <= flushed`; all are batch boundaries."""

    flushed: PhysicalOffset
    confirm: PhysicalOffset
    verify_from: PhysicalOffset  # recovery reads from here: a margin in which damage is noticed
    epochs: EpochTable = field(default_factory=EpochTable)  # of the log below `flushed`
    segments: tuple[PhysicalOffset, ...] = ()  # first offsets below `flushed`: none may be missing
    last_store_unix_ms: int = 0  # of the newest batch below `flushed`
    is_suspect: bool = False  # non-zero bytes were cut and the role has not settled it (R23)
    truncate_to: PhysicalOffset | None = None  # a truncation that has begun; recovery finishes it
    start: PhysicalOffset = PhysicalOffset(
        0
    )  # segments below it are gone, or left by a crash (R26)
    base: PhysicalOffset = PhysicalOffset(
        0
    )  # of the installed projection checkpoint (R14); 0: none
    is_beginning_anew: bool = False  # all segments go, the log begins at `start`; as `truncate_to`
    sets_aside: bool = False  # beginning anew keeps the segments under other names (R5)

    def __post_init__(self) -> None:
        assert self.start <= self.verify_from, (self.start, self.verify_from)
        assert self.start <= self.confirm, (self.start, self.confirm)  # R26
        assert self.verify_from <= self.flushed, (self.verify_from, self.flushed)
        assert self.confirm <= self.flushed, (self.confirm, self.flushed)


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    body = {
        "version": VERSION,
        "flushed": checkpoint.flushed,
        "confirm": checkpoint.confirm,
        "verify_from": checkpoint.verify_from,
        "epochs": checkpoint.epochs.to_json(),
        "segments": list(checkpoint.segments),
        "last_store_unix_ms": checkpoint.last_store_unix_ms,
        "is_suspect": checkpoint.is_suspect,
        "truncate_to": checkpoint.truncate_to,
        "start": checkpoint.start,
        "base": checkpoint.base,
        "is_beginning_anew": checkpoint.is_beginning_anew,
        "sets_aside": checkpoint.sets_aside,
    }
    return orjson.dumps({**body, "crc32c": _crc(body)}, option=orjson.OPT_SORT_KEYS)


def decode_checkpoint(content: bytes) -> Checkpoint:
    """The checkpoint in `content`, or CorruptLogError, whatever the bytes are."""
    try:
        body: Any = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise CorruptLogError(f"the log checkpoint is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise CorruptLogError("the log checkpoint is not an object")
    crc = body.pop("crc32c", None)
    if crc != _crc(body):
        raise CorruptLogError(f"the log checkpoint has crc {crc}, its content {_crc(body)}")
    if body.get("version") not in (VERSION, VERSION_WITHOUT_START):
        raise CorruptLogError(f"log checkpoint version {body.get('version')} is not {VERSION}")
    truncate_to = body["truncate_to"]
    return Checkpoint(
        flushed=PhysicalOffset(body["flushed"]),
        confirm=PhysicalOffset(body["confirm"]),
        verify_from=PhysicalOffset(body["verify_from"]),
        epochs=EpochTable.from_json(body["epochs"]),
        segments=tuple(PhysicalOffset(first) for first in body["segments"]),
        last_store_unix_ms=body["last_store_unix_ms"],
        is_suspect=body["is_suspect"],
        truncate_to=None if truncate_to is None else PhysicalOffset(truncate_to),
        start=PhysicalOffset(body.get("start", 0)),
        base=PhysicalOffset(body.get("base", 0)),
        is_beginning_anew=body.get("is_beginning_anew", False),
        sets_aside=body.get("sets_aside", False),
    )


def _crc(body: dict[str, Any]) -> int:
    return int(crc32c(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)))
