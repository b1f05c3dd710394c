"""What `python -m paceline_chaos.cluster_sim` shows."""

import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from paceline_chaos.cluster_sim.batch import Outcome, fails_as, run_many
from paceline_chaos.cluster_sim.coverage import COVERAGE, lacks, said_of_judged
from paceline_chaos.cluster_sim.determinism import rerun_many
from paceline_chaos.cluster_sim.faults.plan import Plan, draw_plan
from paceline_chaos.cluster_sim.faults.plan_file import (
    WrittenPlan,
    read_plan,
    replay_of,
    write_plan,
)
from paceline_chaos.cluster_sim.faults.shrink import shrink
from paceline_chaos.cluster_sim.run import REPLAY, Result, run_world
from paceline_chaos.cluster_sim.topology import LOAD_MS, draw_topology
from paceline_chaos.faults.plan import Fault
from paceline_chaos.report.keep import keep
from paceline_chaos.verdict import Violation

_SHOWN_MAX = 10
WORLD_CPU_S = 10
"""Of one world, roughly (two cores of 2024): for the line that asks for patience."""


def say(line: str) -> None:
    sys.stdout.write(line + os.linesep)
    sys.stdout.flush()


def show_one(seed: int, *, history: str | None, log: str | None) -> int:
    """Run a world and tell all about it; 1 if it is bad."""
    say(f"seed {seed}: running, for some {WORLD_CPU_S} s ...")
    result = run_world(seed, keep_log=log is not None)
    return _show(result, REPLAY.format(seed=seed), history=history, log=log)


def show_plan(path: Path, *, history: str | None, log: str | None) -> int:
    """Run the world of a plan file, as `show_one`."""
    written = read_plan(path)
    say(f"seed {written.seed}: running with the faults of {path} ...")
    result = run_world(
        written.seed, plan=written.plan, load_ms=written.load_ms, keep_log=log is not None
    )
    return _show(result, replay_of(path), history=history, log=log)


def _show(result: Result, replay: str, *, history: str | None, log: str | None) -> int:
    say(result.topology.to_line())
    _say_plan(result.plan)
    for violation in result.verdict.violations[:_SHOWN_MAX]:
        _say_violation(violation)
    say(" ".join(f"{name}={result.counters[name]}" for name in COVERAGE))
    word = "good" if result.verdict.is_good else "BAD"
    say(f"seed {result.seed}: {word} {result.digest}")
    if history is not None:
        keep(result.history, result.verdict, Path(history), bounds=result.bounds)
    if log is not None:
        Path(log).write_text("\n".join(result.logs))
    if not result.verdict.is_good:
        say(replay)
    return 0 if result.verdict.is_good else 1


def show_shrunk(seed: int, path: Path) -> int:
    """The fewest faults that still break what the seed breaks, written to a file at once."""
    plan = draw_plan(draw_topology(seed, load_ms=LOAD_MS))
    found = run_world(seed, plan=plan, load_ms=LOAD_MS).verdict.violations
    if not found:
        say(f"seed {seed} is good: there is nothing to shrink")
        return 0
    properties = frozenset(violation.property for violation in found)
    say(f"{len(plan.faults)} faults break {', '.join(sorted(properties))}")

    def is_bad(tried: Plan) -> bool:
        is_same = fails_as(seed, properties, tried, load_ms=LOAD_MS)
        say(f"  {len(tried.faults)} faults: {'broken as well' if is_same else 'not broken so'}")
        return is_same

    smallest = shrink(plan, is_bad)
    write_plan(WrittenPlan(seed=seed, load_ms=LOAD_MS, plan=smallest), path)
    result = run_world(seed, plan=smallest, load_ms=LOAD_MS)
    _say_plan(smallest)
    for violation in result.verdict.violations[:_SHOWN_MAX]:
        _say_violation(violation)
    say(f"seed {seed}: {len(smallest.faults)} faults are left, trace {result.digest}")
    say(replay_of(path))
    return 1


def show_many(seeds: Sequence[int], processes: int | None) -> int:
    """Run many worlds and tell each verdict as it falls; then their sums, and what was bad. 1 if
    anything was, or if they are blind."""
    say(f"{len(seeds)} worlds, each some {WORLD_CPU_S} s of a processor ...")
    sums: Counter[str] = Counter()
    worlds, cpu_s = 0, 0.0
    bad: list[Outcome] = []
    for outcome in run_many(seeds, processes=processes):
        worlds += 1
        cpu_s += outcome.cpu_s
        sums.update(outcome.counters)
        word = "BAD" if outcome.violations else "good"
        say(f"seed {outcome.seed}: {word}, {outcome.cpu_s:.1f} s of CPU ({worlds} of {len(seeds)})")
        if outcome.violations:
            bad.append(outcome)
            for violation in outcome.violations[:3]:
                _say_violation(violation)
            say(REPLAY.format(seed=outcome.seed))
    for name, meaning in COVERAGE.items():
        say(f"{sums[name] / worlds:10.2f} {name} per world: {meaning}")
    say(said_of_judged(sums))
    lacking = lacks(sums, worlds=worlds)
    for sentence in lacking:
        say(f"worlds: {sentence}")
    missing = [name for name in COVERAGE if not sums[name]]
    say(f"{worlds} worlds, {cpu_s / worlds:.1f} s of CPU each, {len(bad)} bad, never: {missing}")
    return 1 if bad or lacking else 0


def show_determinism(seeds: range, processes: int | None) -> int:
    """Run seeds again under other circumstances and compare digests; 1 if any differs."""
    same = 0
    for found in rerun_many(seeds, processes=processes):
        same += found.is_same
        detail = found.digest if found.is_same else f"{found.digest} {found.digest_again}"
        say(f"seed {found.seed}: {'same' if found.is_same else 'DIFFERENT'} {detail} ({found.way})")
    say(f"Trace hashes equal in {same} of {len(seeds)} re-runs")
    return 0 if same == len(seeds) else 1


def _say_plan(plan: Plan) -> None:
    for fault in plan.faults:
        say("  " + _told(fault))
    for fault in plan.broken:
        say("  for ever: " + _told(fault))


def _told(fault: Fault) -> str:
    other = "" if fault.other is None else f" > {fault.other}"
    details = " ".join(f"{key}={value:g}" for key, value in fault.details.items())
    return f"{fault.at_ms:6} ms {fault.kind} {fault.target}{other} for {fault.for_ms} ms {details}"


def _say_violation(violation: Violation) -> None:
    say(f"{violation.property}: {violation.sentence[:500]} (entries {violation.proof[:8]})")
