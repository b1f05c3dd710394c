"""The process in which one scenario runs: a namespace of its own if it needs one, then the run.

    python -m paceline_chaos.processes --scenario FILE --seed N --folder FOLDER

With `--isolated` in a namespace always, with `--secure` with TLS, users and rights.

Started by `paceline chaos run` (cli.py), forked by `paceline chaos rounds` (rounds.py). Writes JSON
lines to stdout: progress, and at the end `{"event": "verdict", ...}`. SIGTERM and Ctrl-C end every
node that it started. Exit code 0: the verdict is good; 1: it is not; 2: the scenario cannot be run;
130: it was interrupted.
"""

import asyncio
import contextlib
import gc
import signal
import sys
from pathlib import Path
from typing import Any

import click
import orjson

from paceline.errors import PacelineError, to_problem
from paceline.platform.node_process import raise_file_limit
from paceline.platform.telemetry import Node, start_logging
from paceline_chaos.commands import EXIT_BAD, EXIT_INTERRUPTED, EXIT_REFUSED
from paceline_chaos.processes import network
from paceline_chaos.processes.node.fork_server import ForkServer, end_with_parent
from paceline_chaos.processes.run import Result, Run, check_permitted
from paceline_chaos.processes.scenario.file import read_scenario
from paceline_chaos.report.write import write_report


def say(event: str, **fields: Any) -> None:
    """One JSON line for the parent."""
    click.echo(orjson.dumps({"event": event, **fields}, default=str))
    sys.stdout.flush()


@click.command("paceline-chaos-run")
@click.option("--scenario", type=click.Path(path_type=Path), required=True)
@click.option("--seed", type=click.IntRange(0), required=True)
@click.option("--folder", type=click.Path(path_type=Path), required=True)
@click.option("--isolated", "is_isolated", is_flag=True, help="In a network namespace always.")
@click.option("--secure", "is_secure", is_flag=True, help="With TLS, users and rights.")
def command(scenario: Path, seed: int, folder: Path, *, is_isolated: bool, is_secure: bool) -> None:
    """Run one scenario once."""
    spec = read_scenario(scenario)
    if is_secure:
        spec = spec.secured()
    check_permitted(spec)
    is_isolated = is_isolated or spec.needs_network
    if is_isolated:
        network.enter()
    raise_file_limit()
    server = ForkServer()
    # Entries of a history live to its end: going through them for cycles stops the clients.
    gc.disable()
    run = Run(spec, seed, folder.resolve(), server, say, is_isolated=is_isolated)
    with (folder / "clients.log").open("w") as log:
        start_logging(Node(name="harness"), stream=log)
        result = asyncio.run(_interruptible(run))
    server.close()
    if result is None:
        sys.exit(EXIT_INTERRUPTED)
    write_report(run.history, result.verdict, folder / "report.html")
    write_result(result, folder)
    sys.exit(0 if result.verdict.is_good else EXIT_BAD)


async def _interruptible(run: Run) -> Result | None:
    """The result, or None after SIGINT or SIGTERM: then every node has ended."""
    task = asyncio.get_running_loop().create_task(run.run())  # noqa: TID251 - its result is needed
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        return await task
    return None


def write_result(result: Result, folder: Path) -> None:
    """The verdict as a file and as the last line of the output."""
    document = {
        "scenario": result.scenario,
        "seed": result.seed,
        "is_good": result.verdict.is_good,
        "violations": [_plain(one) for one in result.verdict.violations],
        "observed": [_plain(one) for one in result.observed],
        "given_up": [_plain(one) for one in result.given_up],
        "counters": dict(result.verdict.counters),
        "figures": result.figures,
    }
    (folder / "verdict.json").write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    say("verdict", **document)


def _plain(violation: Any) -> dict[str, Any]:
    return {
        "property": violation.property,
        "sentence": violation.sentence,
        "proof": list(violation.proof),
    }


def main(arguments: list[str]) -> int:
    """Entry of the process; its exit code."""
    end_with_parent()
    try:
        command.main(arguments, standalone_mode=False)
    except PacelineError as error:
        say("failed", problem=to_problem(error))
        return EXIT_REFUSED
    except click.ClickException as error:
        say("failed", problem={"code": "BAD_REQUEST", "detail": error.format_message()})
        return EXIT_REFUSED
    except SystemExit as wanted:
        return wanted.code if isinstance(wanted.code, int) else EXIT_BAD
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
