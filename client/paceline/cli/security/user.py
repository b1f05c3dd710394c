"""`paceline user`: users and their access keys."""

from typing import TYPE_CHECKING, Any

import click

from paceline.cli.asking import ask, ask_as_stranger, ask_secret
from paceline.cli.needs import Group
from paceline.cli.options import Connect, cluster_options
from paceline.cli.output import echo_json, echo_table, utc
from paceline.errors import BadRequestError

if TYPE_CHECKING:
    from paceline.net.connect import Credentials

DAY_MS = 24 * 3600 * 1000


@click.group("user", cls=Group)
def command() -> None:
    """Show, make, change and delete users; give them access keys."""


@command.command("list")
@cluster_options
def list_(connect: Connect, as_json: bool) -> None:
    """List the users by name, with their access keys."""
    users = ask(connect, lambda admin: admin.users.all())
    if as_json:
        for user in users:
            echo_json(user)
    elif users:
        rows = [row for user in users for row in _rows(user)]
        echo_table(("USER", "TYPE", "ENABLED", "ACCESS KEY", "FOR", "EXPIRES", "USED"), rows)
    else:
        click.echo("no users yet; `paceline security enable` makes the first one", err=True)


def _rows(user: dict[str, Any]) -> list[tuple[str, ...]]:
    head = (user["user"], user["type"], "yes" if user["is_enabled"] else "no")
    keys = [
        (
            key["access_key"],
            key["name"] or "-",
            "never" if key["expires_unix_ms"] is None else utc(key["expires_unix_ms"]),
            "-" if key["used_unix_ms"] is None else utc(key["used_unix_ms"]),
        )
        for key in user["keys"]
    ] or [("-", "-", "-", "-")]
    return [(*(head if at == 0 else ("", "", "")), *key) for at, key in enumerate(keys)]


@command.command("create")
@click.argument("name")
@click.option("--super", "is_super", is_flag=True, help="It may do everything.")
@click.option("--default-namespace", metavar="NAME", help="Where its programs' names are.")
@cluster_options
def create(
    name: str, is_super: bool, default_namespace: str | None, connect: Connect, as_json: bool
) -> None:
    """Make the user NAME, who may do nothing yet (`paceline acl set`), and has no access key."""
    ask(
        connect,
        lambda admin: admin.users.create(name, is_super=is_super, namespace=default_namespace),
    )
    _done(as_json, f"user {name} made; give it a key with `paceline user add-key {name}`", name)


@command.command("alter")
@click.argument("name")
@click.option("--super/--normal", "is_super", default=None, help="Whether it may do everything.")
@click.option("--enable/--disable", "is_enabled", default=None, help="Whether its keys count.")
@click.option(
    "--default-namespace", metavar="NAME", help='Where its programs\' names are; "": in none.'
)
@cluster_options
def alter(
    name: str,
    is_super: bool | None,
    is_enabled: bool | None,
    default_namespace: str | None,
    connect: Connect,
    as_json: bool,
) -> None:
    """Change the user NAME. Programs that run keep the namespace they began with."""
    if is_super is None and is_enabled is None and default_namespace is None:
        raise BadRequestError(
            "nothing to change: give --super, --normal, --enable, --disable or --default-namespace"
        )
    ask(
        connect,
        lambda admin: admin.users.alter(
            name, is_super=is_super, is_enabled=is_enabled, namespace=default_namespace
        ),
    )
    _done(as_json, f"user {name} changed", name)


@command.command("set-password")
@click.argument("name")
@click.option(
    "--change", is_flag=True, help="Show the present password in place of the right to set it."
)
@cluster_options
def set_password(name: str, change: bool, connect: Connect, as_json: bool) -> None:
    """Set the password that the user NAME logs in with (`paceline login --user`).

    It is asked for, or read from standard input, a line each; never give it as an argument. All
    that were logged in as this user are logged out.
    """
    if change:
        present, password = ask_secret("Present password"), ask_secret("New password", confirm=True)
        ask_as_stranger(connect, lambda admin: admin.users.change_password(name, present, password))
    else:
        password = ask_secret("New password", confirm=True)
        ask(connect, lambda admin: admin.users.set_password(name, password))
    _done(as_json, f"password of {name} set", name)


@command.command("end-logins")
@click.argument("name")
@cluster_options
def end_logins(name: str, connect: Connect, as_json: bool) -> None:
    """Log out all that are logged in as the user NAME. Access keys stay."""
    ask(connect, lambda admin: admin.users.end_logins(name))
    _done(as_json, f"all logins of {name} ended", name)


@command.command("delete")
@click.argument("name")
@cluster_options
def delete(name: str, connect: Connect, as_json: bool) -> None:
    """Delete the user NAME with its keys and its policy."""
    ask(connect, lambda admin: admin.users.delete(name))
    _done(as_json, f"user {name} deleted", name)


@command.command("add-key")
@click.argument("name")
@click.option("--for", "purpose", default="", metavar="TEXT", help="What the key is for.")
@click.option("--days", type=click.IntRange(1, 36_500), help="It expires after so many days.")
@click.option(
    "--signs",
    is_flag=True,
    help="For clients that sign requests with it: nodes keep the secret key, encrypted.",
)
@cluster_options
def add_key(
    name: str, purpose: str, days: int | None, signs: bool, connect: Connect, as_json: bool
) -> None:
    """Give the user NAME an access key. The secret key is shown once."""
    from paceline.platform.runtime import SystemClock

    expires_unix_ms = None if days is None else SystemClock().unix_ms() + days * DAY_MS
    made = ask(
        connect,
        lambda admin: admin.users.add_key(
            name, name=purpose, expires_unix_ms=expires_unix_ms, signs=signs
        ),
    )
    show_key(made, as_json=as_json, user=name)


def show_key(made: "Credentials", *, as_json: bool, user: str) -> None:
    """A new key, the one time that it can be seen."""
    if as_json:
        document = {"access_key": made.access_key, "secret_key": made.secret_key}
        echo_json({"user": user, **document})
        return
    click.echo(f"access key  {made.access_key}\nsecret key  {made.secret_key}")
    click.echo("The secret key is shown this once. Use it with `paceline login`, or as", err=True)
    click.echo("PACELINE_ACCESS_KEY and PACELINE_SECRET_KEY.", err=True)


@command.command("remove-key")
@click.argument("name")
@click.argument("access_key")
@cluster_options
def remove_key(name: str, access_key: str, connect: Connect, as_json: bool) -> None:
    """Revoke an access key of the user NAME: it is refused from now on."""
    ask(connect, lambda admin: admin.users.remove_key(name, access_key))
    _done(as_json, f"access key {access_key} of {name} revoked", name)


def _done(as_json: bool, sentence: str, user: str) -> None:
    if as_json:
        echo_json({"ok": True, "user": user})
    else:
        click.echo(sentence)
