"""Pure: the names of a file system, as the process sees them and as a power cut leaves them.

Creates, renames and unlinks are volatile until their folder is synced. After a power cut a prefix
of the volatile changes of each folder survives, in the order in which they were made. Files are
identified by numbers that are never used again, so that a name which comes back from the dead
finds its old content.
"""

from dataclasses import dataclass, field
from typing import Any

Operation = tuple[str, ...]
"""("create", name, file) | ("rename", old, new) | ("unlink", name); a file is a number as text."""


@dataclass(slots=True)
class Folder:
    """Names of one folder."""

    durable: dict[str, int] = field(default_factory=dict)
    pending: list[Operation] = field(default_factory=list)

    def names(self, survivors: int | None = None) -> dict[str, int]:
        """Names after the first `survivors` of the pending changes (None: after all)."""
        found = dict(self.durable)
        for operation in self.pending[:survivors]:
            _apply(found, operation)
        return found


@dataclass(slots=True)
class Names:
    """All folders. Changes come in as journal entries, see `apply`."""

    folders: dict[str, Folder] = field(default_factory=dict)
    next_file: int = 1
    lost: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """Ranges of files that a failed sync has dropped: clean in the cache, not on the disk."""
    inodes: dict[int, int] = field(default_factory=dict)
    """File -> its inode in the live tree: a kill may come between a rename and its entry here."""

    def apply(self, entry: list[Any]) -> None:
        """An entry: [folder, "create" | "rename" | "unlink", ...], [folder, "sync"],
        ["", "lost", file, start, end], ["", "found", file], ["", "inode", file, inode]."""
        folder, kind, *rest = entry
        if kind == "lost":
            self.lost.setdefault(rest[0], []).append((rest[1], rest[2]))
        elif kind == "found":
            self.lost.pop(rest[0], None)
        elif kind == "inode":
            self.inodes[rest[0]] = rest[1]
            self.next_file = max(self.next_file, rest[0] + 1)
        else:
            known = self.folders.setdefault(folder, Folder())
            if kind == "sync":
                known.durable, known.pending = known.names(), []
                return
            known.pending.append((kind, *map(str, rest)))

    def entries(self) -> list[list[Any]]:
        """A journal from which `apply` makes these names."""
        found: list[list[Any]] = [["", "inode", *pair] for pair in self.inodes.items()]
        for path, folder in self.folders.items():
            found += [[path, "create", name, file] for name, file in folder.durable.items()]
            found.append([path, "sync"])
            found += [[path, *operation] for operation in folder.pending]
        for file, ranges in self.lost.items():
            found += [["", "lost", file, start, end] for start, end in ranges]
        return found

    def files(self) -> set[int]:
        """Every file that a power cut may leave, or that is there now."""
        found = set()
        for folder in self.folders.values():
            found |= set(folder.durable.values())
            found |= {int(change[2]) for change in folder.pending if change[0] == "create"}
        return found


def _apply(names: dict[str, int], operation: Operation) -> None:
    kind, name, *rest = operation
    if kind == "create":
        names[name] = int(rest[0])
    elif kind == "unlink":
        names.pop(name, None)
    else:
        assert kind == "rename", operation
        moved = names.pop(name, None)
        if moved is not None:
            names[rest[0]] = moved
