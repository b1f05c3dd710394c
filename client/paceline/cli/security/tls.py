"""`paceline tls`: a small authority for those who have none."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.output import echo_json, utc

if TYPE_CHECKING:
    from paceline.security.authority import Authority, Shown

_FOLDER = click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("tls"),
    show_default=True,
    help="Folder of the authority.",
)
_JSON = click.option("--json", "as_json", is_flag=True, help="JSON lines for programs.")


@click.group("tls")
def command() -> None:
    """Make an authority and certificates for a cluster; look at and renew them."""


@command.command("init")
@_FOLDER
@click.option("--name", default="paceline authority", show_default=True, help="Its common name.")
@click.option("--days", type=click.IntRange(1, 36_500), default=3650, show_default=True)
@_JSON
def init(folder: Path, name: str, days: int, as_json: bool) -> None:
    """Make the authority: ca.pem, which everybody gets, and ca.key, which stays here."""
    _done(_authority(folder).init(common_name=name, now_unix_ms=_now(), days=days), as_json)


@command.command("issue")
@click.argument("name")
@click.option(
    "--host",
    "hosts",
    multiple=True,
    help="A host name or address by which it is reached. Repeatable.",
)
@click.option("--controller", metavar="ID", help="It is this controller.")
@click.option(
    "--broker",
    "brokers",
    metavar="GROUP",
    multiple=True,
    help="It is a broker of this broker group. Repeatable, for a broker container.",
)
@click.option("--client", metavar="USER", help="It is a client of this user.")
@click.option("--days", type=click.IntRange(1, 36_500), default=397, show_default=True)
@_FOLDER
@_JSON
def issue(
    name: str,
    hosts: tuple[str, ...],
    controller: str | None,
    brokers: tuple[str, ...],
    client: str | None,
    days: int,
    folder: Path,
    as_json: bool,
) -> None:
    """Issue NAME.pem and NAME.key, in place of those of before."""
    kinds = [("controller", controller), *(("broker", group) for group in brokers)]
    kinds.append(("client", client))
    uris = [f"URI:paceline:{kind}/{each}" for kind, each in kinds if each]
    if not hosts and not uris:
        raise click.UsageError("give --host, --controller, --broker or --client")
    names = (*hosts, *uris)
    _done(_authority(folder).issue(name, names, now_unix_ms=_now(), days=days), as_json)


@command.command("renew")
@click.argument("name")
@click.option("--days", type=click.IntRange(1, 36_500), default=397, show_default=True)
@_FOLDER
@_JSON
def renew(name: str, days: int, folder: Path, as_json: bool) -> None:
    """Issue NAME.pem once more, for the same names, with a new key. Nodes take it within 10 s."""
    _done(_authority(folder).renew(name, now_unix_ms=_now(), days=days), as_json)


@command.command("show")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@_JSON
def show(files: tuple[Path, ...], as_json: bool) -> None:
    """Show whom certificates are for and when they end."""
    from paceline.security.authority import show as read

    for path in files:
        _show(path, read(path), as_json)


def _show(path: Path, found: "Shown", as_json: bool) -> None:
    left_days = (found.ends_unix_ms - _now()) // (24 * 3600 * 1000)
    if as_json:
        echo_json({"file": str(path), **found._asdict(), "left_days": left_days})
        return
    what = "authority" if found.is_authority else ", ".join(found.names) or found.subject
    click.echo(f"{path}: {what}; ends {utc(found.ends_unix_ms)}, in {left_days} days")


def _done(path: Path, as_json: bool) -> None:
    from paceline.security.authority import show as read

    _show(path, read(path), as_json)


def _authority(folder: Path) -> "Authority":
    from paceline.security.authority import Authority

    return Authority(folder)


def _now() -> int:
    from paceline.platform.runtime import SystemClock

    return SystemClock().unix_ms()
