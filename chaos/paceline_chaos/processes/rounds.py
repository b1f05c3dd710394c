"""Rounds: every family of scenarios again and again, each round with a seed of its own.

Every round runs in a process and a network namespace of its own, forked from this one, which has
imported everything: it runs no loop and no thread. What came of a round is a line in the ledger,
under the hash of the sources; the next rounds of the same hash go on behind it. A bad round keeps
its folder.
"""

import contextlib
import gc
import importlib
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from statistics import median
from typing import Any, NoReturn

import orjson

from paceline.platform.node_process import be_program
from paceline.platform.runtime import SystemClock
from paceline_chaos import ledger
from paceline_chaos.cluster_sim.coverage import judged_counts
from paceline_chaos.ledger import Line
from paceline_chaos.processes import __main__ as program
from paceline_chaos.processes.leftovers import drop_data, fresh
from paceline_chaos.processes.scenario.scenario import Scenario

BED = "processes"
_SECURE_SHARE = 0.3
_NO_VERDICT = "NO VERDICT"
"""The property of a round that came to no verdict: the harness or the start of the cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round to run."""

    family: str
    number: int
    """Of its family, from 0 on."""
    scenario: Scenario
    path: Path
    seed: int

    @property
    def name(self) -> str:
        return f"{self.scenario.name}-{self.seed}"

    @property
    def replay(self) -> str:
        """Real processes do not repeat to the microsecond; faults and clients do."""
        is_ours = self.path.parent == Path(str(resources.files("paceline_chaos") / "scenarios"))
        scenario = self.scenario.name if is_ours else str(self.path)
        secure = " --secure" if self.is_secure else ""
        return f".venv/bin/paceline chaos run {scenario} --seed {self.seed}{secure}"

    @property
    def is_secure(self) -> bool:
        """Whether TLS, users and rights are put under the scenario, drawn from the seed."""
        dice = random.Random(f"secure-{self.scenario.name}-{self.seed}")
        return self.scenario.can_be_secure and dice.random() < _SECURE_SHARE


@dataclass(frozen=True, slots=True, kw_only=True)
class Came:
    """What came of a round."""

    round: Round
    verdict: dict[str, Any]
    """As `verdict.json` has it."""
    took_ms: int
    folder: Path

    @property
    def is_good(self) -> bool:
        return bool(self.verdict["is_good"])


@dataclass(slots=True)
class _Running:
    round: Round
    folder: Path
    began_ms: int


@dataclass(slots=True)
class FamilySum:
    """What the rounds of a family have come to in this run."""

    rounds: int = 0
    bad: list[str] = field(default_factory=list)
    gaps_ms: list[int] = field(default_factory=list)
    times_ms: list[int] = field(default_factory=list)
    acknowledged: int = 0
    availability: list[float] = field(default_factory=list)

    def add(self, came: Came) -> None:
        figures = came.verdict["figures"]
        self.rounds += 1
        self.times_ms.append(came.took_ms)
        self.acknowledged += came.verdict["counters"].get("acknowledged", 0)
        self.gaps_ms.append(figures.get("gap_ms", 0))
        self.availability.append(figures.get("availability", 0.0))
        if not came.is_good:
            self.bad.append(came.round.name)


class Rounds:
    """`run` yields rounds as they end; no process of theirs is left, whatever happens."""

    def __init__(
        self, *, output: Path, jobs: int, path: Path, source: str, is_kept: bool = False
    ) -> None:
        """Kept: good rounds leave their history, report and logs, too."""
        self._output = output
        self._jobs = jobs
        self._path = path
        self._source = source
        self._is_kept = is_kept
        self._clock = SystemClock()
        self._running: dict[int, _Running] = {}
        self.is_source_same = True
        """False: the sources have changed meanwhile, and not all rounds are in the ledger."""

    def run(self, rounds: Iterator[Round], *, is_over: Callable[[], bool]) -> Iterator[Came]:
        """Begins a round whenever fewer than `jobs` run, until it is over or there are no more."""
        importlib.import_module("pyroute2")  # the slowest of what a round imports late
        gc.collect()
        gc.freeze()
        is_more = True
        try:
            while is_more or self._running:
                while is_more and len(self._running) < self._jobs:
                    following = None if is_over() else next(rounds, None)
                    is_more = following is not None
                    if following is not None:
                        self._begin(following)
                if self._running:
                    came = self._wait()
                    self.note(came)
                    if came.is_good and self._is_kept:
                        drop_data(came.folder)
                    elif came.is_good:
                        shutil.rmtree(came.folder)
                    yield came
        finally:
            self._end_all()

    def note(self, came: Came) -> None:
        """A line in the ledger."""
        is_same = ledger.append_if_same(self._line(came), self._path)
        self.is_source_same = self.is_source_same and is_same

    def _begin(self, one: Round) -> None:
        folder = fresh(self._output, one.name)
        self._said(folder).unlink(missing_ok=True)
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            self._be_round(one, folder)
        self._running[pid] = _Running(one, folder, self._clock.monotonic_ms())

    def _be_round(self, one: Round, folder: Path) -> NoReturn:
        """In the child: a session and an output of its own, then the run; never returns."""
        arguments = ["--scenario", str(one.path), "--seed", str(one.seed)]
        arguments += ["--folder", str(folder), "--isolated"]
        arguments += ["--secure"] if one.is_secure else []

        def be_leader() -> int:
            os.setsid()
            return program.main(arguments)

        be_program(self._said(folder), be_leader)

    def _said(self, folder: Path) -> Path:
        """What a round says while it runs."""
        return folder.with_name(f"{folder.name}.said")

    def _wait(self) -> Came:
        """The next round that ends."""
        pid, status = os.wait()
        ended = self._running.pop(pid)
        found = ended.folder / "verdict.json"
        if found.exists():
            verdict = orjson.loads(found.read_bytes())
            self._said(ended.folder).unlink()
        else:
            verdict = self._no_verdict(ended, os.waitstatus_to_exitcode(status))
            if ended.folder.is_dir():
                self._said(ended.folder).rename(ended.folder / "said.log")
        return Came(
            round=ended.round,
            verdict=verdict,
            took_ms=self._clock.monotonic_ms() - ended.began_ms,
            folder=ended.folder,
        )

    def _no_verdict(self, ended: _Running, code: int) -> dict[str, Any]:
        lines = self._said(ended.folder).read_text(errors="replace").splitlines()
        last = lines[-1] if lines else "nothing"
        sentence = f"the round ended with exit code {code}; it said last: {last}"
        violation = {"property": _NO_VERDICT, "sentence": sentence, "proof": []}
        return {"is_good": False, "violations": [violation], "counters": {}, "figures": {}}

    def _end_all(self) -> None:
        for pid in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        for pid in list(self._running):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
            self._said(self._running[pid].folder).unlink(missing_ok=True)
            del self._running[pid]

    def _line(self, came: Came) -> Line:
        one, counters = came.round, came.verdict["counters"]
        judged = {name: count for name, count in judged_counts(counters).items() if count}
        return Line(
            source=self._source,
            bed=BED,
            family=one.family,
            scenario=one.scenario.name,
            start=one.number,
            end=one.number + 1,
            seed=one.seed,
            violations={found["property"]: [one.seed] for found in came.verdict["violations"]},
            operations=counters.get("operations", 0),
            counters={"acknowledged": counters.get("acknowledged", 0), **judged},
            gap_ms=came.verdict["figures"].get("gap_ms", 0),
        )


def planned(
    scenarios: Sequence[tuple[Scenario, Path]],
    lines: Sequence[Line],
    *,
    source: str,
    count: int | None,
) -> Iterator[Round]:
    """The families in turn, each behind what the ledger has of it; of each family its scenarios in
    turn. `count` rounds of each, or without end."""
    families = dict.fromkeys(spec.family for spec, _ in scenarios)
    first = {
        family: ledger.seeds_done(lines, source=source, bed=BED, family=family)
        for family in families
    }
    done = 0
    while count is None or done < count:
        for family in families:
            members = [(spec, path) for spec, path in scenarios if spec.family == family]
            number = first[family] + done
            spec, path = members[number % len(members)]
            yield Round(family=family, number=number, scenario=spec, path=path, seed=number + 1)
        done += 1


def table(sums: dict[str, FamilySum]) -> list[tuple[str, ...]]:
    """A row for each family."""
    return [
        (
            family,
            str(one.rounds),
            str(len(one.bad)),
            f"{one.acknowledged:,}",
            f"{median(one.gaps_ms):.0f}",
            str(max(one.gaps_ms)),
            f"{100 * sum(one.availability) / len(one.availability):.1f} %",
            f"{median(one.times_ms) / 1000:.1f} s",
        )
        for family, one in sums.items()
    ]


HEADINGS = (
    "family",
    "rounds",
    "bad",
    "acknowledged",
    "gap ms, median",
    "longest",
    "availability",
    "a round takes",
)
