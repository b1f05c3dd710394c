"""`paceline group list|describe|create|alter|delete`: consumer groups on record."""

import sys
from typing import TYPE_CHECKING, Any

import click

from paceline.cli.asking import ask
from paceline.cli.needs import Command
from paceline.cli.options import Connect, cluster_options
from paceline.cli.output import echo_json, echo_table

if TYPE_CHECKING:
    from paceline.wire.consumer_groups import ConsumerGroupView

_HELP = "A setting by RocketMQ's name, for example retry_max_times=3. Repeatable."


def add_to(group: click.Group) -> None:
    for command in (list_, describe, create, alter, delete):
        group.add_command(command)


def _settings(
    context: click.Context, option: click.Parameter, pairs: tuple[str, ...]
) -> dict[str, Any]:
    """NAME=VALUE: true, false and numbers are what they look like, the rest is JSON or a text."""
    import orjson

    found: dict[str, Any] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator:
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE")
        try:
            found[name] = orjson.loads(text)
        except orjson.JSONDecodeError:
            found[name] = text
    return found


_set_option = click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE", callback=_settings, help=_HELP
)


@click.command("list", cls=Command)
@cluster_options
def list_(connect: Connect, as_json: bool) -> None:
    """List the consumer groups on record by name."""
    groups = ask(connect, lambda admin: admin.consumer_groups.all())
    if as_json:
        for group in groups:
            echo_json(group.to_json())
    elif groups:
        rows = [
            (
                group.group,
                "yes" if group.settings.consume_enable else "no",
                str(group.settings.retry_max_times),
                group.settings.retry_policy.type,
            )
            for group in groups
        ]
        echo_table(("GROUP", "CONSUMES", "RETRIES", "RETRY POLICY"), rows)
    else:
        click.echo("no consumer groups yet; one is made when it first consumes", err=True)


@click.command("describe", cls=Command)
@click.argument("name")
@cluster_options
def describe(name: str, connect: Connect, as_json: bool) -> None:
    """Show the settings of the consumer group NAME."""
    _show(ask(connect, lambda admin: admin.consumer_groups.get(name)), as_json)


@click.command("create", cls=Command)
@click.argument("name")
@_set_option
@cluster_options
def create(name: str, settings: dict[str, Any], connect: Connect, as_json: bool) -> None:
    """Create the consumer group NAME, with its retry and dead letter topics."""
    _show(ask(connect, lambda admin: admin.consumer_groups.create(name, **settings)), as_json)


@click.command("alter", cls=Command)
@click.argument("name")
@_set_option
@cluster_options
def alter(name: str, settings: dict[str, Any], connect: Connect, as_json: bool) -> None:
    """Change settings of the consumer group NAME; the others stay."""
    if not settings:
        raise click.UsageError("say what to change, for example --set retry_max_times=3")
    _show(ask(connect, lambda admin: admin.consumer_groups.alter(name, **settings)), as_json)


@click.command("delete", cls=Command)
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@cluster_options
def delete(name: str, yes: bool, connect: Connect, as_json: bool) -> None:
    """Delete the consumer group NAME with its retries and dead letters."""
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("deleting a group loses its dead letters: say --yes")
        click.confirm(f"Delete consumer group {name} and its dead letters?", abort=True)
    ask(connect, lambda admin: admin.consumer_groups.delete(name))
    if as_json:
        echo_json({"group": name, "deleted": True})
    else:
        click.echo(f"consumer group {name} deleted")


def _show(group: "ConsumerGroupView", as_json: bool) -> None:
    if as_json:
        echo_json(group.to_json())
        return
    document = group.settings.to_json()
    policy = document.pop("retry_policy")
    click.echo(f"consumer group {group.group}")
    rows = [(name, str(value)) for name, value in sorted(document.items())]
    rows += [(f"retry_policy.{name}", str(value)) for name, value in sorted(policy.items())]
    echo_table(("SETTING", "VALUE"), rows)
