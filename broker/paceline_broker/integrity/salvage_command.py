"""`paceline log check|give-up`: checks the log of a stopped broker, and discards its damage.

To discard is the last resort. It works on the data folder, without a cluster; the folder's lock
keeps it away from a running broker.
"""

import sys

import click
import orjson

from paceline.errors import CorruptLogError
from paceline.platform.disk_real import RealDisk
from paceline.platform.runtime import SystemRandom
from paceline_broker.integrity.salvage import LogState, StoppedStore

_as_json = click.option("--json", "as_json", is_flag=True, help="JSON lines for programs.")
_folder = click.argument("data_dir", type=click.Path(exists=True, file_okay=False))


@click.group("log")
def command() -> None:
    """Check the log of a stopped broker; discard damaged records."""


@command.command("check")
@_folder
@_as_json
def check(data_dir: str, as_json: bool) -> None:
    """Say what the broker would find at its start: DATA_DIR is its data folder.

    A torn tail is cut as at a start. Exits with 1 when the log is damaged.
    """
    store = StoppedStore(RealDisk(), data_dir)
    try:
        state = store.state
    finally:
        store.close()
    if as_json:
        _echo(state, given_up=False)
    else:
        _show(state)
    if state.damage is not None:
        raise click.exceptions.Exit(1)


@command.command("give-up")
@_folder
@click.option("--yes", is_flag=True, help="Do not ask.")
@_as_json
def give_up(data_dir: str, yes: bool, as_json: bool) -> None:
    """Cut the log in DATA_DIR where its damage begins: ALL THAT FOLLOWS IS LOST, intact or not.

    Only when no other member has those bytes, or ever will: a damaged broker mends itself from any.
    Afterwards the controllers take the store for another one; with nobody else left it leads only
    by `paceline cluster elect GROUP --to ID --unclean`.
    """
    store = StoppedStore(RealDisk(), data_dir)
    try:
        state = store.state
        if state.damage is None:
            raise CorruptLogError(f"the log in {data_dir} is whole: there is nothing to give up")
        if not as_json:
            _show(state)
        _ensure_meant(state, yes)
        store.give_up(SystemRandom())
    finally:
        store.close()
    if as_json:
        _echo(state, given_up=True)
        return
    who = "ID" if state.replica_id is None else state.replica_id
    click.echo(f"given up: the log ends at {state.end:,}. Start the broker; if nobody else leads:")
    click.echo(f"  paceline cluster elect {state.group} --to {who} --unclean")


def _ensure_meant(state: LogState, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("this cannot be undone: say --yes")
    click.confirm(f"Lose everything from {state.end:,} on?", abort=True)


def _show(state: LogState) -> None:
    who = "not registered yet" if state.replica_id is None else f"replica {state.replica_id}"
    click.echo(f"group {state.group}, {who}: log from {state.start:,} to {state.end:,}")
    if state.damage is None:
        click.echo("no damage found")
        return
    click.echo(f"damaged at {state.end:,}: {state.damage}")
    click.echo(
        f"{state.durable - state.end:,} bytes from there on were on this disk once, of which"
        f" {max(0, state.confirm - state.end):,} at least were acknowledged"
    )


def _echo(state: LogState, *, given_up: bool) -> None:
    click.echo(orjson.dumps({**state.to_json(), "given_up": given_up}))
