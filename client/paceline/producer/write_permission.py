"""Pure: what a sender is told where an operator has wiped a broker group's write permission."""

from collections.abc import Iterable

from paceline.errors import NoPermissionError
from paceline.types import GroupName
from paceline.wire.cluster import ClusterView


def wiped(
    view: ClusterView | None, groups: Iterable[GroupName], *, topic: str
) -> NoPermissionError | None:
    """The refusal of what is certainly not stored, if all of these broker groups are wiped.

    It is for messages that can go nowhere else. A master answers QUEUE_NOT_FOUND instead, which
    lets other messages go to another queue (R32).
    """
    names = sorted(groups)
    known = {} if view is None else view.groups
    if not names or not all(name in known and known[name].is_write_wiped for name in names):
        return None
    why = f"broker group {names[0]} takes no messages: its write permission was wiped"
    if len(names) > 1:
        listed = ", ".join(names)
        why = f"broker groups {listed} take no messages: their write permission was wiped"
    return NoPermissionError(
        f"not stored: {why}; an operator can give it back (paceline cluster add-write-perm"
        f" {names[0]})",
        topic=topic,
    )
