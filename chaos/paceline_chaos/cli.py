"""`paceline chaos`: faults on real processes, and failing seeds of the simulated beds once more."""

import contextlib
import logging
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import orjson

from paceline.cli.output import echo_json, echo_table
from paceline.errors import BadRequestError, PacelineError, from_problem, to_problem
from paceline_chaos.checkers.evidence.bounds import Bounds
from paceline_chaos.commands import EXIT_BAD, EXIT_INTERRUPTED
from paceline_chaos.history.model import History
from paceline_chaos.processes.busy_command import command as busy
from paceline_chaos.processes.failover.command import command as failover
from paceline_chaos.processes.leftovers import (
    drop_data,
    fresh,
    make_folder,
    said_of_interrupt,
)
from paceline_chaos.processes.rounds_command import command as rounds_command
from paceline_chaos.processes.scenario.file import load_scenarios
from paceline_chaos.processes.scenario.scenario import Scenario
from paceline_chaos.verdict import Verdict

if TYPE_CHECKING:
    from paceline_chaos.cluster_sim.run import Result

_STOP_TIMEOUT_S = 30
_SHOWN_VIOLATIONS_MAX = 5


@click.group("chaos")
def command() -> None:
    """Break a cluster in every way we know and judge what it did."""


# -- scenarios ------------------------------------------------------------------------------------


def _list(*, as_json: bool) -> None:
    scenarios = [scenario for scenario, _ in load_scenarios("all")]
    if as_json:
        for one in scenarios:
            echo_json(
                {
                    "scenario": one.name,
                    "family": one.family,
                    "title": one.title,
                    "proves": one.proves.strip(),
                }
            )
        return
    rows = [
        (one.name, one.family, "yes" if one.needs_network else "", one.title) for one in scenarios
    ]
    echo_table(("scenario", "family", "namespace", "title"), rows)


# -- run ------------------------------------------------------------------------------------------


@command.command("run")
@click.argument("scenario", required=False)
@click.option("--list", "is_list", is_flag=True, help="Name the scenarios and end.")
@click.option(
    "--seed", type=click.IntRange(0), default=1, show_default=True, help="Of the first round."
)
@click.option(
    "--rounds", type=click.IntRange(1), default=1, show_default=True, help="Each with its own seed."
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("chaos-runs"),
    show_default=True,
    help="Folder for histories, logs and reports.",
)
@click.option("--keep", is_flag=True, help="Keep the nodes' data of good runs, too.")
@click.option("--secure", "is_secure", is_flag=True, help="With TLS, users and rights.")
@click.option("--json", "as_json", is_flag=True, help="JSON lines for programs.")
def run(
    scenario: str | None,
    *,
    is_list: bool,
    seed: int,
    rounds: int,
    output: Path,
    keep: bool,
    is_secure: bool,
    as_json: bool,
) -> int:
    """Run SCENARIO (a name, `all`, or a TOML file) on real processes; exit code 1 if a run is bad.

    Every run leaves its history (one JSON line for each entry), the logs of all nodes, its verdict
    and a report as one HTML file. Partitions run in a network namespace of their own.
    """
    if is_list:
        _list(as_json=as_json)
        return 0
    if scenario is None:
        raise BadRequestError("name a scenario, or say --list")
    wanted = [
        (spec, path, number)
        for spec, path in load_scenarios(scenario)
        for number in range(seed, seed + rounds)
    ]
    bad = []
    for spec, path, number in wanted:
        folder = fresh(output, f"{spec.name}-{number}")
        try:
            verdict = _run_one(spec, path, number, folder, as_json=as_json, is_secure=is_secure)
        except KeyboardInterrupt:
            click.echo(said_of_interrupt(folder), err=True)
            return EXIT_INTERRUPTED
        except PacelineError as error:
            if len(wanted) == 1:
                raise
            _tell_failure(spec, number, error, as_json=as_json)
            bad.append(f"{spec.name} {number}")
            continue
        if not verdict["is_good"]:
            bad.append(f"{spec.name} {number}")
        elif not keep:
            drop_data(folder)
    if len(wanted) > 1 and not as_json:
        click.echo(f"{len(wanted) - len(bad)} of {len(wanted)} runs good", nl=not bad)
        if bad:
            click.echo(f"; not good: {', '.join(bad)}")
    return EXIT_BAD if bad else 0


def _tell_failure(spec: Scenario, seed: int, error: PacelineError, *, as_json: bool) -> None:
    """One of many runs could not be made: that is a failure, and the others go on."""
    if as_json:
        problem = to_problem(error)
        echo_json({"scenario": spec.name, "seed": seed, "event": "failed", "problem": problem})
    else:
        click.echo(f"  NOT RUN: {error.message}")


def _run_one(
    spec: Scenario, path: Path, seed: int, folder: Path, *, as_json: bool, is_secure: bool
) -> dict[str, Any]:
    """One run in a process of its own; its verdict. PacelineError if it could not be run."""
    if not as_json:
        click.echo(f"{spec.name} (seed {seed}): {spec.title}")
    verdict: dict[str, Any] | None = None
    with _child(path, seed, folder, is_secure=is_secure) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said = orjson.loads(line)
            if as_json and said["event"] != "failed":
                echo_json({"scenario": spec.name, "seed": seed, **said})
            elif said["event"] not in ("verdict", "failed"):
                click.echo(f"  {_shown(said)}")
            if said["event"] == "verdict":
                verdict = said
            if said["event"] == "failed":
                raise from_problem(said["problem"])
    if verdict is None:
        raise PacelineError(
            f"the run of {spec.name} ended without a verdict (exit code {process.returncode}); "
            f"see {folder}"
        )
    if not as_json:
        _tell(verdict, folder)
    return verdict


@contextlib.contextmanager
def _child(
    path: Path, seed: int, folder: Path, *, is_secure: bool
) -> Iterator[subprocess.Popen[bytes]]:
    """The run; it ends, with every node that it started, whatever happens here."""
    command_line = [sys.executable, "-m", "paceline_chaos.processes", "--scenario", str(path)]
    command_line += ["--seed", str(seed), "--folder", str(folder)]
    command_line += ["--secure"] if is_secure else []
    # A session of its own: Ctrl-C reaches this process only, which then stops the run in order.
    with subprocess.Popen(
        command_line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            yield process
            process.wait(timeout=_STOP_TIMEOUT_S)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(timeout=_STOP_TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    process.kill()


def _shown(said: dict[str, Any]) -> str:
    rest = ", ".join(f"{key} {value}" for key, value in said.items() if key != "event")
    return f"{said['event']}: {rest}" if rest else str(said["event"])


def _tell(verdict: dict[str, Any], folder: Path) -> None:
    figures, counters = verdict["figures"], verdict["counters"]
    word = "GOOD" if verdict["is_good"] else "BAD"
    numbers = ", ".join(f"{value:,} {key}" for key, value in list(counters.items())[:6])
    click.echo(f"  {word}: longest gap {figures['gap_ms']} ms, {figures['elections']} elections")
    if numbers:
        click.echo(f"  {numbers}")
    for one in verdict["given_up"][:_SHOWN_VIOLATIONS_MAX]:
        click.echo(f"  given up by these settings, {one['property']}: {one['sentence']}")
    for one in verdict["violations"][:_SHOWN_VIOLATIONS_MAX]:
        click.echo(f"  {one['property']}: {one['sentence']} (entries {one['proof'][:8]})")
    more = len(verdict["violations"]) - _SHOWN_VIOLATIONS_MAX
    if more > 0:
        click.echo(f"  and {more} more")
    click.echo(f"  {folder}/report.html")


# -- replay ---------------------------------------------------------------------------------------


@command.command("replay")
@click.option("--bed", type=click.Choice(["world", "core"]), required=True)
@click.option("--seed", type=click.IntRange(0), help="Of the world or of the core bed.")
@click.option(
    "--plan",
    type=click.Path(path_type=Path),
    help="Instead of a seed: the file that a shrink of a world has written.",
)
@click.option("--mutant", default=None, help="With this rule taken out of the code.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Folder for the history and its report.",
)
@click.option("--json", "as_json", is_flag=True, help="JSON lines for programs.")
def replay(
    *,
    bed: str,
    seed: int | None,
    plan: Path | None,
    mutant: str | None,
    output: Path | None,
    as_json: bool,
) -> int:
    """Run one seed of a simulated bed, or one plan of a world, again, and print its verdict."""
    if (seed is None) == (plan is None):
        raise BadRequestError("say --seed or --plan, one of them")
    if plan is not None and bed != "world":
        raise BadRequestError("only worlds have plans: --bed world")
    if output is not None:
        make_folder(output)
    with _without_rule(mutant):
        if plan is not None:
            came = _planned(plan)
        else:
            assert seed is not None
            came = _world(seed) if bed == "world" else _core(seed)
    if output is not None:
        _keep(came, output)
    verdict, counters = came.verdict, came.counters
    document = {"bed": bed, "seed": came.seed, "mutant": mutant, **_plain(verdict, counters)}
    if as_json:
        echo_json(document)
    else:
        for one in verdict.violations:
            click.echo(f"{one.property}: {one.sentence} (entries {list(one.proof[:8])})")
        numbers = ", ".join(f"{name} {count}" for name, count in counters.items() if count)
        click.echo(f"{bed} seed {came.seed}: {'GOOD' if verdict.is_good else 'BAD'}; {numbers}")
    return 0 if verdict.is_good else EXIT_BAD


def _without_rule(mutant: str | None) -> contextlib.AbstractContextManager[None]:
    from paceline_chaos.mutants import MUTANTS

    if mutant is None:
        return contextlib.nullcontext()
    if mutant not in MUTANTS:
        raise BadRequestError(f"no mutant is called {mutant!r}; known: {', '.join(MUTANTS)}")
    return MUTANTS[mutant].applied()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Replayed:
    seed: int
    verdict: Verdict
    counters: Mapping[str, int]
    history: History
    bounds: Bounds | None = None
    properties: Collection[str] | None = None


def _world(seed: int) -> _Replayed:
    from paceline_chaos.cluster_sim.run import run_world

    return _of_world(run_world(seed))


def _of_world(result: "Result") -> _Replayed:
    return _Replayed(
        seed=result.seed,
        verdict=result.verdict,
        counters=result.counters,
        history=result.history,
        bounds=result.bounds,
    )


def _planned(path: Path) -> _Replayed:
    from paceline_chaos.cluster_sim.faults.plan_file import read_plan
    from paceline_chaos.cluster_sim.run import run_world

    written = read_plan(path)
    return _of_world(run_world(written.seed, plan=written.plan, load_ms=written.load_ms))


def _core(seed: int) -> _Replayed:
    from paceline_chaos.protocol_sim.run import properties_of, result_of, run_world

    logging.getLogger("paceline").setLevel(logging.CRITICAL)
    world, violations = run_world(seed)
    counters = result_of(world, violations).counters
    verdict = Verdict(violations=tuple(violations), counters=counters)
    return _Replayed(
        seed=seed,
        verdict=verdict,
        counters=counters,
        history=world.recorder.history,
        properties=properties_of(world),
    )


def _keep(came: _Replayed, folder: Path) -> None:
    from paceline_chaos.report.keep import keep
    from paceline_chaos.report.write import write_report

    path = folder / "history.jsonl"
    keep(came.history, came.verdict, path, bounds=came.bounds, properties=came.properties)
    write_report(came.history, came.verdict, folder / "report.html")


def _plain(verdict: Verdict, counters: Mapping[str, int]) -> dict[str, Any]:
    violations = [asdict(one) for one in verdict.violations]
    return {"is_good": verdict.is_good, "violations": violations, "counters": dict(counters)}


# -- report ---------------------------------------------------------------------------------------


@command.command("report")
@click.argument("history", type=click.Path(path_type=Path))
@click.option("--output", type=click.Path(path_type=Path), default=None, help="HTML file.")
@click.option("--json", "as_json", is_flag=True, help="JSON lines for programs.")
def report(history: Path, *, output: Path | None, as_json: bool) -> int:
    """Judge a HISTORY file (or the one in the folder of a run) again, with the bounds of its
    scenario or bed, and write its report as one HTML page. Exit code 1 if something was broken,
    or if the run stopped in the middle."""
    from paceline_chaos.checkers.expectations import judged
    from paceline_chaos.report.page import NO_VERDICT
    from paceline_chaos.report.read import read_history, read_observed
    from paceline_chaos.report.write import write_report

    path = history / "history.jsonl" if history.is_dir() else history
    known, is_whole = read_history(path)
    try:
        verdict, _ = judged(known, read_observed(path))
    except (LookupError, TypeError, ValueError) as error:
        raise BadRequestError(
            f"{path} has an entry that cannot be judged ({error!r}): it was changed, or another "
            "version wrote it"
        ) from error
    page = output or path.with_suffix(".html")
    try:
        written = write_report(known, verdict, page, is_whole=is_whole)
    except OSError as error:
        raise BadRequestError(f"{page} cannot be written: {error.strerror}") from error
    is_good = verdict.is_good and is_whole
    if as_json:
        echo_json({"report": str(written), "is_good": is_good, "is_whole": is_whole})
    else:
        if not is_whole:
            found = "what it has is judged" if verdict.violations else NO_VERDICT
            click.echo(f"{path} stops in the middle of the run: {found}", err=True)
        click.echo(str(written))
    return 0 if is_good else EXIT_BAD


# -- failover, busy, rounds -----------------------------------------------------------------------

command.add_command(failover)
command.add_command(busy)
command.add_command(rounds_command)
