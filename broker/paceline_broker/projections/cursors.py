"""Pure: names of cursors. A cursor is where one client of a broadcasting group stands.

Receipts and committed offsets of a cursor are kept as those of a consumer group are, under a name
that no group can have. Settings, rights, dead letters and metrics are the group's.
"""

from collections.abc import Iterable

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


def names_of(group: str, names: Iterable[str]) -> list[str]:
    """Of these, the cursors of the group; of none, the group's own name, if it is there."""
    own, cursors = [], []
    for name in names:
        if name == group:
            own.append(name)
        elif name.startswith(group) and group_of(name) == group:
            cursors.append(name)
    return cursors or own
