"""`paceline quota`: what users, their clients, namespaces and topics may take."""

from typing import Any

import click

from paceline.cli.asking import ask
from paceline.cli.needs import Group
from paceline.cli.options import Connect, cluster_options
from paceline.cli.output import echo_json, echo_table


@click.group("quota", cls=Group)
def command() -> None:
    """Show, set and delete quotas of users, clients, namespaces and topics."""


@command.command("list")
@cluster_options
def list_(connect: Connect, as_json: bool) -> None:
    """List the quotas by subject."""
    rows = ask(connect, lambda admin: admin.quotas.all())
    if as_json:
        for row in rows:
            echo_json(row)
    elif rows:
        echo_table(("SUBJECT", "LIMITS"), [(row["subject"], _limits(row["quota"])) for row in rows])
    else:
        click.echo("no quotas; `paceline quota set User:NAME` sets one", err=True)


def _limits(quota: dict[str, int]) -> str:
    return ", ".join(f"{name} {quota[name]}" for name in quota)


_LIMIT = click.IntRange(1)


@command.command("set")
@click.argument("subject")
@click.option("--bytes-in", "bytes_in_per_s", type=_LIMIT, help="Bytes a second to each node.")
@click.option("--bytes-out", "bytes_out_per_s", type=_LIMIT, help="Bytes a second from each node.")
@click.option("--requests", "requests_per_s", type=_LIMIT, help="Requests a second to each node.")
@click.option("--connections", type=_LIMIT, help="Open connections to each node.")
@click.option(
    "--creations", "creations_per_hour", type=_LIMIT, help="New topics and groups an hour."
)
@click.option("--topics", type=_LIMIT, help="Topics of a namespace.")
@click.option("--groups", type=_LIMIT, help="Consumer groups of a namespace.")
@click.option(
    "--storage",
    "storage_bytes",
    type=_LIMIT,
    help="Bytes that a namespace or topic keeps in each broker group.",
)
@cluster_options
def set_(subject: str, connect: Connect, as_json: bool, **limits: Any) -> None:
    """Set all limits of SUBJECT; what is not given is not limited.

    SUBJECT is User:NAME, User:NAME/Client:ID, Namespace:NAME or Topic:NAME. User:* is each user
    that has no quota of its own, User:NAME/Client:* likewise each client.
    """
    from paceline.wire.users import Quota

    ask(connect, lambda admin: admin.quotas.set(subject, Quota(**limits)))
    _done(as_json, f"quota of {subject} set", subject)


@command.command("delete")
@click.argument("subject")
@cluster_options
def delete(subject: str, connect: Connect, as_json: bool) -> None:
    """Delete the quota of SUBJECT: it is not limited any more."""
    ask(connect, lambda admin: admin.quotas.delete(subject))
    _done(as_json, f"quota of {subject} deleted", subject)


def _done(as_json: bool, sentence: str, subject: str) -> None:
    if as_json:
        echo_json({"ok": True, "subject": subject})
    else:
        click.echo(sentence)
