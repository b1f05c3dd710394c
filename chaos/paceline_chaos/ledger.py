"""The ledger of verification: `python -m paceline_chaos.ledger` sums it up.

One JSON line for each run of `verify` over one bed, keyed by the hash of the source folders:
numbers of one hash add up, and seeds that a hash has passed are not run again under it. Lines are
appended only, so that two runs at once do no harm beyond running a seed twice.
"""

import argparse
import hashlib
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from paceline.errors import BadRequestError
from paceline_chaos.cluster_sim.coverage import said_of_judged
from paceline_chaos.commands import EXIT_REFUSED
from paceline_chaos.protocol_sim.coverage import Coverage
from paceline_chaos.seeds import said_of_reruns

ROOT = Path(__file__).parents[2]
LEDGER = ROOT / "docs" / "verification.jsonl"
SOURCES = ("client", "broker", "controller", "chaos")
HASH_DIGITS = 12
_TOLD = {
    "sends_acknowledged": "acknowledged",
    "commands_acknowledged": "commands acknowledged",
    "all_ack_scripts": "scripts",
    "moments_scripts": "scripts",
}
"""Counters in the sums of beds that have them."""
_LEFT_BEHIND = ("__pycache__", ".egg-info", ".pyc", ".swp", "~")
"""Ends of names that are no source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One run over one bed."""

    source: str
    """`source_hash` of what ran."""
    bed: str
    """ "core", "raft", "world", "determinism", "all_ack", "moments", "mutants" or
    "processes"."""
    start: int = 0
    end: int = 0
    """Seeds [start, end) were run."""
    violations: Mapping[str, list[int]] = field(default_factory=dict)
    """Property -> seeds that violated it."""
    virtual_s: int = 0
    cpu_s: int = 0
    operations: int = 0
    faults: int = 0
    counters: Mapping[str, int] = field(default_factory=dict)
    caught: Mapping[str, list[Any]] = field(default_factory=dict)
    """Mutant -> [property, seed, CPU seconds]."""
    missed: list[str] = field(default_factory=list)
    family: str = ""
    """Of a round on real processes (`start` counts the rounds of its family); so is the rest."""
    scenario: str = ""
    seed: int = 0
    gap_ms: int = 0
    """The longest time without any acknowledgement under load."""


_EMPTY = Line(source="", bed="")
"""Says of which type each member is."""


def source_hash(root: Path = ROOT) -> str:
    """Of the names and contents of all files in the source folders as they are on disk now.

    Version control is not asked: what is not committed runs, too. Left out is what running and
    installing leave behind.
    """
    digest = hashlib.sha256()
    for path in sorted(path for name in SOURCES for path in _files(root / name)):
        content = path.read_bytes()
        name = path.relative_to(root).as_posix()
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:HASH_DIGITS]


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        is_left_behind = path.name.startswith(".") or path.name.endswith(_LEFT_BEHIND)
        if not is_left_behind and path.is_dir():
            yield from _files(path)
        elif not is_left_behind:
            yield path


def read(path: Path = LEDGER) -> list[Line]:
    """All lines; unknown members of newer ones are ignored. BadRequestError names a damaged one."""
    try:
        rows = path.read_bytes().splitlines() if path.exists() else []
    except OSError as error:
        raise BadRequestError(f"the ledger {path} cannot be read: {error.strerror}") from error
    lines = []
    for number, row in enumerate(rows, start=1):
        try:
            lines += [_line(row)] if row else []
        except (ValueError, TypeError, KeyError) as error:
            raise BadRequestError(
                f"{path}, line {number} is no line of a ledger ({error}): mend it or take it out"
            ) from error
    return lines


def _line(row: bytes) -> Line:
    members = orjson.loads(row)
    if not isinstance(members, dict):
        raise TypeError("not a JSON object")
    known = {name: members[name] for name in members if name in Line.__dataclass_fields__}
    line = Line(**known)
    for name, value in known.items():
        pattern = getattr(_EMPTY, name)
        if type(value) is not type(pattern):
            raise TypeError(f"{name} is {value!r}")
    return line


def check(path: Path) -> None:
    """BadRequestError if nothing can be read from a ledger or added to it: before a long run."""
    read(path)
    place = path if path.exists() else path.parent
    if path.is_dir() or not place.exists() or not os.access(place, os.W_OK):
        raise BadRequestError(
            f"no ledger can be written at {path}: name a file in a folder of yours"
        )


def append(line: Line, path: Path = LEDGER) -> None:
    """Add a line, whole or not at all."""
    members = {name: value for name, value in asdict(line).items() if value not in ({}, [], 0, "")}
    try:
        with path.open("ab") as file:
            file.write(orjson.dumps(members) + b"\n")
    except OSError as error:
        raise BadRequestError(f"the ledger {path} cannot be written: {error.strerror}") from error


def append_if_same(line: Line, path: Path = LEDGER, *, root: Path = ROOT) -> bool:
    """Add a line unless the sources have changed since its hash was taken.

    Worker processes import what is on disk when they start: after a change nobody knows what ran.
    """
    is_same = line.source == source_hash(root)
    if is_same:
        append(line, path)
    return is_same


def seeds_done(lines: Iterable[Line], *, source: str, bed: str, family: str = "") -> int:
    """Where the next run of this hash and bed begins, and of this family of rounds."""
    wanted = (source, bed, family)
    ends = (line.end for line in lines if (line.source, line.bed, line.family) == wanted)
    return max(ends, default=0)


def violated(
    lines: Iterable[Line], *, source: str, bed: str, scenario: str = ""
) -> dict[str, list[int]]:
    """Property -> seeds of this hash and bed that have violated it, in order; of rounds, those of
    one scenario."""
    found: dict[str, set[int]] = {}
    for line in lines:
        if (line.source, line.bed, line.scenario) == (source, bed, scenario):
            for name, seeds in line.violations.items():
                found.setdefault(name, set()).update(seeds)
    return {name: sorted(seeds) for name, seeds in sorted(found.items())}


@dataclass(frozen=True, slots=True)
class Total:
    """What a source has come to in a bed, over all its runs."""

    seeds: int
    """Each counted once, though two runs may have run it."""
    counters: Mapping[str, int]
    rounds: Mapping[str, int]
    """Family -> rounds, on real processes."""


def total(lines: Iterable[Line], *, source: str, bed: str) -> Total:
    """The sum of one bed."""
    counters: Counter[str] = Counter()
    rounds: Counter[str] = Counter()
    seeds, reached = 0, dict[str, int]()
    mine = [line for line in lines if (line.source, line.bed) == (source, bed)]
    for line in sorted(mine, key=lambda line: (line.family, line.start, line.end)):
        counters.update(line.counters)
        rounds[line.family] += 1
        before = reached.get(line.family, 0)
        seeds += max(0, line.end - max(line.start, before))
        reached[line.family] = max(before, line.end)
    return Total(seeds, counters, rounds)


def mutants_caught(lines: Iterable[Line], *, source: str) -> set[str]:
    """Mutants that this hash has caught already."""
    return {rule for line in lines if line.source == source for rule in line.caught}


def summary(lines: list[Line]) -> list[str]:
    """Text for people: each hash, in order of its first line."""
    said: list[str] = []
    for source in dict.fromkeys(line.source for line in lines):
        of_source = [line for line in lines if line.source == source]
        said.append(f"source {source}")
        for bed in ("core", "raft", "world", "determinism", "all_ack", "moments"):
            said += _summary_of_bed([line for line in of_source if line.bed == bed], bed)
        said += _summary_of_rounds([line for line in of_source if line.bed == "processes"])
        caught = mutants_caught(of_source, source=source)
        missed = {rule for line in of_source for rule in line.missed} - caught
        if caught or missed:
            said.append(
                f"  mutants: {len(caught)} caught, missed: {', '.join(sorted(missed)) or 0}"
            )
    return said


def _summary_of_bed(lines: list[Line], bed: str) -> list[str]:
    if not lines:
        return []
    coverage = Coverage()
    for line in lines:
        coverage.add(line.counters)
    seeds = total(lines, source=lines[0].source, bed=bed).seeds
    hours = sum(line.virtual_s for line in lines) / 3600
    operations = sum(line.operations for line in lines)
    faults = sum(line.faults for line in lines)
    bad = sorted({seed for line in lines for found in line.violations.values() for seed in found})
    counts = [
        f"{coverage.counts[name]} {what}, "
        for name, what in _TOLD.items()
        if coverage.counts.get(name)
    ]
    if bed == "determinism":
        said = said_of_reruns(coverage.counts)
        return [f"  {bed}: {said}; {operations} operations, {faults} faults; different: {bad or 0}"]
    return [
        f"  {bed}: {seeds} seeds, {hours:.1f} virtual hours, {operations} operations, "
        f"{''.join(counts)}{faults} faults; violations: {bad or 0}"
    ]


def _summary_of_rounds(lines: list[Line]) -> list[str]:
    said = []
    for family in dict.fromkeys(line.family for line in lines):
        of_family = [line for line in lines if line.family == family]
        bad = [f"{line.scenario} {line.seed}" for line in of_family if line.violations]
        acknowledged = sum(line.counters.get("acknowledged", 0) for line in of_family)
        said.append(
            f"  processes, {family}: {len(of_family)} rounds, {acknowledged} acknowledged, "
            f"longest gap {max(line.gap_ms for line in of_family)} ms; "
            f"violations: {', '.join(bad) or 0}"
        )
    if lines:
        counters = total(lines, source=lines[0].source, bed=lines[0].bed).counters
        said.append(f"  processes, {said_of_judged(counters)}")
    return said


def main() -> int:
    """Print the sums; exit code 2 if the ledger cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m paceline_chaos.ledger", description=__doc__)
    parser.add_argument("--ledger", type=Path, default=LEDGER)
    options = parser.parse_args()
    try:
        lines = read(options.ledger)
    except BadRequestError as error:
        sys.stderr.write(f"{error.message}\n")
        return EXIT_REFUSED
    sys.stdout.write("\n".join([*summary(lines), f"now: {source_hash()}"]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
