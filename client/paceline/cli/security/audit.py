"""`paceline audit`: who has done, or was refused, what."""

from datetime import UTC, datetime
from typing import Any

import click

from paceline.cli.asking import ask
from paceline.cli.needs import Group
from paceline.cli.options import Connect, cluster_options, unix_ms_of
from paceline.cli.output import echo_json, echo_table, shown

LIMIT_DEFAULT = 100


@click.group("audit", cls=Group)
def command() -> None:
    """Search who has done, or was refused, what."""


@command.command("search")
@click.option("--user", help="Of this user; anonymous: of whom nobody knows.")
@click.option("--action", help="A right (Pub), or the name of a call (put_user).")
@click.option("--resource", help="Topic:NAME, or what a call names (user=NAME); NAME* is a prefix.")
@click.option("--decision", type=click.Choice(["Allow", "Deny"]), help="What rights said.")
@click.option("--source", help="From this address.")
@click.option("--request-id", help="The request that an error or an answer named so.")
@click.option("--since", metavar="TIME", help="Then or later (ISO 8601, or unix ms).")
@click.option("--until", metavar="TIME", help="Then or before.")
@click.option(
    "--limit",
    type=click.IntRange(1, 100_000),
    default=LIMIT_DEFAULT,
    show_default=True,
    help="The latest so many.",
)
@cluster_options
def search(
    since: str | None,
    until: str | None,
    limit: int,
    connect: Connect,
    as_json: bool,
    **wanted: str | None,
) -> None:
    """Find records of the audit, by time."""
    since_ms, until_ms = unix_ms_of(since, "--since"), unix_ms_of(until, "--until")
    rows = ask(
        connect,
        lambda admin: admin.audit.search(
            since_unix_ms=since_ms, until_unix_ms=until_ms, limit=limit, **wanted
        ),
    )
    if as_json:
        for row in rows:
            echo_json(row)
    elif rows:
        head = ("TIME (UTC)", "USER", "SOURCE", "CALL", "ON", "DECISION", "OUTCOME", "REQUEST")
        echo_table(head, [_cells(row) for row in rows])
    else:
        click.echo("no such record", err=True)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    at = datetime.fromtimestamp(row["unix_ms"] / 1000, UTC)
    cells = (
        row["user"],
        row["source"],
        row["call"],
        row["about"] or row["resource"],
        row["decision"],
        row["outcome"],
        row["request_id"],
    )
    time = at.isoformat(sep=" ", timespec="milliseconds")[:-6]
    return (time, *(shown(cell.encode()) or "-" for cell in cells))
