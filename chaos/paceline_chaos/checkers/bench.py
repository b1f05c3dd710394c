"""How long it takes to judge: `python -m paceline_chaos.checkers.bench --operations 1000000`.

Makes a good history of so many operations (mostly sends and pulls), writes and reads it, judges it,
and says the processor seconds of each step and of each checker. The goal is 10^6 in a minute.
"""

import os
import tempfile
from pathlib import Path

import click

from paceline_chaos.checkers import ALL, judge
from paceline_chaos.checkers.evidence.evidence import Evidence
from paceline_chaos.checkers.sample import Sample
from paceline_chaos.history import codec
from paceline_chaos.history.model import Operation

_OPERATIONS_PER_STEP = 1.8
_SHOWN_S = 0.1


def cpu_s() -> float:
    """Processor time of this process: other work on the machine does not count."""
    times = os.times()
    return times.user + times.system


@click.command()
@click.option("--operations", type=click.IntRange(1), default=1_000_000, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True)
@click.option("--each", is_flag=True, help="Time every checker by itself, too.")
def main(operations: int, seed: int, each: bool) -> None:
    """Measure reading and judging a history."""
    made = Sample(seed, queues=8).run(int(operations / _OPERATIONS_PER_STEP))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.jsonl"
        codec.save(made, path)
        del made
        start = cpu_s()
        history = codec.load(path)
        size_mb = path.stat().st_size / 1e6
    read = cpu_s()
    count = sum(isinstance(entry, Operation) for entry in history.entries)
    click.echo(f"{count} operations, {size_mb:.0f} MB: read in {read - start:.1f} s")
    verdict = judge(history)
    click.echo(f"judged in {cpu_s() - read:.1f} s, {len(verdict.violations)} violations")
    seen = verdict.counters
    click.echo(
        f"{len(history.entries)} entries, {seen['acknowledged']} sends acknowledged, "
        f"{seen['messages_read']} messages read, {seen['delivered']} delivered"
    )
    if each:
        evidence = Evidence(history)
        for name, checker in ALL.items():
            start = cpu_s()
            checker(evidence)
            if cpu_s() - start >= _SHOWN_S:
                click.echo(f"  {name:6} {cpu_s() - start:6.1f} s")


if __name__ == "__main__":
    main()
