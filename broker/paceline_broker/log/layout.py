"""Names in the log's folder. Pure.

A segment is named by its first offset, 20 digits, and holds [first, first of the next segment).
Offsets have no gaps: the unused tail of a sealed segment is zeros on the disk and nothing in
offset space, so replicas with other segment sizes hold the same log.
"""

import re
from collections.abc import Iterable

from paceline.types import PhysicalOffset

CHECKPOINT_NAME = "checkpoint.json"
SPARE_NAME = "spare.segment"  # the next segment, made ahead; renamed when its first offset is known
ASIDE_SUFFIX = ".aside"  # of a segment or checkpoint that was given up but not destroyed (R5)
_SEGMENT = re.compile(r"(\d{20})\.log")


def segment_name(first: PhysicalOffset) -> str:
    assert 0 <= first < 10**20, first
    return f"{first:020d}.log"


def aside_name(name: str) -> str:
    """What a segment or a checkpoint is called once it is set aside."""
    return name.rpartition(".")[0] + ASIDE_SUFFIX


def segment_firsts(names: Iterable[str]) -> list[PhysicalOffset]:
    """First offsets of the segments among `names`, rising."""
    matches = (_SEGMENT.fullmatch(name) for name in names)
    return sorted(PhysicalOffset(int(match[1])) for match in matches if match)
