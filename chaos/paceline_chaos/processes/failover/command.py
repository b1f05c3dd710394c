"""The command `paceline chaos failover`; what it needs is imported when it is called."""

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click
import orjson

from paceline.cli.options import FiniteRange
from paceline_chaos.processes.leftovers import make_folder

if TYPE_CHECKING:
    from paceline_chaos.report.failover_figures import FailoverFigures
    from paceline_chaos.verdict import Verdict


@click.command("failover")
@click.option("--kills", default=100, show_default=True, type=click.IntRange(1))
@click.option("--clients", default=8, show_default=True, type=click.IntRange(1, 256))
@click.option(
    "--rate",
    default=500.0,
    show_default=True,
    type=FiniteRange(1, 100_000),
    help="Messages a second, of all clients.",
)
@click.option("--brokers", default=3, show_default=True, type=click.IntRange(2, 7))
@click.option("--durability", default="fsync", type=click.Choice(["fsync", "memory"]))
@click.option(
    "--report",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for failover.html, timeline.html, failover.json and history.jsonl.",
)
@click.option("--json", "as_json", is_flag=True, help="The result as one JSON line.")
def command(
    kills: int,
    clients: int,
    rate: float,
    brokers: int,
    durability: str,
    report: Path | None,
    as_json: bool,
) -> int:
    """Kill the master again and again, and measure how long clients wait.

    Exit code 1 if a goal is missed (median 300 ms, p99 800 ms, none above 1500 ms) or a
    promise broken.
    """
    from paceline_chaos.history import codec
    from paceline_chaos.processes.failover.failover import FailoverPlan, measure
    from paceline_chaos.report.write import write_failover_report, write_report

    plan = FailoverPlan(
        kills=kills, clients=clients, rate=rate, brokers=brokers, durability=durability
    )
    if report is not None:
        make_folder(report)
    # Left behind when something goes wrong: the nodes' logs are all there is to understand it.
    folder = Path(tempfile.mkdtemp(prefix="paceline-failover-"))
    failover = measure(plan, folder)
    figures, verdict = failover.judged()
    if verdict.is_good:
        shutil.rmtree(folder)
    document = {**figures.to_json(), "violations": len(verdict.violations)}
    if report is not None:
        write_failover_report(figures, report / "failover.html")
        write_report(failover.history, verdict, report / "timeline.html")
        (report / "failover.json").write_bytes(orjson.dumps(document))
        codec.save(failover.history, report / "history.jsonl")
    click.echo(orjson.dumps(document).decode() if as_json else _told(figures, verdict))
    return 0 if figures.is_met and verdict.is_good else 1


def _told(figures: "FailoverFigures", verdict: "Verdict") -> str:
    gaps, whole, back = figures.gaps, figures.all_gaps, figures.return_gaps
    stages = ", ".join(f"{name[:-3]} {value} ms" for name, value in figures.stage_medians().items())
    return (
        f"{len(figures.stages)} kills, {gaps.count} samples, "
        f"{len(figures.samples) - gaps.count} discarded\n"
        f"longest gap of a client: median {gaps.median:.0f} ms, p95 {gaps.p95:.0f} ms, "
        f"p99 {gaps.p99:.0f} ms, max {gaps.max:.0f} ms\n"
        f"with the discarded: p99 {whole.p99:.0f} ms, max {whole.max:.0f} ms\n"
        f"while the dead one came back: median {back.median:.0f} ms, p99 {back.p99:.0f} ms, "
        f"max {back.max:.0f} ms\n"
        f"median moments after the kill: {stages}\n"
        f"goals {'met' if figures.is_met else 'NOT met'}, {len(verdict.violations)} violations"
    )
