"""`paceline cluster pins list|add|remove`: keep retention away from old messages, for a while."""

from typing import TYPE_CHECKING

import click

from paceline.cli.asking import ask
from paceline.cli.needs import Group
from paceline.cli.options import Connect, cluster_options, find_topic, open_cluster, run_async
from paceline.cli.output import echo_json, echo_table, utc
from paceline.errors import BadRequestError, NotFoundError
from paceline.wire.pins import LEASE_MS_MAX, LEASE_MS_MIN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paceline.net.cluster import Cluster
    from paceline.queues import QueueName
    from paceline.types import GroupName
    from paceline.wire.pins import PinsOfGroup, PinView

FIRST = "first"
LEASE_S_DEFAULT = 3600


@click.group("pins", cls=Group)
def command() -> None:
    """Keep retention away from old messages for a while."""


@command.command("list")
@click.argument("group", required=False)
@cluster_options
def list_pins(group: str | None, connect: Connect, as_json: bool) -> None:
    """Show who holds retention back, and where, in broker GROUP or in every one."""
    for name, found in sorted(ask(connect, lambda admin: admin.pins.all(group)).items()):
        if as_json:
            echo_json({"group": name, **found.to_json()})
        else:
            _show(name, found)


@command.command("add")
@click.argument("owner")
@click.option("--group", help="Broker group; else every one that is concerned.")
@click.option("--topic", help="From this topic's queues on; else all that is kept.")
@click.option("--queue", metavar="[GROUP/]QUEUE", help="Only this queue of --topic.")
@click.option(
    "--offset",
    default=FIRST,
    show_default=True,
    metavar="N|first",
    help="From which message on: N needs --queue; first = the first kept one.",
)
@click.option(
    "--lease-s",
    type=click.IntRange(LEASE_MS_MIN // 1000, LEASE_MS_MAX // 1000),
    default=LEASE_S_DEFAULT,
    show_default=True,
    help="Seconds until it ends by itself; at most 7 days. Add it again to renew it.",
)
@cluster_options
def add(
    owner: str,
    group: str | None,
    topic: str | None,
    queue: str | None,
    offset: str,
    lease_s: int,
    connect: Connect,
    as_json: bool,
) -> None:
    """Pin messages for OWNER, any name: retention deletes none of them while the lease runs.

    An owner has one pin in each broker group: adding it again renews or moves it.
    """
    from paceline.cli.pull import check_queue
    from paceline.wire.names import check_name

    check_name(owner, "owner")
    number = _offset(offset)
    if topic is None and (queue is not None or number is not None):
        raise click.UsageError("--queue and --offset need --topic")
    if number is not None and queue is None:
        raise click.UsageError("--offset N needs --queue")
    if queue is not None:
        check_queue(queue)
    pinned = run_async(_add(connect, owner, group, topic, queue, number, lease_s * 1000))
    for name, pin in sorted(pinned.items()):
        if as_json:
            echo_json({"group": name, **pin.to_json()})
        else:
            click.echo(
                f"group {name}: {owner} keeps everything from position {pin.position:,} on until"
                f" {utc(pin.expires_unix_ms)} UTC"
            )


@command.command("remove")
@click.argument("owner")
@click.option("--group", help="Only in this broker group.")
@cluster_options
def remove(owner: str, group: str | None, connect: Connect, as_json: bool) -> None:
    """Give the pins of OWNER up."""
    groups = sorted(ask(connect, lambda admin: admin.pins.remove(owner, group=group)))
    if not groups:
        where = "" if group is None else f" in group {group}"
        raise NotFoundError(
            f"{owner} has no pin{where}: none was set, or its lease has ended", owner=owner
        )
    if as_json:
        echo_json({"owner": owner, "groups": groups})
    else:
        click.echo(f"{owner} has no pin any more in group {', '.join(groups)}")


# -- inside ---------------------------------------------------------------------------------------


def _offset(text: str) -> int | None:
    if text == FIRST:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise click.UsageError(f"--offset {text!r} is no number, and not first")
    return int(text)


async def _add(
    connect: Connect,
    owner: str,
    group: str | None,
    topic: str | None,
    queue: str | None,
    offset: int | None,
    lease_ms: int,
) -> "dict[GroupName, PinView]":
    from paceline.admin.client import AdminClient

    async with open_cluster(connect) as cluster, AdminClient(cluster) as admin:
        queues = None
        if topic is not None:
            queues = await _queues(cluster, group, topic, queue, offset)
        return await admin.pins.add(owner, lease_ms=lease_ms, queues=queues, group=group)


async def _queues(
    cluster: "Cluster", group: str | None, topic: str, queue: str | None, offset: int | None
) -> "Mapping[QueueName, int | None]":
    from paceline.cli.pull import choose_queues

    found = choose_queues(await find_topic(cluster, topic), queue)
    names = [name for name in found if group in (None, name.group)]
    if not names:
        which = topic if queue is None else f"{topic} {queue}"
        raise BadRequestError(f"{which} has no queue in broker group {group}", field="group")
    return dict.fromkeys(names, offset)


def _show(group: str, found: "PinsOfGroup") -> None:
    count = len(found.pins)
    what = "no pins" if not count else "1 pin" if count == 1 else f"{count} pins"
    click.echo(f"group {group}: {what}, the log begins at {found.log_start:,}")
    if found.pins:
        rows: list[tuple[str, ...]] = [
            (pin.owner, f"{pin.position:,}", utc(pin.expires_unix_ms), f"{pin.lease_ms // 1000}")
            for pin in found.pins
        ]
        echo_table(("OWNER", "KEEPS FROM", "ENDS (UTC)", "LEASE S"), rows)
