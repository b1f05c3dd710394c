"""Pure: names of cursors. A cursor is where one client of a broadcasting group stands.

Receipts and committed offsets of a cursor are kept as those of a consumer group are, under a name
that no group can have. Settings, rights, dead letters and metrics are the group's.
"""

from collections.abc import Collection, Iterator

_SIGN = "@"
"""Not in names of groups; client ids may have it."""


def cursor_of(group: str, client_id: str) -> str:
    """The name of a client's cursor."""
    return f"{group}{_SIGN}{client_id}"


def is_cursor(name: str) -> bool:
    """Whether it is the name of a cursor, not of a group."""
    return _SIGN in name


def group_of(name: str) -> str:
    """The consumer group of a cursor; of a group, itself."""
    return name.partition(_SIGN)[0]


class CursorNames:
    """Cursors by group, for an owner that adds and removes them; other names are passed over."""

    def __init__(self) -> None:
        self._of: dict[str, dict[str, None]] = {}

    def __iter__(self) -> Iterator[str]:
        return (cursor for cursors in self._of.values() for cursor in cursors)

    def __bool__(self) -> bool:
        return bool(self._of)

    def of(self, group: str) -> Collection[str]:
        """The cursors of a group."""
        return self._of.get(group, {}).keys()

    def add(self, name: str) -> None:
        if is_cursor(name):
            self._of.setdefault(group_of(name), {})[name] = None

    def remove(self, name: str) -> None:
        group = group_of(name)
        cursors = self._of.get(group, {})
        if cursors.pop(name, name) is None and not cursors:
            del self._of[group]
