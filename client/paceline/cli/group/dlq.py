"""`paceline dlq`: dead letters of a consumer group."""

from typing import TYPE_CHECKING, Any

import click

from paceline.cli.asking import ask
from paceline.cli.needs import Group
from paceline.cli.options import Connect, cluster_options
from paceline.cli.output import echo_json, echo_table, utc
from paceline.errors import PacelineError

if TYPE_CHECKING:
    from paceline.admin.client import AdminClient
    from paceline.admin.dead_letters import DeadLetter, Resent
    from paceline.message import ReceivedMessage

LIMIT_DEFAULT = 20
LIMIT_MAX = 10_000
_ALL_MAX = 1_000_000
_BODY_SHOWN = 40


@click.group("dlq", cls=Group)
def command() -> None:
    """List, show, resend dead letters of a consumer group."""


@command.command("list")
@click.argument("group")
@click.option(
    "--limit",
    type=click.IntRange(1, LIMIT_MAX),
    default=LIMIT_DEFAULT,
    show_default=True,
    help="At most so many.",
)
@click.option("--all", "is_all", is_flag=True, help="Purged ones as well.")
@cluster_options
def list_(group: str, limit: int, is_all: bool, connect: Connect, as_json: bool) -> None:
    """List the messages that consumer GROUP has given up."""
    letters = ask(connect, lambda admin: admin.dead_letters.all(group, limit=limit, is_all=is_all))
    if as_json:
        for letter in letters:
            echo_json(_json(letter))
    elif letters:
        echo_table(("ID", "TOPIC", "DIED (UTC)", "RETRIES", "BODY"), [_row(one) for one in letters])
    else:
        click.echo(f"group {group} has no dead letters", err=True)


@command.command("show")
@click.argument("group")
@click.argument("letter", metavar="ID")
@cluster_options
def show(group: str, letter: str, connect: Connect, as_json: bool) -> None:
    """Show one dead letter of consumer GROUP whole; ID is as `paceline dlq list` shows it."""
    from paceline.admin.dead_letters import parse_dead_letter

    name = parse_dead_letter(letter)
    message = ask(connect, lambda admin: admin.dead_letters.get(group, name))
    if as_json:
        echo_json(_json(message))
        return
    for field, value in _json(message).items():
        click.echo(f"{field}: {value}")


@command.command("resend")
@click.argument("group")
@click.argument("letters", metavar="[ID]...", nargs=-1)
@click.option("--all", "is_all", is_flag=True, help="All that were not purged.")
@click.option(
    "--to",
    type=click.Choice(("topic", "group")),
    default="topic",
    show_default=True,
    help="topic: to every consumer group again; group: only to GROUP, with all attempts anew.",
)
@cluster_options
def resend(
    group: str, letters: tuple[str, ...], is_all: bool, to: str, connect: Connect, as_json: bool
) -> None:
    """Put dead letters of consumer GROUP back, each once however often it is asked."""
    from paceline.admin.dead_letters import parse_dead_letter

    if bool(letters) == is_all:
        raise click.UsageError("name dead letters, or --all")
    named = [parse_dead_letter(letter) for letter in letters]
    resent = ask(connect, lambda admin: _resend(admin, group, named, to))
    for one in resent:
        if as_json:
            echo_json(_resent_json(one))
        elif one.code is not None:
            click.echo(f"{one.letter}: refused, {one.code}", err=True)
    failed = [one for one in resent if one.code is not None]
    if not as_json:
        before = sum(one.is_duplicate for one in resent)
        told = f", {before} of them had been before" if before else ""
        click.echo(f"{len(resent) - len(failed)} dead letters of {group} are resent{told}")
    if failed:
        raise PacelineError(f"{len(failed)} of {len(resent)} dead letters were refused")


@command.command("purge")
@click.argument("group")
@cluster_options
def purge(group: str, connect: Connect, as_json: bool) -> None:
    """Count the dead letters of consumer GROUP as dealt with: they are not listed any more.

    Retention deletes them when their time has come; until then `list --all` shows them.
    """
    count = ask(connect, lambda admin: admin.dead_letters.purge(group))
    if as_json:
        echo_json({"group": group, "purged": count})
    else:
        click.echo(f"{count} dead letters of {group} are dealt with")


# -- inside ---------------------------------------------------------------------------------------


async def _resend(
    admin: "AdminClient", group: str, named: "list[DeadLetter]", to: str
) -> "list[Resent]":
    """These, or all that were not purged."""
    from paceline.admin.dead_letters import name_of

    if not named:
        named = [name_of(one) for one in await admin.dead_letters.all(group, limit=_ALL_MAX)]
    return await admin.dead_letters.resend(group, named, to=to)


def _json(message: "ReceivedMessage") -> dict[str, Any]:
    from paceline.admin.dead_letters import name_of
    from paceline.wire import properties as names

    return {
        "id": str(name_of(message)),
        "topic": message.properties.get(names.DLQ_ORIGIN_TOPIC),
        "message_id": message.properties.get(names.DLQ_ORIGIN_MESSAGE_ID),
        "reconsume_times": message.reconsume_times,
        "key": message.key,
        "tag": message.tag,
        "born_unix_ms": message.born_unix_ms,
        "store_unix_ms": message.store_unix_ms,
        "properties": message.properties,
        "body": message.body.decode(errors="replace"),
    }


def _row(message: "ReceivedMessage") -> tuple[str, ...]:
    shown = _json(message)
    body = shown["body"]
    if len(body) > _BODY_SHOWN:
        body = body[: _BODY_SHOWN - 3] + "..."
    return (
        shown["id"],
        shown["topic"] or "",
        utc(message.store_unix_ms),
        str(message.reconsume_times),
        body if body.isprintable() else repr(body),
    )


def _resent_json(one: "Resent") -> dict[str, Any]:
    return {
        "id": str(one.letter),
        "code": one.code,
        "topic": one.topic,
        "message_id": one.message_id,
        "duplicate": one.is_duplicate,
    }
