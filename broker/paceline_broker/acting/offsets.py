"""Pure: group offsets that an acting master has taken, provisionally (R33, R36).

Its own projections may be old, so little is refused here: the next master decides each of them as
an ordinary commit. What is kept makes that decision come out right: the reset generation in force
when the consumer committed (a reset that the next master knows of wins), and the lock token.
"""

from typing import Any, NamedTuple

from paceline.types import QueueOffset
from paceline_broker.projections.locks import Token, token_json
from paceline_broker.projections.offsets import CommitEntry, CommitOutcome, Committed

ENTRIES_MAX = 100_000
"""Some 10 MiB of file; soft state must be bounded."""
EXPIRY_MS = 7 * 24 * 3600 * 1000
"""As long as a silent producer is remembered: what nobody could hand over by then is void."""


class Provisional(NamedTuple):
    """One queue of one consumer group."""

    offset: int
    generation: int
    token: Token | None
    at_unix_ms: int
    """Of the last commit."""
    group_id: int = 0
    """The topic of the group's retries, by which one that is made again is another; 0: unknown."""

    def is_of(self, group_id: int) -> bool:
        """Whether the group of that id has committed this, as far as is known."""
        return self.group_id in (0, group_id)


class ProvisionalOffsets:
    """By (consumer group, queue key)."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int], Provisional] = {}
        self.changes = 0
        """Rises with every change."""

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, group: str, key: int) -> Provisional | None:
        return self._kept.get((group, key))

    def groups(self) -> list[str]:
        return sorted({group for group, _ in self._kept})

    def rows(self, group: str) -> dict[int, Provisional]:
        """A copy of what a group has committed here."""
        return {key: kept for (name, key), kept in self._kept.items() if name == group}

    def merged(
        self, group: str, committed: dict[int, Committed], *, group_id: int = 0
    ) -> dict[int, Committed]:
        """What consumers are told: the larger of both, of the same reset generation."""
        found = dict(committed)
        for key, kept in self.rows(group).items():
            now = found.get(key)
            if kept.is_of(group_id) and (now is None or _is_ahead(kept, now)):
                found[key] = Committed(QueueOffset(kept.offset), kept.generation)
        return found

    def commit(
        self,
        group: str,
        entry: CommitEntry,
        committed: Committed | None,
        *,
        now_unix_ms: int,
        group_id: int = 0,
    ) -> CommitOutcome:
        """Take one offset; `committed` is what the own projections know, perhaps too little.

        OFFSET_MOVED_BACK below what is known, or for a generation that has passed. Beyond the own
        queue's end is no fault: the master that served it may have been ahead of this replica.
        """
        kept = self._kept.get((group, entry.key))
        if kept is not None and not kept.is_of(group_id):
            kept = None  # of a former group (R35)
        now = committed
        if kept is not None and (now is None or _is_ahead(kept, now)):
            now = Committed(QueueOffset(kept.offset), kept.generation)
        known = 0 if now is None else now.generation
        generation = known if entry.generation is None else entry.generation
        is_back = now is not None and generation == known and entry.offset < now.offset
        if generation < known or is_back:
            return CommitOutcome(entry.key, "OFFSET_MOVED_BACK", now)
        taken = Provisional(entry.offset, generation, entry.token, now_unix_ms, group_id)
        if (
            kept is None or kept._replace(at_unix_ms=now_unix_ms) != taken
        ):  # who repeats himself costs the disk nothing
            self._kept[group, entry.key] = taken
            self.changes += 1
        return CommitOutcome(entry.key, None, Committed(QueueOffset(entry.offset), generation))

    def strip_tokens(self) -> bool:
        """The next master will know none of the tokens that were named; False if none was."""
        named = [at for at, kept in self._kept.items() if kept.token is not None]
        for at in named:
            self._kept[at] = self._kept[at]._replace(token=None)
        self.changes += len(named)
        return bool(named)

    def has_room_for(self, group: str, keys: list[int]) -> bool:
        new = sum((group, key) not in self._kept for key in keys)
        return len(self._kept) + new <= ENTRIES_MAX

    def settle(self, group: str, key: int, handed: Provisional) -> None:
        """A master has decided this one; another that came meanwhile stays."""
        if self._kept.get((group, key)) == handed:
            del self._kept[group, key]
            self.changes += 1

    def expire(self, now_unix_ms: int) -> int:
        """Drop what is older than EXPIRY_MS; how many that were."""
        old = [at for at, kept in self._kept.items() if kept.at_unix_ms + EXPIRY_MS <= now_unix_ms]
        for at in old:
            del self._kept[at]
        self.changes += len(old)
        return len(old)

    def to_json(self) -> list[list[Any]]:
        return [
            [group, key, *kept[:2], token_json(kept.token), kept.at_unix_ms, kept.group_id]
            for (group, key), kept in sorted(self._kept.items())
        ]

    @classmethod
    def from_json(cls, rows: list[list[Any]]) -> "ProvisionalOffsets":
        """Raises ValueError, TypeError or IndexError on another shape."""
        offsets = cls()
        for group, key, offset, generation, token, *rest in rows:  # older ones have no id
            kept = Provisional(offset, generation, Token.from_json(token), *rest)
            offsets._kept[group, key] = kept
        return offsets


def _is_ahead(kept: Provisional, now: Committed) -> bool:
    if kept.generation != now.generation:
        return kept.generation > now.generation
    return kept.offset > now.offset
