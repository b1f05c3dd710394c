"""Numbers on the command line: what cannot be meant is refused at once, before anything begins."""

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import click
import pytest
from tests.unit.client.cli.conftest import run_command

from paceline.cli.local import local_cluster
from paceline.cli.main import command
from paceline.cli.options import FiniteRange
from paceline_broker.config import BrokerConfig
from paceline_controller.raft.members import VOTERS_MAX

NOBODY = "127.0.0.1:1"
DIGITS = "9" * 5000
"""More than Python turns into a number."""


def parameters(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Parameter]]:
    """Every parameter of every command below, by its command's words and its name."""
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        if isinstance(found, click.Group):
            yield from parameters(found, f"{path}{name} ")
        yield from ((f"{path}{name} {one.name}", one) for one in found.params)


def test_every_number_has_bounds() -> None:
    assert isinstance(command, click.Group)
    found = dict(parameters(command))
    kinds = {name: one.type for name, one in found.items()}

    assert {"up segment_size_bytes", "send level", "chaos failover rate"} <= set(kinds)
    unbounded = [
        name
        for name, kind in kinds.items()
        if (isinstance(kind, click.types.IntParamType) and getattr(kind, "min", None) is None)
        or (isinstance(kind, click.types.FloatParamType) and not isinstance(kind, FiniteRange))
    ]
    assert unbounded == []


def test_bounds_of_a_local_cluster_are_those_of_its_nodes() -> None:
    [segment] = [one for one in fields(BrokerConfig) if one.name == "segment_size_bytes"]

    assert segment.metadata["minimum"] == local_cluster.SEGMENT_SIZE_BYTES_MIN
    assert segment.metadata["maximum"] == local_cluster.SEGMENT_SIZE_BYTES_MAX
    assert local_cluster.CONTROLLERS_MAX == VOTERS_MAX


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["up", "--segment-size", "-5"], "'--segment-size': -5 is not in the range"),
        (["up", "--segment-size", "0"], "'--segment-size': 0 is not in the range"),
        (["up", "--segment-size", "9" * 30], "'--segment-size'"),
        (["up", "--segment-size", DIGITS], "'--segment-size'"),
        (["up", "--controllers", "0"], "'--controllers'"),
        (["up", "--controllers", "101"], "'--controllers'"),
        (["up", "--groups", "100000"], "'--groups'"),
        (["up", "--groups", "many"], "'--groups': 'many' is not a valid number or auto"),
        (["up", "--groups", "auto", "--brokers", "64", "--controllers", "2"], "odd number"),
        (["up", "--brokers", "1000"], "'--brokers'"),
        (["up", "--brokers", "13", "--groups", "5"], "65 processes: a machine takes 64"),
        (["bench", "--seconds", "nan"], "'--seconds'"),
        (["bench", "--inflight", "1,-1"], "--inflight '1,-1'"),
        (["chaos", "failover", "--rate", "nan"], "'--rate'"),
        (["chaos", "rounds", "--minutes", "inf"], "'--minutes'"),
        (["send", "t", "x", "--level", "-5"], "'--level'"),
        (["send", "t", "x", "--delay", f"{DIGITS}ms"], "is no delay"),
        (["send", "t", "x", "--at", DIGITS], "is no time"),
        (["message", "find", "t", "--from", DIGITS], "is no time"),
        (["message", "find", "t", "--to", "9" * 30], "is no time"),
        (["topic", "remap", "t", "0", "g2", "--generation", "9" * 30], "'--generation'"),
        (["cluster", "elect", "g1", "--to", "9" * 30], "'--to'"),
        (["cluster", "transfer", "g1", "--to", "9" * 30], "'--to'"),
        (["cluster", "clean", "g1", "--replica", "9" * 30], "'--replica'"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else None,
)
def test_numbers_that_cannot_be_meant_are_refused(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    outcome = run_command(*arguments, bootstrap=NOBODY)

    assert outcome.exit_code == 2, outcome.stderr
    assert said in outcome.stderr
    assert not list(tmp_path.iterdir())
