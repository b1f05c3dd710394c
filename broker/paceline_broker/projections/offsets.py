"""Pure: committed offsets of consumer groups (R33).

A commit is max(): it never lowers. It is refused beyond the queue's end, under a lock token that is
not the present one, when it names a reset generation that has passed, and while simple consumers
have messages of the queue that nobody else may have: their receipts alone move it then. Only a
reset lowers, and each reset starts a new generation, so that a commit under way cannot undo it.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol
from zlib import crc32

from paceline.types import QueueOffset
from paceline_broker.projections.consume_queues import topic_of
from paceline_broker.projections.cursors import CursorNames, group_of
from paceline_broker.projections.locks import Token, token_json

_RESET = struct.Struct("<QQ")  # queue key, generation


class CommitEntry(NamedTuple):
    """One queue of a commit. `generation` None = whatever it is now."""

    key: int
    offset: int
    token: Token | None = None
    generation: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRequest:
    """The document of an offset commit record."""

    group: str
    is_reset: bool
    entries: tuple[CommitEntry, ...]
    may_expire: bool = False
    """The master's clock may be believed, so receipts whose invisible time is over at the record's
    time hold nothing back (R29)."""

    def to_json(self) -> dict[str, Any]:
        entries = [
            [entry.key, entry.offset, token_json(entry.token), entry.generation]
            for entry in self.entries
        ]
        return {
            "entries": entries,
            "group": self.group,
            "is_reset": self.is_reset,
            "may_expire": self.may_expire,
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> "CommitRequest":
        entries = tuple(
            CommitEntry(key, offset, Token.from_json(token), generation)
            for key, offset, token, generation in document["entries"]
        )
        return cls(
            group=document["group"],
            is_reset=document["is_reset"],
            entries=entries,
            may_expire=document.get("may_expire", False),
        )


class Committed(NamedTuple):
    """State of one queue in one group: the next offset to consume, and the reset generation."""

    offset: QueueOffset
    generation: int


class CommitOutcome(NamedTuple):
    """What was decided about one queue; `committed` is the state afterwards (None: never one)."""

    key: int
    code: str | None
    """None = done; else OFFSET_MOVED_BACK, OFFSET_OUT_OF_RANGE, LOCK_FENCED or RECEIPTS_OPEN."""
    committed: Committed | None


class Joined(NamedTuple):
    """When a group first came to stand anywhere on a topic: place and log time of the record."""

    position: int
    unix_ms: int


class QueueFacts(Protocol):
    """What a decision needs to know of other projections."""

    def queue_end(self, key: int) -> int: ...

    def lock_token(self, group: str, key: int) -> Token | None: ...

    def is_locked(self, group: str, key: int, now_unix_ms: int) -> bool: ...

    def has_open_receipts(self, group: str, key: int, now_unix_ms: int) -> bool: ...


class Offsets:
    """Committed offsets, by group (or cursor of a broadcasting one) and queue key."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[int, Committed]] = {}
        self._cursors = CursorNames()
        self._joined: dict[tuple[str, int], Joined] = {}
        """By group and topic id. What came later to a queue of the topic is the group's to read."""

    def get(self, group: str, key: int) -> Committed | None:
        return self._groups.get(group, {}).get(key)

    def of_group(self, group: str) -> dict[int, Committed]:
        """A copy of everything a group, or cursor, has committed."""
        return dict(self._groups.get(group, {}))

    def of_cursors(self, group: str) -> dict[int, Committed]:
        """The lowest of a group's cursors, queue by queue."""
        return self._lowest(self._cursors.of(group))

    def of_all(self) -> dict[str, dict[int, Committed]]:
        """Of each group the lowest of its own and its cursors', queue by queue."""
        names: dict[str, list[str]] = {}
        for name in self._groups:
            names.setdefault(group_of(name), []).append(name)
        return {group: self._lowest(names[group]) for group in sorted(names)}

    def _lowest(self, names: Iterable[str]) -> dict[int, Committed]:
        found: dict[int, Committed] = {}
        for name in names:
            if not found:
                found = dict(self._groups[name])
                continue
            for key, committed in self._groups[name].items():
                known = found.get(key)
                if known is None or committed.offset < known.offset:
                    found[key] = committed
        return found

    def joined(self, group: str, topic_id: int) -> Joined | None:
        """When the group began to read the topic here; None: it has not, or long ago."""
        return self._joined.get((group, topic_id))

    def resets(self, group: str) -> int:
        """A number that changes with each reset of a queue of the group, and when one goes; 0 while
        nothing was reset.

        No sum: of a topic that goes while another is reset it would say nothing.
        """
        found = self._groups.get(group, {})
        reset = sorted((key, found[key].generation) for key in found if found[key].generation)
        return crc32(b"".join(_RESET.pack(key, generation) for key, generation in reset))

    def groups(self) -> list[str]:
        return sorted(self._groups)

    def decide(
        self, request: CommitRequest, facts: QueueFacts, *, now_unix_ms: int
    ) -> list[CommitOutcome]:
        """What the request gives; changes nothing."""
        committed = self._groups.get(request.group, {})
        return [
            _decide(request, entry, committed.get(entry.key), facts, now_unix_ms)
            for entry in request.entries
        ]

    def apply(
        self, request: CommitRequest, facts: QueueFacts, *, at: Joined
    ) -> list[CommitOutcome]:
        """Fold a commit record: decide, and change what was granted. `at`: of the record."""
        outcomes = self.decide(request, facts, now_unix_ms=at.unix_ms)
        for outcome in outcomes:
            if outcome.code is None and outcome.committed is not None:
                self._set(request.group, outcome.key, outcome.committed, at)
        return outcomes

    def follow(self, group: str, key: int, offset: int, *, at: Joined) -> None:
        """Receipts of simple consumers say how far the group has come; no reset, no request."""
        known = self.get(group, key)
        generation = 0 if known is None else known.generation
        self._set(group, key, Committed(QueueOffset(offset), generation), at)

    def _set(self, group: str, key: int, committed: Committed, at: Joined) -> None:
        queues = self._groups.get(group)
        if queues is None:
            queues = self._groups[group] = {}
            self._cursors.add(group)
        if key not in queues:
            self._joined.setdefault((group, topic_of(key)), at)
        queues[key] = committed

    def clamp(self, facts: QueueFacts) -> None:
        """An unclean epoch (R21): no group stands beyond the end of a queue."""
        for group in self._groups.values():
            for key, committed in group.items():
                end = facts.queue_end(key)
                if committed.offset > end:
                    group[key] = Committed(QueueOffset(end), committed.generation + 1)

    def keys(self) -> set[int]:
        """Queues that a group has a commit in."""
        return {key for group in self._groups.values() for key in group}

    def drop_topic(self, topic_id: int) -> None:
        for group in self._groups.values():
            for key in [key for key in group if topic_of(key) == topic_id]:
                del group[key]
        for name in [name for name in self._joined if name[1] == topic_id]:
            del self._joined[name]

    def drop_group(self, group: str) -> None:
        """With its cursors."""
        for name in [group, *self._cursors.of(group)]:
            self._groups.pop(name, None)
            self._cursors.remove(name)
        for at in [at for at in self._joined if group_of(at[0]) == group]:
            del self._joined[at]

    def drop_cursor(self, cursor: str) -> None:
        """One client of a broadcasting group stands nowhere any more."""
        self._cursors.remove(cursor)
        for topic_id in {topic_of(key) for key in self._groups.pop(cursor, {})}:
            self._joined.pop((cursor, topic_id), None)

    def to_json(self) -> list[list[Any]]:
        return [
            [group, key, *self._groups[group][key]]
            for group in sorted(self._groups)
            for key in sorted(self._groups[group])
        ]

    def joined_json(self) -> list[list[Any]]:
        return [[*name, *self._joined[name]] for name in sorted(self._joined)]

    @classmethod
    def from_json(cls, rows: list[list[Any]], joined: list[list[Any]]) -> "Offsets":
        offsets = cls()
        offsets._joined = {(group, topic_id): Joined(*at) for group, topic_id, *at in joined}
        for group, key, offset, generation in rows:
            offsets._groups.setdefault(group, {})[key] = Committed(offset, generation)
            offsets._cursors.add(group)
        return offsets


def _decide(
    request: CommitRequest,
    entry: CommitEntry,
    now: Committed | None,
    facts: QueueFacts,
    now_unix_ms: int,
) -> CommitOutcome:
    if entry.offset > facts.queue_end(entry.key):
        return CommitOutcome(entry.key, "OFFSET_OUT_OF_RANGE", now)
    if request.is_reset:
        generation = 0 if now is None else now.generation
        return CommitOutcome(entry.key, None, Committed(QueueOffset(entry.offset), generation + 1))
    expired_unix_ms = now_unix_ms if request.may_expire else 0
    if facts.has_open_receipts(request.group, entry.key, expired_unix_ms):
        return CommitOutcome(entry.key, "RECEIPTS_OPEN", now)
    if _is_fenced(request.group, entry, facts, now_unix_ms):
        return CommitOutcome(entry.key, "LOCK_FENCED", now)
    if now is None:
        return CommitOutcome(entry.key, None, Committed(QueueOffset(entry.offset), 0))
    is_stale = entry.generation is not None and entry.generation != now.generation
    if is_stale or entry.offset < now.offset:
        return CommitOutcome(entry.key, "OFFSET_MOVED_BACK", now)
    return CommitOutcome(entry.key, None, now._replace(offset=QueueOffset(entry.offset)))


def _is_fenced(group: str, entry: CommitEntry, facts: QueueFacts, now_unix_ms: int) -> bool:
    """A token must be the present one; without one, nobody may hold the lock (INV-11)."""
    if entry.token is None:
        return facts.is_locked(group, entry.key, now_unix_ms)
    return entry.token != facts.lock_token(group, entry.key)
