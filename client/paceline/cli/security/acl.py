"""`paceline acl`: what users may do."""

from typing import Any

import click
from click.exceptions import Exit

from paceline.cli.asking import ask
from paceline.cli.needs import Group
from paceline.cli.options import Connect, cluster_options
from paceline.cli.output import echo_json, echo_table
from paceline.errors import BadRequestError

_RESOURCE = "Topic:NAME, Group:NAME, Cluster:*; NAME* is a prefix, * alone is everything."


@click.group("acl", cls=Group)
def command() -> None:
    """Show, change, explain and check what users may do."""


@command.command("list")
@click.argument("user", required=False)
@cluster_options
def list_(user: str | None, connect: Connect, as_json: bool) -> None:
    """List the policies of all users, or of USER."""
    policies = (
        ask(connect, lambda admin: admin.policies.all())
        if user is None
        else [ask(connect, lambda admin: admin.policies.get(user))]
    )
    if as_json:
        for policy in policies:
            echo_json(policy)
        return
    rows = [
        (policy["user"], name, *_cells(entry))
        for policy in policies
        for name in ("custom", "default")
        for entry in policy[name]
    ]
    if rows:
        echo_table(("USER", "POLICY", "RESOURCE", "DECISION", "ACTIONS", "SOURCES"), rows)
    else:
        click.echo("no policies yet; `paceline acl set` makes one", err=True)


def _cells(entry: dict[str, Any]) -> tuple[str, str, str, str]:
    sources = ",".join(entry["sources"]) or "all"
    return entry["resource"], entry["decision"], ",".join(entry["actions"]), sources


@command.command("set")
@click.argument("user")
@click.option("--resource", required=True, help=_RESOURCE)
@click.option(
    "--actions",
    required=True,
    metavar="ACTION[,...]",
    help="Pub, Sub, Create, Update, Delete, Get, List, All.",
)
@click.option("--source", "sources", multiple=True, help="An address or network. Repeatable.")
@click.option("--deny", is_flag=True, help="These actions are denied, not allowed.")
@click.option("--default", "is_default", is_flag=True, help="In the default policy of the user.")
@cluster_options
def set_(
    user: str,
    resource: str,
    actions: str,
    sources: tuple[str, ...],
    deny: bool,
    is_default: bool,
    connect: Connect,
    as_json: bool,
) -> None:
    """Set what USER may do on a resource; it replaces what was said of that resource."""
    names = [_action(name) for name in actions.split(",")]
    revision = ask(
        connect,
        lambda admin: admin.policies.set_entry(
            user,
            resource,
            names,
            sources=sources,
            decision="Deny" if deny else "Allow",
            is_default=is_default,
        ),
    )
    _done(as_json, user, revision)


def _action(name: str) -> str:
    from paceline.wire.rights import Action

    known = {action.lower(): action.value for action in Action}
    found = known.get(name.strip().lower())
    if found is None:
        raise BadRequestError(f"no action {name!r}; there are {', '.join(known.values())}")
    return found


@command.command("remove")
@click.argument("user")
@click.option("--resource", required=True, help=_RESOURCE)
@click.option("--default", "is_default", is_flag=True, help="In the default policy of the user.")
@cluster_options
def remove(user: str, resource: str, is_default: bool, connect: Connect, as_json: bool) -> None:
    """Take out what the policy of USER says of a resource."""
    revision = ask(
        connect,
        lambda admin: admin.policies.remove_entry(user, resource, is_default=is_default),
    )
    _done(as_json, user, revision)


@command.command("explain")
@click.argument("user")
@click.argument("action")
@click.argument("resource")
@click.option("--source", default="", help="The address that the user comes from.")
@cluster_options
def explain(
    user: str, action: str, resource: str, source: str, connect: Connect, as_json: bool
) -> None:
    """Say whether USER may do ACTION on RESOURCE, and which rule decides. Exits with 1 if not."""
    name = _action(action)
    found = ask(connect, lambda admin: admin.policies.explain(user, name, resource, source=source))
    if as_json:
        echo_json(found)
    else:
        click.echo(f"{'allowed' if found['is_allowed'] else 'refused'}: {found['why']}")
    if not found["is_allowed"]:
        raise Exit(1)


@command.command("lint")
@cluster_options
def lint(connect: Connect, as_json: bool) -> None:
    """Find denials that do not deny what they seem to: an allowance is more special.

    Exits with 1 if there are any.
    """
    import msgspec

    from paceline.security.decide import entry_text, overridden_denials
    from paceline.wire.users import Policy

    found = [
        {"user": row["user"], "denial": entry_text(denial), "allowance": entry_text(allowance)}
        for row in ask(connect, lambda admin: admin.policies.all())
        for denial, allowance in overridden_denials(msgspec.convert({**row, "user": None}, Policy))
    ]
    for finding in found:
        if as_json:
            echo_json(finding)
        else:
            click.echo(
                f"{finding['user']}: {finding['allowance']!r} counts more than"
                f" {finding['denial']!r}, because it is more special"
            )
    if found:
        raise Exit(1)
    if not as_json:
        click.echo("no allowance beats a denial")


def _done(as_json: bool, user: str, revision: int) -> None:
    if as_json:
        echo_json({"ok": True, "user": user, "revision": revision})
    else:
        click.echo(f"policy of {user} is at revision {revision}")
