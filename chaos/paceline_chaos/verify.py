"""Long verification: `python -m paceline_chaos.verify --minutes 10 --bed all`, or `make verify`.

Runs mutants, core seeds and worlds in worker processes on all cores, each in a fresh interpreter
that does one piece of work at a time; says at once what fails, and the command that replays it; and
appends what was done to the ledger, so that the next run goes on where this one ended. Seeds that
run twice (determinism) and the scripts of all_ack have a number instead of a time, once for each
source. `--bed processes` runs rounds of scenarios on real processes instead (`paceline chaos
rounds`).
"""

import argparse
import multiprocessing
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.errors import BadRequestError
from paceline.platform.runtime import SystemClock
from paceline_chaos import ledger
from paceline_chaos.cluster_sim.coverage import COVERAGE, lacks, said_of_judged
from paceline_chaos.commands import EXIT_INTERRUPTED, EXIT_REFUSED
from paceline_chaos.goals import (
    SEEDS_TO_JUDGE,
    SEEDS_WANTED,
    never_judged,
    said_of_rate,
    said_of_rounds,
    too_few_rounds,
    too_few_seeds,
)
from paceline_chaos.ledger import Line
from paceline_chaos.mutants import MUTANTS
from paceline_chaos.protocol_sim.coverage import COUNTERS, Coverage, zeros
from paceline_chaos.raft.coverage import COUNTERS as RAFT_COUNTERS
from paceline_chaos.seeds import (
    SeedResult,
    how_many,
    replay_command,
    said_of_reruns,
    some_minutes,
)
from paceline_chaos.verify_jobs import MUTANT_SEEDS_MAX, Done, Job, run_job

if TYPE_CHECKING:
    from paceline_chaos.processes.rounds import Came

SEEDS_PER_JOB = {"core": 10, "raft": 10}
"""Of other beds: 1."""
JOBS_PER_PROCESS = 20
"""Then another process takes over: what a bed leaves in memory does not pile up."""
PROGRESS_MS = 5000
_MEANINGS = {"core": COUNTERS, "raft": RAFT_COUNTERS}
"""Beds in which nothing may stay unseen."""
EXPECTED_ZEROS = ("given_up", "given_up_lost", "given_up_suspect", "installs")
"""So rare that 300 seeds may lack them."""
_SHOWN_MAX = 3
_LONG_MINUTES = 60.0
"""For beds with a number of seeds: more than they need."""


@dataclass(slots=True)
class Sum:
    """What a bed's run has come to so far."""

    start: int
    end: int
    """All seeds below are done."""
    ends: dict[int, int] = field(default_factory=dict)
    """Of jobs that came before one that is still going on: start -> end."""
    coverage: Coverage = field(default_factory=Coverage)
    violations: dict[str, list[int]] = field(default_factory=dict)
    seeds: int = 0
    virtual_us: int = 0
    cpu_s: float = 0.0
    operations: int = 0
    faults: int = 0

    def add(self, done: Done) -> None:
        self.cpu_s += done.cpu_s
        self.ends[done.job.start] = done.job.end
        while self.end in self.ends:
            self.end = self.ends.pop(self.end)
        for result in done.results:
            self.seeds += 1
            self.virtual_us += result.virtual_us
            self.operations += result.operations
            self.faults += result.faults
            self.coverage.add(result.counters)
            for name in dict.fromkeys(found.property for found in result.violations):
                self.violations.setdefault(name, []).append(result.seed)


class Verification:
    """One run of `verify`. `say` prints a line."""

    def __init__(
        self, *, processes: int, path: Path, say: Callable[[str], None], source: str
    ) -> None:
        self._processes = processes
        self._path = path
        self._say = say
        self._source = source
        self._clock = SystemClock()
        self.is_good = True
        self.too_few: list[str] = []
        """What is missing before the source can be called good."""

    # -- beds

    def run_bed(self, bed: str, minutes: float) -> None:
        """Seeds after those that the ledger knows, until the time is over or all are done."""
        lines = ledger.read(self._path)
        start = ledger.seeds_done(lines, source=self._source, bed=bed)
        total = Sum(start=start, end=start)
        deadline_ms = self._clock.monotonic_ms() + int(minutes * 60_000)
        size = SEEDS_PER_JOB.get(bed, 1)
        wanted = SEEDS_WANTED.get(bed, sys.maxsize)

        def jobs() -> Iterator[Job]:
            at = start
            while at < wanted and self._clock.monotonic_ms() < deadline_ms:
                yield Job(bed=bed, start=at, end=at + size)
                at += size

        self._say(f"{bed}: from seed {start} on, for {minutes:g} minutes at most")
        for name, seeds in ledger.violated(lines, source=self._source, bed=bed).items():
            self.is_good = False
            self._say(f"  {name} was violated before, by the same source: seeds {seeds}")
        began_ms = said_ms = self._clock.monotonic_ms()
        try:
            for done in self._work(jobs()):
                total.add(done)
                for result in done.results:
                    self._say_violations(result)
                now_ms = self._clock.monotonic_ms()
                if now_ms - said_ms > PROGRESS_MS:
                    said_ms = now_ms
                    self._say(_progress(bed, total, now_ms - began_ms))
        finally:
            if total.seeds:
                self._append(self._line(bed, total))
        elapsed_ms = self._clock.monotonic_ms() - began_ms
        self._say(_progress(bed, total, elapsed_ms))
        rate = said_of_rate(
            bed,
            seeds=total.seeds,
            virtual_us=total.virtual_us,
            elapsed_ms=elapsed_ms,
            processes=self._processes,
        )
        if rate is not None:
            self._say(rate)
        self.weigh(bed)

    def run_mutants(self, rules: Collection[str] = MUTANTS.keys()) -> None:
        """All of these that this source has not caught yet."""
        caught_before = ledger.mutants_caught(ledger.read(self._path), source=self._source)
        known = [rule for rule in rules if rule in caught_before]
        rules = [rule for rule in rules if rule not in caught_before]
        self._say(f"mutants: {len(rules)} to catch, {len(known)} were caught before")
        jobs = (
            Job(bed=MUTANTS[rule].bed, start=0, end=MUTANT_SEEDS_MAX, mutant=rule) for rule in rules
        )
        caught: dict[str, list[object]] = {}
        missed: list[str] = []
        cpu_s = 0.0
        try:
            for done in self._work(jobs):
                rule = str(done.job.mutant)
                cpu_s += done.cpu_s
                if done.caught_by is None:
                    missed.append(rule)
                    self.is_good = False
                    self._say(
                        f"  {rule}: NOT CAUGHT in {done.cpu_s:.0f} s: {MUTANTS[rule].meaning}"
                    )
                    for name, sentence in done.seen.items():
                        self._say(f"    seen: {name}: {sentence}")
                else:
                    caught[rule] = [done.caught_by, done.caught_seed, round(done.cpu_s, 1)]
                    self._say(
                        f"  {rule}: {done.caught_by} in seed {done.caught_seed}, {done.cpu_s:.1f} s"
                    )
        finally:
            if caught or missed:
                line = Line(
                    source=self._source,
                    bed="mutants",
                    cpu_s=int(cpu_s),
                    caught=caught,
                    missed=missed,
                )
                self._append(line)
        self._say(f"mutants: {len(caught) + len(known)} caught, {len(missed)} not")

    def run_processes(self, minutes: float, output: Path) -> None:
        """Rounds of all families, behind those that the ledger knows."""
        from paceline_chaos.processes.rounds import HEADINGS
        from paceline_chaos.processes.rounds_command import run_rounds, told
        from paceline_chaos.processes.scenario.file import load_scenarios

        def tell(came: "Came") -> None:
            for line in told(came):
                self._say(line)

        rows, bad = run_rounds(
            load_scenarios("all"),
            rounds=None,
            minutes=minutes,
            jobs=min(2, self._processes),
            output=output,
            path=self._path,
            source=self._source,
            tell=tell,
            say=self._say,
        )
        self.is_good = self.is_good and not bad
        for row in rows:
            self._say("processes: " + ", ".join(map(" ".join, zip(HEADINGS, row, strict=True))))
        for name in bad:
            self._say(f"processes: not good: {name}")
        self.weigh_processes()

    def weigh_processes(self) -> None:
        """What all rounds of this source have come to, by the ledger."""
        from paceline_chaos.processes.rounds import BED
        from paceline_chaos.processes.scenario.scenario import FAMILIES

        done = ledger.total(ledger.read(self._path), source=self._source, bed=BED)
        self._say(said_of_rounds(done.rounds, FAMILIES))
        self._say(f"processes: {said_of_judged(done.counters)}")
        silent = never_judged(done.counters)
        self._say(f"processes: never judged over all families: {', '.join(silent) or 'none'}")
        self._lack(too_few_rounds(done.rounds, FAMILIES))

    # -- inside

    def _append(self, line: Line) -> None:
        if not ledger.append_if_same(line, self._path):
            self.is_good = False
            self._say(f"{line.bed}: the sources have changed meanwhile: not added to the ledger")

    def _work(self, jobs: Iterator[Job]) -> Iterator[Done]:
        """Results as they come; the next job is taken only when a worker is free for it."""
        free = threading.Semaphore(self._processes + 1)
        stopped = threading.Event()

        def paced() -> Iterator[Job]:
            for job in jobs:
                free.acquire()
                if stopped.is_set():
                    return
                yield job

        # Fresh interpreters: nothing that this one has made can be in a bed.
        context = multiprocessing.get_context("spawn")
        ignored = (signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for this process to tell of
        with context.Pool(
            self._processes, signal.signal, ignored, maxtasksperchild=JOBS_PER_PROCESS
        ) as pool:
            try:
                for done in pool.imap_unordered(run_job, paced()):
                    free.release()
                    yield done
            finally:
                # The pool's own thread waits for a free worker: without this, Ctrl-C would hang.
                stopped.set()
                free.release()

    def _say_violations(self, result: SeedResult) -> None:
        if result.is_good:
            return
        self.is_good = False
        for violation in result.violations[:_SHOWN_MAX]:
            self._say(
                f"  {result.bed} seed {result.seed}: {violation.property}: {violation.sentence}"
            )
        self._say(f"  replay: {replay_command(result.bed, result.seed)}")

    def _lack(self, sentence: str | None) -> None:
        if sentence is not None:
            self.too_few.append(sentence)

    def weigh(self, bed: str) -> None:
        """What all seeds of this source have been through, by the ledger: short runs add up."""
        done = ledger.total(ledger.read(self._path), source=self._source, bed=bed)
        self._lack(too_few_seeds(bed, done.seeds))
        self._say(f"{bed}: {done.seeds} seeds of this source in the ledger")
        if bed == "determinism":
            self._say(said_of_reruns(Counter(done.counters)))
            return
        meanings = _MEANINGS.get(bed, COVERAGE)
        for name, meaning in sorted(meanings.items()):
            if done.counters.get(name) or bed in _MEANINGS:
                self._say(f"  {done.counters.get(name, 0):10,} {meaning}")
        unseen = zeros(done.counters, of=meanings, but=EXPECTED_ZEROS)
        if bed in _MEANINGS and unseen and done.seeds >= SEEDS_TO_JUDGE[bed]:
            self.is_good = False
            self._say(f"{bed}: never seen: {', '.join(unseen)}")
        if bed == "world":
            self._say(f"  {said_of_judged(done.counters)}")
            for sentence in lacks(done.counters, worlds=done.seeds):
                self.is_good = False
                self._say(f"world: {sentence}")

    def _line(self, bed: str, total: Sum) -> Line:
        counts = total.coverage.counts
        return Line(
            source=self._source,
            bed=bed,
            start=total.start,
            end=total.end,
            violations=total.violations,
            virtual_s=total.virtual_us // 1_000_000,
            cpu_s=int(total.cpu_s),
            operations=total.operations,
            faults=total.faults,
            counters={name: count for name, count in counts.items() if count},
        )


def _progress(bed: str, total: Sum, elapsed_ms: int) -> str:
    bad = sum(len(seeds) for seeds in total.violations.values())
    per_seed = max(1, total.seeds)
    return (
        f"{bed}: {total.seeds} seeds in {elapsed_ms / 1000:.0f} s "
        f"({total.cpu_s / per_seed:.2f} CPU-s each), {total.virtual_us / 3.6e9:.1f} virtual hours, "
        f"{total.operations / per_seed:.0f} operations and {total.faults / per_seed:.0f} faults "
        f"each, {bad} violations"
    )


def main() -> int:
    """Exit code 0 only if every seed was good, every mutant was caught, and there were enough of
    them; 2 for what cannot be asked for, 130 when interrupted."""
    parser = argparse.ArgumentParser(prog="python -m paceline_chaos.verify", description=__doc__)
    parser.add_argument("--minutes", type=some_minutes, default=10.0, help="for core and world")
    parser.add_argument(
        "--bed",
        choices=["mutants", *SEEDS_WANTED, "core", "world", "processes", "all"],
        default="all",
    )
    parser.add_argument(
        "--mutant",
        choices=sorted(MUTANTS),
        metavar="RULE",
        help="only the mutant without this rule",
    )
    parser.add_argument("--processes", type=how_many, default=os.cpu_count() or 1)
    parser.add_argument("--ledger", type=Path, default=ledger.LEDGER)
    options = parser.parse_args()
    # As Ctrl-C: what was done until then is told to the ledger.
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    def say(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    try:
        return _verify(options, say)
    except BadRequestError as error:
        say(error.message)
        return EXIT_REFUSED


def _verify(options: argparse.Namespace, say: Callable[[str], None]) -> int:
    ledger.check(options.ledger)
    verification = Verification(
        processes=options.processes,
        path=options.ledger,
        say=say,
        source=ledger.source_hash(),
    )
    try:
        if options.mutant is not None:
            verification.run_mutants([options.mutant])
        else:
            _run(verification, options.bed, options.minutes)
    except KeyboardInterrupt:
        say("stopped; what was done is in the ledger")
        return EXIT_INTERRUPTED
    for sentence in verification.too_few:
        say(f"too few to judge: {sentence}")
    if not verification.is_good:
        say("NOT good")
    else:
        say("NOT good: too few to judge" if verification.too_few else "good")
    return 0 if verification.is_good and not verification.too_few else 1


def _run(verification: Verification, wanted: str, minutes: float) -> None:
    if wanted in ("mutants", "all"):
        verification.run_mutants()
    if wanted == "processes":
        verification.run_processes(minutes, Path("chaos-runs"))
    for bed in SEEDS_WANTED:
        if wanted in (bed, "all"):
            verification.run_bed(bed, minutes if wanted == bed else _LONG_MINUTES)
    beds = [bed for bed in ("core", "world") if wanted in (bed, "all")]
    for bed in beds:
        verification.run_bed(bed, minutes / len(beds))


if __name__ == "__main__":
    sys.exit(main())
