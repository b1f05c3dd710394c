"""The command `paceline chaos rounds`; what it needs is imported when it is called."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline.cli.options import FiniteRange
from paceline.cli.output import echo_json, echo_table
from paceline.errors import BadRequestError
from paceline.platform.runtime import SystemClock
from paceline_chaos.commands import EXIT_INTERRUPTED
from paceline_chaos.processes.leftovers import said_of_interrupt
from paceline_chaos.processes.scenario.scenario import FAMILIES, Scenario

if TYPE_CHECKING:
    from paceline_chaos.processes.rounds import Came

_SHOWN_VIOLATIONS_MAX = 3
Say = Callable[[str], None]


def run_rounds(
    scenarios: Sequence[tuple[Scenario, Path]],
    *,
    rounds: int | None,
    minutes: float | None,
    jobs: int,
    output: Path,
    path: Path,
    source: str,
    tell: Callable[["Came"], None],
    say: Say,
    is_kept: bool = False,
) -> tuple[list[tuple[str, ...]], list[str]]:
    """Rounds of all families of these scenarios; the table, and what was not good: names of rounds,
    those that the same source has failed before among them."""
    from paceline_chaos import ledger
    from paceline_chaos.processes.rounds import BED, FamilySum, Rounds, planned, table

    clock = SystemClock()
    end_ms = None if minutes is None else clock.monotonic_ms() + int(minutes * 60_000)
    sums: dict[str, FamilySum] = {}
    lines = ledger.read(path)
    bad = []
    for spec, _ in scenarios:
        for name, seeds in ledger.violated(
            lines, source=source, bed=BED, scenario=spec.name
        ).items():
            bad.append(f"{spec.name} before")
            say(f"{spec.name}: {name} was violated before, by the same source: seeds {seeds}")
    runner = Rounds(output=output, jobs=jobs, path=path, source=source, is_kept=is_kept)
    plan = planned(scenarios, lines, source=source, count=rounds)
    for came in runner.run(
        plan, is_over=lambda: end_ms is not None and clock.monotonic_ms() > end_ms
    ):
        sums.setdefault(came.round.family, FamilySum()).add(came)
        tell(came)
    if not runner.is_source_same:
        bad.append("the sources have changed meanwhile: not all is in the ledger")
    if not sums:
        bad.append("no round was run")
    return table(sums), bad + [name for one in sums.values() for name in one.bad]


def told(came: "Came") -> list[str]:
    """Lines for people: one for a good round, and what is wrong with a bad one."""
    one, figures = came.round, came.verdict["figures"]
    lines = [
        f"{one.family} {one.number}: {one.scenario.name} seed {one.seed}: "
        f"{'good' if came.is_good else 'BAD'}, gap {figures.get('gap_ms')} ms, "
        f"{came.verdict['counters'].get('acknowledged', 0)} acknowledged, "
        f"{came.took_ms / 1000:.1f} s"
    ]
    if came.is_good:
        return lines
    for found in came.verdict["violations"][:_SHOWN_VIOLATIONS_MAX]:
        lines.append(f"  {found['property']}: {found['sentence']}")
    return [*lines, f"  see {came.folder}; again: {one.replay}"]


@click.command("rounds")
@click.option("--family", type=click.Choice(list(FAMILIES)), default=None, help="Only this.")
@click.option("--scenario", default=None, help="Only this one of the family.")
@click.option("--rounds", "count", type=click.IntRange(1), help="Of each family.")
@click.option(
    "--minutes",
    type=FiniteRange(0, min_open=True),
    default=None,
    help="Begin no round after it.",
)
@click.option("--jobs", type=click.IntRange(1, 8), default=2, show_default=True)
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("chaos-runs"),
    show_default=True,
    help="Folder for what bad rounds leave.",
)
@click.option("--ledger", "path", type=click.Path(path_type=Path), default=None)
@click.option("--keep", is_flag=True, help="Keep histories, reports and logs of good rounds.")
@click.option("--json", "as_json", is_flag=True, help="JSON lines for programs.")
def command(
    *,
    family: str | None,
    scenario: str | None,
    count: int | None,
    minutes: float | None,
    jobs: int,
    output: Path,
    path: Path | None,
    keep: bool,
    as_json: bool,
) -> int:
    """Scenarios of all families in turn, each round with the next seed; exit code 1 if one is
    bad. Every round adds a line to the ledger under the hash of the sources, and the next
    rounds go on behind it. A bad one keeps its history, logs and report."""
    from paceline_chaos import ledger
    from paceline_chaos.processes.rounds import HEADINGS
    from paceline_chaos.processes.scenario.file import load_scenarios

    if count is None and minutes is None:
        raise BadRequestError("say --rounds or --minutes")
    path = path or ledger.LEDGER
    ledger.check(path)
    wanted = [
        pair
        for pair in load_scenarios(scenario or "all")
        if family is None or pair[0].family == family
    ]
    if not wanted:
        raise BadRequestError(f"no scenario {scenario!r} is of the family {family}")
    try:
        rows, bad = run_rounds(
            wanted,
            rounds=count,
            minutes=minutes,
            jobs=jobs,
            output=output,
            path=path,
            source=ledger.source_hash(),
            tell=lambda came: _tell(came, as_json=as_json),
            say=lambda line: click.echo(line, err=as_json),
            is_kept=keep,
        )
    except KeyboardInterrupt:
        click.echo(f"{said_of_interrupt(output)}; rounds that ended are in {path}", err=True)
        return EXIT_INTERRUPTED
    if not as_json:
        echo_table(HEADINGS, rows)
        if bad:
            click.echo(f"not good: {', '.join(bad)}")
    return 1 if bad else 0


def _tell(came: "Came", *, as_json: bool) -> None:
    if not as_json:
        click.echo("\n".join(told(came)))
        return
    document: dict[str, Any] = {
        "family": came.round.family,
        "scenario": came.round.scenario.name,
        "seed": came.round.seed,
        "took_ms": came.took_ms,
        **{key: came.verdict[key] for key in ("is_good", "violations", "figures")},
    }
    echo_json(document)
