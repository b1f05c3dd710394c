"""Which bits of a node's files are flipped: by class of file and place in it.

The log's files hold the messages, so most flips go there; others hit what a node would believe
about itself: checkpoints, its identity, a controller's journal.
"""

from collections.abc import Callable
from pathlib import Path

from paceline.platform.ports import Random
from paceline_chaos.processes.node.power import flip_bit

_PROJECTION_SUFFIXES = (".json", ".snapshot", ".checkpoint")

CLASSES: tuple[tuple[str, Callable[[Path], bool]], ...] = (
    ("log", lambda path: path.suffix == ".log" and path.stem.isdigit()),
    ("checkpoint", lambda path: path.name != "LOCK" and path.suffix in _PROJECTION_SUFFIXES),
    ("journal", lambda path: path.suffix != ".log" and path.name != "LOCK"),
)
"""`file` of a disk_flip fault is an index into this."""


def flip(folder: Path, random: Random, *, file_class: int, confirm: int | None) -> str | None:
    """Flip one bit somewhere in a file of the class; what was flipped, for the history. None: there
    is no byte of that class.

    `confirm`: flips in the log stay below it (positions are offsets in all segments together).
    """
    name, belongs = CLASSES[file_class]
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and belongs(path)]
    places = [(path, _end(path, name, confirm)) for path in paths]
    total = sum(end for _, end in places)
    if total == 0:
        return None
    at, bit = int(random.uniform(0, total)), int(random.uniform(0, 8))
    for path, end in places:
        if at < end:
            flip_bit(path, at, bit)
            return f"{name}: bit {bit} of byte {at} in {path.name}"
        at -= end
    raise AssertionError((at, total))


def _end(path: Path, name: str, confirm: int | None) -> int:
    """Bytes from the beginning of a file that may be hit."""
    size = path.stat().st_size
    if name != "log" or confirm is None:
        return size
    return max(0, min(size, confirm - int(path.stem)))


def last_words(log_path: Path) -> str:
    """The last line of a node's log; empty if it said nothing."""
    if not log_path.is_file():
        return ""
    return "".join(log_path.read_text(errors="replace").splitlines()[-1:])


def is_refused_for_damage(log_path: Path) -> bool:
    """Whether a node's last words say that its log is damaged (R24)."""
    return "damaged" in last_words(log_path)
