"""Receives that wait for messages: found by queue when messages come, by group when time passes."""

from collections.abc import Iterable, Iterator, Mapping

from paceline_broker.service.pop.operations import Receive


class WaitingReceives:
    """Owned by `Receipts`. A group is also a cursor of one that broadcasts."""

    def __init__(self) -> None:
        self._at: dict[tuple[str, int], dict[Receive, None]] = {}
        self._groups_at: dict[int, dict[str, None]] = {}
        self._keys_of: dict[str, dict[int, None]] = {}
        self._all: dict[Receive, None] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Receive]:
        """In the order that they came; may change meanwhile."""
        return iter(tuple(self._all))

    def __contains__(self, at: tuple[str, int]) -> bool:
        """Whether any of that group waits at that queue."""
        return at in self._at

    def at(self, group: str, key: int) -> Mapping[Receive, None]:
        """Those of a group at a queue, whoever waits longest first."""
        return self._at.get((group, key), {})

    def groups_at(self, key: int) -> Iterable[str]:
        """Who waits at a queue."""
        return self._groups_at.get(key, ())

    def keys_of(self, group: str) -> Iterable[int]:
        """Where a group waits."""
        return self._keys_of.get(group, ())

    def add(self, operation: Receive) -> None:
        """By all queues that it asks for now."""
        group = operation.asked.group
        self._all[operation] = None
        keys = self._keys_of.setdefault(group, {})
        for key in operation.asked.keys:
            keys[key] = None
            self._groups_at.setdefault(key, {})[group] = None
            self._at.setdefault((group, key), {})[operation] = None

    def remove(self, operation: Receive) -> None:
        """With the queues that it was added by. Nothing, if it does not wait."""
        if self._all.pop(operation, operation) is operation:
            return
        group = operation.asked.group
        for key in operation.asked.keys:
            waiters = self._at[group, key]
            waiters.pop(operation, None)
            if not waiters:
                self._forget(group, key)

    def _forget(self, group: str, key: int) -> None:
        del self._at[group, key]
        groups, keys = self._groups_at[key], self._keys_of[group]
        del groups[group], keys[key]
        if not groups:
            del self._groups_at[key]
        if not keys:
            del self._keys_of[group]
