"""Pure: what evidence is made of: rulings, claims to mastership, one queue's log, sets, probes."""

from array import array
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from paceline_chaos.history.model import Probe, StoredBatch

SERVING = frozenset({"master", "replica"})
"""Roles in which a node has recovered its log and stands for it."""
_HOLE_MAX = 1_000_000


class Claim(NamedTuple):
    """Somebody is master of an epoch."""

    node: str
    incarnation: int
    number: int


class Ruling(NamedTuple):
    """One event of the controllers' machine."""

    place: int
    """Index of the replicated command."""
    at_us: int
    """When the first controller was seen to apply it."""
    kind: str
    group: str
    members: Mapping[str, Any]
    number: int

    @property
    def sync_state_set(self) -> frozenset[int] | None:
        """The set in force from here on, where the event names one."""
        members = self.members.get("sync_state_set")
        return None if members is None else frozenset(members)


class QueueLog:
    """H(q): what the truth holds of one queue, by offset; holes have the value None."""

    __slots__ = ("crcs", "ends", "epochs", "start", "values")

    def __init__(self, start: int) -> None:
        self.start = start
        self.values: list[str | None] = []
        self.crcs: list[int] = []
        self.ends = array("q")
        """Where the batch of each message ends in the log: its message is confirmed from there."""
        self.epochs = array("q")

    @property
    def end(self) -> int:
        return self.start + len(self.values)

    def value_at(self, offset: int) -> str | None:
        index = offset - self.start
        return self.values[index] if 0 <= index < len(self.values) else None

    def end_at(self, offset: int) -> int | None:
        """Position from which on the message is confirmed; None if it is not there."""
        index = offset - self.start
        return self.ends[index] if 0 <= index < len(self.ends) else None

    def put(self, batch: StoredBatch) -> None:
        hole = batch.base_offset - self.end
        if not 0 <= hole <= _HOLE_MAX:
            return  # overlapping or absurd: S6 says so
        count = len(batch.messages)
        self.values += [None] * hole
        self.crcs += [0] * hole
        self.ends.extend([-1] * hole + [batch.position + batch.size] * count)
        self.epochs.extend([-1] * hole + [batch.epoch] * count)
        for value, crc in batch.messages:
            self.values.append(value)
            self.crcs.append(crc)


@dataclass(frozen=True, slots=True)
class SetTimeline:
    """Committed sync state sets of one group, oldest first."""

    ats: list[int]
    sets: list[frozenset[int]]
    numbers: list[int]

    def members_throughout(self, start_us: int, end_us: int) -> frozenset[int]:
        """Replicas that were in every set in force between two moments."""
        first = bisect_right(self.ats, start_us) - 1
        last = bisect_right(self.ats, end_us) - 1
        if first < 0:
            return frozenset()
        return frozenset.intersection(*self.sets[first : last + 1])


class ProbeLine:
    """Probes of one node in order of time."""

    def __init__(self, probes: list[Probe]) -> None:
        self.probes = sorted(probes, key=lambda probe: (probe.at_us, probe.number))
        self._ats = [probe.at_us for probe in self.probes]

    def first_after(self, at_us: int) -> Probe | None:
        index = bisect_right(self._ats, at_us)
        return self.probes[index] if index < len(self.probes) else None

    def first_serving_after(self, at_us: int) -> Probe | None:
        """As master or replica. O(probes in between)."""
        later = range(bisect_right(self._ats, at_us), len(self.probes))
        return next((self.probes[i] for i in later if self.probes[i].role in SERVING), None)

    def last_until(self, at_us: int) -> Probe | None:
        index = bisect_right(self._ats, at_us) - 1
        return self.probes[index] if index >= 0 else None
