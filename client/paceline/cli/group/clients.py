"""`paceline client list`: which producers and consumers are connected.

What RocketMQ's producerConnection and consumerConnection show.
"""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from paceline.cli.asking import ask
from paceline.cli.needs import Group
from paceline.cli.options import Connect, cluster_options
from paceline.cli.output import echo_json, echo_table, subscribed

if TYPE_CHECKING:
    from paceline.wire.clients import Kind, Row


@click.group("client", cls=Group)
def command() -> None:
    """Show which producers and consumers are connected."""


@command.command("list")
@click.option("--group", help="Only of this producer or consumer group.")
@click.option("--topic", help="Only those that send to, or subscribe to, this topic.")
@click.option("--producers", "kind", flag_value="producer", help="Only producers.")
@click.option("--consumers", "kind", flag_value="consumer", help="Only consumers.")
@cluster_options
def list_clients(
    group: str | None, topic: str | None, kind: str | None, connect: Connect, as_json: bool
) -> None:
    """List the clients that are connected to the masters, and subscriptions that do not agree."""
    chosen: Kind | None = "producer" if kind == "producer" else "consumer" if kind else None
    found = ask(connect, lambda admin: admin.clients.all(group=group, topic=topic, kind=chosen))
    if as_json:
        for row in found.clients:
            echo_json({**row, "conflicts": _conflicts_of(row, found.conflicts)})
    else:
        table = [
            (
                row["kind"],
                row["group"],
                row["client_id"],
                row["address"] or "-",
                f"{row['language'].lower()} {row['version']}",
                row.get("door", "-"),
                f"{row['message_model']}/{row['mode']}" if "mode" in row else "-",
                _time(row["since_unix_ms"]),
                subscribed(row) or "-",
            )
            for row in found.clients
        ]
        head = ("KIND", "GROUP", "CLIENT", "ADDRESS", "VERSION", "DOOR", "MODEL", "SINCE", "TOPICS")
        echo_table(head, table)
        if not table:
            click.echo("no such client is connected", err=True)
    for name, topics in found.conflicts.items():
        different = ", ".join(topics)
        click.echo(f"not all members of {name} subscribe to {different} in the same way", err=True)
    for name in found.unreachable:
        click.echo(f"no broker of {name} answered: its clients may be missing", err=True)


# -- inside ---------------------------------------------------------------------------------------


def _conflicts_of(row: "Row", conflicts: dict[str, list[str]]) -> list[str]:
    return conflicts.get(row["group"], []) if row["kind"] == "consumer" else []


def _time(unix_ms: int) -> str:
    return datetime.fromtimestamp(unix_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
