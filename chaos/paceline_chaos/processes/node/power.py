"""Power cuts, lost, old and damaged disks: what the harness does to the files of a dead node.

A power cut leaves the shadow's image (shadow.py) and of all that was not synced a part by chance,
as in `paceline.platform.memory_images`: of every folder a prefix of the changes of its names, of
every file any of its dirty 4 KiB pages, some of them torn at 512-byte sectors.
"""

import os
import shutil
from pathlib import Path

from paceline.platform.memory_images import PAGE_BYTES, TORN_SHARE, happens, prefix_length, torn
from paceline.platform.ports import Random
from paceline_chaos.processes.names import Folder
from paceline_chaos.processes.node.shadow import Shadow, copy_range

_CHUNK_BYTES = 1 << 20


def cut(shadow_folder: Path, random: Random, *, survival: float = 0.5) -> dict[str, int]:
    """Replace the live files of a dead node by what its disk has; counts for the history.

    `survival` is the chance of each unsynced page, 0 = none, 1 = all (then nothing is torn).
    """
    shadow = Shadow(shadow_folder)
    counts = {"lost_names": 0, "lost_pages": 0, "kept_pages": 0, "torn_pages": 0}
    try:
        for path, folder in sorted(shadow.names.folders.items()):
            _cut_folder(shadow, path, folder, random, survival, counts)
    finally:
        shadow.close()
    # The surviving names are the durable ones of a new image.
    shutil.rmtree(shadow_folder)
    return counts


def _cut_folder(
    shadow: Shadow,
    path: str,
    folder: Folder,
    random: Random,
    survival: float,
    counts: dict[str, int],
) -> None:
    survivors = prefix_length(len(folder.pending), random, survival)
    counts["lost_names"] += len(folder.pending) - survivors
    seen, after = folder.names(), folder.names(survivors)
    paths = {entry.inode(): Path(entry.path) for entry in os.scandir(path) if entry.is_file()}
    live = {
        file: paths[inode]
        for file in seen.values()
        if (inode := shadow.names.inodes.get(file)) in paths
    }
    made: dict[str, Path] = {}
    for name, file in sorted(after.items()):
        content = shadow.content_path(file)
        content.touch()
        if file in live:
            _survive(live[file], content, random, survival, counts)
        made[name] = content
    for found in live.values():
        found.unlink()
    for name, content in made.items():
        copy_file(content, Path(path, name))


def _survive(
    live: Path, content: Path, random: Random, survival: float, counts: dict[str, int]
) -> None:
    """Let pages of the live file that were not synced reach the disk, by chance."""
    with live.open("rb") as new, content.open("r+b") as durable:
        size, old_size = os.fstat(new.fileno()).st_size, os.fstat(durable.fileno()).st_size
        if size != old_size and not happens(random, survival):
            size = old_size
        durable.truncate(size)
        for start, end in _data(new.fileno(), size):
            for at in range(start - start % _CHUNK_BYTES, end, _CHUNK_BYTES):
                want = min(_CHUNK_BYTES, size - at)
                now = os.pread(new.fileno(), want, at)
                then = os.pread(durable.fileno(), want, at)
                if now != then:
                    _choose_pages(durable.fileno(), at, now, then, random, survival, counts)


def _choose_pages(
    durable: int,
    at: int,
    now: bytes,
    then: bytes,
    random: Random,
    survival: float,
    counts: dict[str, int],
) -> None:
    for start in range(0, len(now), PAGE_BYTES):
        new, old = now[start : start + PAGE_BYTES], then[start : start + PAGE_BYTES]
        if new == old:
            continue
        if happens(random, survival):
            os.pwrite(durable, new, at + start)
            counts["kept_pages"] += 1
        elif 0 < survival < 1 and happens(random, TORN_SHARE):
            os.pwrite(durable, torn(new, old, random), at + start)
            counts["torn_pages"] += 1
        else:
            counts["lost_pages"] += 1


def _data(descriptor: int, size: int) -> list[tuple[int, int]]:
    """Ranges of a file below `size` that hold data."""
    found = []
    at = 0
    while at < size:
        try:
            start = os.lseek(descriptor, at, os.SEEK_DATA)
            at = os.lseek(descriptor, start, os.SEEK_HOLE)
        except OSError:  # only a hole is left
            break
        found.append((start, min(at, size)))
    return found


def copy_file(source: Path, target: Path) -> None:
    """A copy with its holes."""
    with source.open("rb") as old, target.open("wb") as new:
        size = os.fstat(old.fileno()).st_size
        new.truncate(size)
        copy_range(old.fileno(), new.fileno(), 0, size)


def copy_tree(source: Path, target: Path) -> None:
    """A copy of a data folder, to come back to (`disk_stale`); LOCK files are not copied."""
    for folder, _, names in os.walk(source):
        into = target / Path(folder).relative_to(source)
        into.mkdir(parents=True, exist_ok=True)
        for name in names:
            if name != "LOCK":
                copy_file(Path(folder, name), into / name)


def flip_bit(path: Path, byte: int, bit: int) -> None:
    """Damage one stored bit, as the process and the disk see it."""
    with path.open("r+b") as file:
        file.seek(byte)
        value = file.read(1)[0]
        file.seek(byte)
        file.write(bytes([value ^ (1 << bit)]))
