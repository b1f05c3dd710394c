"""Pure: when clients of cursors were heard of last, by group; in looks (see cursors.py)."""

from collections import OrderedDict
from collections.abc import Iterator

from paceline_broker.projections.cursors import group_of


class Heard:
    """Owned by `Cursors`. In each group the longest silent comes first."""

    def __init__(self) -> None:
        self._of: dict[str, OrderedDict[str, int]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, cursor: str) -> bool:
        return cursor in self._of.get(group_of(cursor), ())

    def at(self, cursor: str) -> int | None:
        """When it was heard of last; None: it is not known."""
        of_group = self._of.get(group_of(cursor))
        return None if of_group is None else of_group.get(cursor)

    def hear(self, cursor: str, looks: int) -> None:
        """It is heard of now."""
        of_group = self._of.setdefault(group_of(cursor), OrderedDict())
        self._count += cursor not in of_group
        of_group[cursor] = looks
        of_group.move_to_end(cursor)

    def forget(self, cursor: str) -> None:
        group = group_of(cursor)
        of_group = self._of.get(group)
        if of_group is None or of_group.pop(cursor, None) is None:
            return
        self._count -= 1
        if not of_group:
            del self._of[group]

    def put_back(self, cursor: str, looks: int) -> None:
        """As it was before it was forgotten as the longest silent, unless it was heard of since."""
        if cursor not in self:
            self.hear(cursor, looks)
            self._of[group_of(cursor)].move_to_end(cursor, last=False)

    def clear(self) -> None:
        self._of.clear()
        self._count = 0

    def silent(self, last: int) -> Iterator[tuple[str, int]]:
        """Those that were not heard of after `last`, and when they were; may change meanwhile."""
        for of_group in list(self._of.values()):
            found = []
            for cursor, looks in of_group.items():
                if looks > last:
                    break
                found.append((cursor, looks))
            yield from found

    def makes_room(self, group: str, last: int) -> tuple[str, int] | None:
        """The longest silent one, not heard of after `last`, of the largest group that has one and
        is no smaller than this one; None: there is none."""
        size = len(self._of.get(group, ()))
        found: tuple[str, int] | None = None
        for of_group in self._of.values():
            cursor, looks = next(iter(of_group.items()))
            if looks <= last and len(of_group) >= size:
                size, found = len(of_group), (cursor, looks)
        return found
