"""The command `paceline chaos busy`; what it needs is imported when it is called."""

import shutil
import tempfile
from pathlib import Path

import click

from paceline.cli.options import FiniteRange
from paceline.cli.output import echo_json
from paceline_chaos.commands import EXIT_BAD, EXIT_INTERRUPTED
from paceline_chaos.processes.leftovers import said_of_interrupt


@click.command("busy")
@click.option(
    "--seconds", type=FiniteRange(1, 86_400), default=600.0, show_default=True, help="Of load."
)
@click.option(
    "--loops",
    type=click.IntRange(0, 256),
    default=8,
    show_default=True,
    help="Processes that do nothing but take a core.",
)
@click.option("--json", "as_json", is_flag=True, help="The result as one JSON line.")
def command(seconds: float, loops: int, *, as_json: bool) -> int:
    """Run a cluster on a busy machine with slow disks, and see whether it stays calm.

    Exit code 1 if a goal is missed: at most 2 changes of leader, no master replaced, every admin
    call within 5 s, no failed send, and kill -9 of the leader noticed within 2 s.
    """
    from paceline_chaos.processes.busy import measure, told

    folder = Path(tempfile.mkdtemp(prefix="paceline-busy-"))
    try:
        figures = measure(seconds, folder, loops=loops)
    except KeyboardInterrupt:
        click.echo(said_of_interrupt(folder), err=True)
        return EXIT_INTERRUPTED
    if as_json:
        echo_json(figures.to_json())
    else:
        click.echo(told(figures))
    if figures.is_met:
        shutil.rmtree(folder)
        return 0
    click.echo(f"the nodes' logs are in {folder}/data/logs", err=True)
    return EXIT_BAD
