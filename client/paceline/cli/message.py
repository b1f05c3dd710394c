"""`paceline message`: find single messages, and who has consumed them."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from paceline.cli.asking import ask
from paceline.cli.needs import Group
from paceline.cli.options import Connect, cluster_options, unix_ms_of
from paceline.cli.output import echo_json, echo_table, shown

if TYPE_CHECKING:
    from paceline.admin.client import AdminClient

LIMIT_DEFAULT = 64
_BODY_SHOWN = 40


@click.group("message", cls=Group)
def command() -> None:
    """Find messages by id, key or time, and who has consumed them."""


@command.command("show")
@click.argument("message_id", metavar="ID")
@cluster_options
def show(message_id: str, connect: Connect, as_json: bool) -> None:
    """Show the message of an offset message id, as `paceline message find` gives it."""
    row = ask(connect, lambda admin: admin.messages.get(message_id))
    if as_json:
        echo_json(row)
        return
    for name in sorted(row):
        click.echo(f"{name}: {row[name] if name != 'body' else shown(row[name].encode())}")


@command.command("find")
@click.argument("topic")
@click.option("--key", help="Only messages with this key.")
@click.option("--unique-key", help="The message with this unique key, and what was made of it.")
@click.option(
    "--from", "begin", metavar="TIME", help="Stored then or later (ISO 8601, or unix ms)."
)
@click.option("--to", "end", metavar="TIME", help="Stored then or before.")
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=LIMIT_DEFAULT,
    show_default=True,
    help="At most so many.",
)
@cluster_options
def find(
    topic: str,
    key: str | None,
    unique_key: str | None,
    begin: str | None,
    end: str | None,
    limit: int,
    connect: Connect,
    as_json: bool,
) -> None:
    """Find messages of TOPIC; by queue and offset."""
    asked: dict[str, Any] = {"key": key, "unique_key": unique_key}
    asked |= {"begin_unix_ms": unix_ms_of(begin, "--from"), "end_unix_ms": unix_ms_of(end, "--to")}
    rows = ask(connect, lambda admin: _found(admin, topic, asked, limit))
    if as_json:
        for row in rows:
            echo_json(row)
    elif rows:
        head = ("ID", "QUEUE", "OFFSET", "STORED (UTC)", "KEY", "BODY")
        echo_table(head, [_cells(row) for row in rows])
    else:
        click.echo("no such message", err=True)


@command.command("track")
@click.argument("message_id", metavar="ID")
@cluster_options
def track(message_id: str, connect: Connect, as_json: bool) -> None:
    """Say of each consumer group whether it has consumed a message."""
    rows = ask(connect, lambda admin: admin.messages.track(message_id))
    if as_json:
        for row in rows:
            echo_json(row)
    elif rows:
        cells = [(row["group"], row["status"], str(row["offset"])) for row in rows]
        echo_table(("GROUP", "STATUS", "COMMITTED"), cells)
    else:
        click.echo("no consumer group has committed on its queue", err=True)


async def _found(
    admin: "AdminClient", topic: str, asked: dict[str, Any], limit: int
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    async for row in admin.messages.find(topic, **asked):
        found.append(row)
        if len(found) == limit:
            break
    return found


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    stored = datetime.fromtimestamp(row["store_unix_ms"] / 1000, UTC)
    body = shown(row["body"].encode()) if "body" in row else f"base64 {row['body_base64']}"
    return (
        row["message_id"],
        f"{row['group']}/{row['queue']}",
        str(row["offset"]),
        stored.isoformat(sep=" ", timespec="milliseconds")[:-6],
        row["key"] or "-",
        body if len(body) <= _BODY_SHOWN else body[: _BODY_SHOWN - 1] + "…",
    )
