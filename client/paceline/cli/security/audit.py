"""`paceline audit`: who has done, or was refused, what."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
from click.exceptions import Exit

from paceline.cli.asking import ask
from paceline.cli.needs import Group
from paceline.cli.options import Connect, cluster_options, unix_ms_of
from paceline.cli.output import echo_json, echo_table, shown

if TYPE_CHECKING:
    from paceline.admin.audit import AuditRows
    from paceline.admin.client import AdminClient

LIMIT_DEFAULT = 100
_HEAD = ("TIME (UTC)", "USER", "SOURCE", "CALL", "ON", "DECISION", "OUTCOME", "REQUEST")
_WIDTHS = (23, 12, 15, 20, 24, 8, 14, 0)
"""Of the columns with --follow, where nobody knows what comes."""


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
    help=f"The latest so many.  [default: {LIMIT_DEFAULT}]",
)
@click.option("--follow", is_flag=True, help="Show what comes from now on, until Ctrl-C.")
@cluster_options
def search(
    since: str | None,
    until: str | None,
    limit: int | None,
    follow: bool,
    connect: Connect,
    as_json: bool,
    **wanted: str | None,
) -> None:
    """Find records of the audit, by time."""
    since_ms, until_ms = unix_ms_of(since, "--since"), unix_ms_of(until, "--until")
    if follow:
        if until is not None or limit is not None:
            raise click.UsageError("--follow has no end: not with --until or --limit")
        ask(connect, lambda admin: _follow(admin, since_ms, wanted, as_json=as_json))
        return
    rows = ask(
        connect,
        lambda admin: admin.audit.search(
            since_unix_ms=since_ms,
            until_unix_ms=until_ms,
            limit=LIMIT_DEFAULT if limit is None else limit,
            **wanted,
        ),
    )
    if as_json:
        for row in rows:
            echo_json(row)
    elif rows:
        echo_table(_HEAD, [_cells(row) for row in rows])
    else:
        click.echo("no such record", err=True)
    _tell_what_is_missing(rows, as_json=as_json)


async def _follow(
    admin: "AdminClient", since_ms: int | None, wanted: dict[str, str | None], *, as_json: bool
) -> None:
    rows = admin.audit.follow(since_unix_ms=since_ms, **wanted)
    if not as_json:
        _echo_line(_HEAD)
    async for row in rows:
        if as_json:
            echo_json(row)
        else:
            _echo_line(_cells(row))


def _echo_line(cells: Sequence[str]) -> None:
    padded = (cell.ljust(width) for cell, width in zip(cells, _WIDTHS, strict=True))
    click.echo("  ".join(padded).rstrip())


def _tell_what_is_missing(rows: "AuditRows", *, as_json: bool) -> None:
    """Exits with 1 if a broker group was not looked through."""
    stale = sorted(rows.maybe_stale)
    if as_json and (rows.missing or stale):
        echo_json({"missing": dict(rows.missing), "maybe_stale": stale})
    for group in stale:
        click.echo(
            f"paceline: the master of broker group {group} did not answer, another replica did:"
            " the latest records may be missing",
            err=True,
        )
    for group, why in sorted(rows.missing.items()):
        click.echo(
            f"paceline: no broker of group {group} answers: records that are there are missing"
            f" ({why}); see `paceline cluster status`, and search again",
            err=True,
        )
    if rows.missing:
        raise Exit(1)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    at = datetime.fromtimestamp(row["unix_ms"] / 1000, UTC)
    cells = (
        row["user"],
        row["source"],
        row["call"],
        row["about"] or row["resource"],
        row["decision"],
        row["outcome"] if row["times"] == 1 else f"{row['outcome']} x{row['times']}",
        row["request_id"],
    )
    time = at.isoformat(sep=" ", timespec="milliseconds")[:-6]
    return (time, *(shown(cell.encode()) or "-" for cell in cells))
