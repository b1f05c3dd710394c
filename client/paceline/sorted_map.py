"""Pure: a mapping in the order of its keys that shares all that did not change with the one before.

A cluster view may have 100,000 topics, and each change gives a new view while the one before is
still read. The entries lie in chunks, plain dicts of neighbouring keys. A change copies the chunks
it concerns and the list of chunks, where a plain dict would be copied whole.
Two maps that follow each other differ only in chunks that are not the same object, so what changed
between them is found in about the same time, without anybody having told it.
"""

from bisect import bisect_right
from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from itertools import chain, takewhile
from typing import Any, TypeVar

KeyT = TypeVar("KeyT", bound=str)
ValueT = TypeVar("ValueT")

CHUNK_ENTRIES = 128
"""A chunk of more than twice as many is cut. Of 64, 128, 256 and 512 the fastest at 10,000 entries;
at 100,000 no other is much faster."""


class SortedMap(Mapping[KeyT, ValueT]):
    """Never changes. No value is None."""

    __slots__ = ("_chunks", "_count", "_firsts")

    def __init__(self, entries: Mapping[KeyT, ValueT] | None = None) -> None:
        chunks = [{}] if not entries else _cut({key: entries[key] for key in sorted(entries)})
        self._chunks: list[dict[KeyT, ValueT]] = chunks
        """One at least."""
        self._firsts: list[str] = [_first(chunk) for chunk in chunks]
        self._count = sum(map(len, chunks))

    def changed(self, changes: Mapping[KeyT, ValueT | None]) -> "SortedMap[KeyT, ValueT]":
        """With these entries; None takes one away."""
        by_chunk: dict[int, dict[KeyT, ValueT | None]] = {}
        for key, value in changes.items():
            by_chunk.setdefault(self._index(key), {})[key] = value
        following: SortedMap[KeyT, ValueT] = SortedMap()
        chunks: list[dict[KeyT, ValueT]] = []
        firsts: list[str] = []
        count = self._count
        start = 0
        for index in sorted(by_chunk):
            before = self._chunks[index]
            after = _merged(before, by_chunk[index])
            pieces = _cut(after)
            chunks += self._chunks[start:index] + pieces
            firsts += self._firsts[start:index] + [_first(piece) for piece in pieces]
            count += len(after) - len(before)
            start = index + 1
        chunks += self._chunks[start:]
        firsts += self._firsts[start:]
        if chunks:
            following._chunks, following._firsts, following._count = chunks, firsts, count
        return following

    def changes_since(self, before: Mapping[KeyT, ValueT]) -> dict[KeyT, ValueT | None]:
        """The entries that are others than in `before`; None for those that are gone."""
        now, then = _apart(self._chunks, shared(before)._chunks)
        changes: dict[KeyT, ValueT | None] = {
            key: value for key, value in now.items() if _differs(value, then.get(key))
        }
        changes.update((key, None) for key in then if key not in now)
        return changes

    def _index(self, key: str) -> int:
        return max(bisect_right(self._firsts, key) - 1, 0)

    # -- as any mapping ---------------------------------------------------------------------------

    def __getitem__(self, key: KeyT) -> ValueT:
        return self._chunks[self._index(key)][key]

    def get(self, key: KeyT, default: Any = None) -> Any:
        return self._chunks[self._index(key)].get(key, default)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key in self._chunks[self._index(key)]

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[KeyT]:
        return chain.from_iterable(self._chunks)

    def items(self) -> ItemsView[KeyT, ValueT]:
        return _Items(self)

    def values(self) -> ValuesView[ValueT]:
        return _Values(self)

    def __repr__(self) -> str:
        return f"SortedMap({dict(self.items())!r})"


def shared(entries: Mapping[KeyT, ValueT]) -> SortedMap[KeyT, ValueT]:
    """The same entries, for maps that follow."""
    return entries if isinstance(entries, SortedMap) else SortedMap(entries)


class _Items(ItemsView[KeyT, ValueT]):
    _mapping: SortedMap[KeyT, ValueT]

    def __iter__(self) -> Iterator[tuple[KeyT, ValueT]]:
        return chain.from_iterable(chunk.items() for chunk in self._mapping._chunks)


class _Values(ValuesView[ValueT]):
    _mapping: SortedMap[Any, ValueT]

    def __iter__(self) -> Iterator[ValueT]:
        return chain.from_iterable(chunk.values() for chunk in self._mapping._chunks)


def _differs(value: object, before: object) -> bool:
    return value is not before and value != before


def _first(chunk: Mapping[KeyT, Any]) -> str:
    return next(iter(chunk), "")


def _apart(
    chunks: list[dict[KeyT, ValueT]], others: list[dict[KeyT, ValueT]]
) -> tuple[dict[KeyT, ValueT], dict[KeyT, ValueT]]:
    """The entries of both without those of chunks that they share."""
    start = _alike(chunks, others)
    chunks, others = chunks[start:], others[start:]
    end = _alike(reversed(chunks), reversed(others))
    chunks, others = chunks[: len(chunks) - end], others[: len(others) - end]
    shared = set(map(id, chunks)).intersection(map(id, others))
    return _entries(chunks, without=shared), _entries(others, without=shared)


def _alike(some: Iterable[object], others: Iterable[object]) -> int:
    """How many the same both begin with."""
    pairs = zip(some, others, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], pairs))


def _entries(chunks: list[dict[KeyT, ValueT]], *, without: set[int]) -> dict[KeyT, ValueT]:
    found: dict[KeyT, ValueT] = {}
    for chunk in chunks:
        if id(chunk) not in without:
            found.update(chunk)
    return found


def _merged(chunk: dict[KeyT, ValueT], changes: Mapping[KeyT, ValueT | None]) -> dict[KeyT, ValueT]:
    """In order of the keys."""
    merged = chunk.copy()
    for key, value in changes.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = value
    return dict(sorted(merged.items())) if any(key not in chunk for key in changes) else merged


def _cut(chunk: dict[KeyT, ValueT]) -> list[dict[KeyT, ValueT]]:
    """One that has grown too large in several, an empty one in none."""
    if len(chunk) <= 2 * CHUNK_ENTRIES:
        return [chunk] if chunk else []
    entries = list(chunk.items())
    starts = range(0, len(entries), CHUNK_ENTRIES)
    return [dict(entries[start : start + CHUNK_ENTRIES]) for start in starts]
