"""Pure: which clients of one user a new view of the cluster concerns.

Views come with each change of anything. What a client works by is the record of its consumer group
and the kinds of its topics; each of them is compared once, however many clients have it.
"""

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Generic, TypeAlias, TypeVar

K = TypeVar("K")
Lookup: TypeAlias = Callable[[str], object]
"""What the view says of a name; None: nothing."""


class Concerned(Generic[K]):
    """Of one user's cluster. Clients go by a key."""

    def __init__(self, group: Lookup, topic: Lookup) -> None:
        """What counts of a consumer group and of a topic, by the newest view."""
        self._groups: _Names[K] = _Names(group)
        self._topics: _Names[K] = _Names(topic)

    def put(self, key: K, group: str | None, topics: Iterable[str]) -> None:
        """A client works by these, and by nothing that it worked by before."""
        self._groups.put(key, [] if group is None else [group])
        self._topics.put(key, topics)

    def drop(self, key: K) -> None:
        """A client has gone. Idempotent."""
        self.put(key, None, ())

    def changed(self) -> list[K]:
        """Whom the newest view concerns; once each."""
        return list(dict.fromkeys(chain(self._groups.changed(), self._topics.changed())))


class _Names(Generic[K]):
    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self._of_client: dict[K, tuple[str, ...]] = {}
        self._clients: dict[str, dict[K, None]] = {}
        self._seen: dict[str, object] = {}

    def put(self, key: K, names: Iterable[str]) -> None:
        for name in self._of_client.pop(key, ()):
            clients = self._clients[name]
            clients.pop(key, None)
            if not clients:
                del self._clients[name], self._seen[name]
        found = tuple(dict.fromkeys(names))
        for name in found:
            if name not in self._clients:
                self._clients[name], self._seen[name] = {}, self._lookup(name)
            self._clients[name][key] = None
        if found:
            self._of_client[key] = found

    def changed(self) -> Iterable[K]:
        for name, clients in self._clients.items():
            now = self._lookup(name)
            if now != self._seen[name]:
                self._seen[name] = now
                yield from clients
