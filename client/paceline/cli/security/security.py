"""`paceline security`, `paceline login`, `paceline logout`, `paceline whoami`."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.exceptions import Exit

from paceline.cli.asking import ask, ask_as_stranger, ask_secret
from paceline.cli.needs import Command, Group
from paceline.cli.options import Connect, cluster_options, defaults
from paceline.cli.output import echo_json
from paceline.cli.profiles import FILE_NAME, Profile, read_profiles, write_profile
from paceline.cli.security.user import show_key
from paceline.errors import BadRequestError, ConfigError

if TYPE_CHECKING:
    from paceline.net.connect import Credentials


@click.group("security", cls=Group)
def command() -> None:
    """Switch users and rights on and off."""


@command.command("status")
@cluster_options
def status(connect: Connect, as_json: bool) -> None:
    """Show whether rights are enforced, and how many users there are."""
    found = ask(connect, lambda admin: admin.security.get())
    if as_json:
        echo_json(found)
    else:
        users, supers = found["users"], found["super_users"]
        click.echo(f"rights are {found['mode']}; {users} users, {supers} of them super users")


@command.command("enable")
@click.option("--dry-run", is_flag=True, help="Refuse nothing: log and count what would be.")
@click.option("--save/--no-save", default=True, help="Keep a new key in the profile.")
@click.option("--new-key", is_flag=True, help="Give `admin` one more key, if its own is lost.")
@click.option(
    "--cluster-secret",
    "secret_file",
    metavar="FILE",
    help="The secret file of the nodes. Whoever can read it needs no key.",
)
@cluster_options
def enable(
    dry_run: bool,
    save: bool,
    new_key: bool,
    secret_file: str | None,
    connect: Connect,
    as_json: bool,
) -> None:
    """Have users and rights enforced in this running cluster.

    Where no super user has a password, or a key that has not expired, `admin` is made with a key
    (`admin-2`, if another user is called so). The key is shown once, before anything is switched
    on, and goes into your profile, so the next command finds it. A cluster that other machines
    reach lets nobody in until then: name the nodes' secret file. Run it again if it fails.
    """
    made = ask(
        connect if secret_file is None else replace(connect, secret_file=secret_file),
        lambda admin: admin.security.enable(
            lambda made: show_key(made.credentials, as_json=as_json, user=made.user),
            keep=(lambda made: _keep(connect, made.credentials)) if save else None,
            is_trial=dry_run,
            with_new_key=new_key,
            purpose="made by paceline security enable",
        ),
    )
    if made is None and not as_json:
        click.echo("no key was made: a super user has one, or a password", err=True)
    mode = "dry-run" if dry_run else "on"
    _done(as_json and made is None, as_json, mode)


def _keep(connect: Connect, credentials: "Credentials") -> None:
    """Save a key that was shown; where that fails, say what to do."""
    try:
        _save(connect, credentials)
    except ConfigError as error:
        click.echo(
            f"the key is in no profile: {error.message}; keep what is shown above yourself, or give"
            " it to `paceline login`",
            err=True,
        )


@command.command("disable")
@cluster_options
def disable(connect: Connect, as_json: bool) -> None:
    """Let everybody do everything again. Users and policies stay."""
    ask(connect, lambda admin: admin.security.set("off"))
    _done(as_json, as_json, "off")


@command.command("seal-keys")
@cluster_options
def seal_keys(connect: Connect, as_json: bool) -> None:
    """Encrypt all keys that sign anew, with the newest cluster secret.

    It is a step of rotating that secret: afterwards no key needs the old one. Exits with 1 if there
    are keys that no secret opens any more.
    """
    found = ask(connect, lambda admin: admin.security.seal_keys())
    if as_json:
        echo_json(found)
    else:
        click.echo(f"{found['sealed']} keys encrypted anew")
        for access_key in found["lost"]:
            click.echo(f"no cluster secret opens {access_key}: make another one", err=True)
    if found["lost"]:
        raise Exit(1)


def _done(tells_json: bool, as_json: bool, mode: str) -> None:
    if tells_json:
        echo_json({"ok": True, "mode": mode})
    elif not as_json:
        click.echo(f"rights are {mode}")


@click.command("login", cls=Command)
@click.option("--access-key", help="Asked for if neither it nor a user is given.")
@click.option("--user", help="Log in with the password of this user, for 12 hours.")
@click.option(
    "--allow-plaintext", is_flag=True, help="Show the key also over networks, not encrypted."
)
@cluster_options
def login(
    access_key: str | None, user: str | None, allow_plaintext: bool, connect: Connect, as_json: bool
) -> None:
    """Keep an access key, or a login with a password, in your profile.

    It is a file that only you can read. The secret key or password is asked for, or read from
    standard input; never give it as an argument, where others could see it. PACELINE_PROFILE names
    the profile.
    """
    from paceline.net.connect import Credentials

    if user is not None:
        if access_key is not None:
            raise click.UsageError("give --user or --access-key, not both")
        password = ask_secret(f"Password of {user}")
        credentials = ask_as_stranger(
            connect,
            lambda admin: admin.security.login(user, password, allow_plaintext=allow_plaintext),
        )
    else:
        key = access_key or click.prompt("Access key", err=True)
        credentials = Credentials(
            access_key=key.strip(),
            secret_key=ask_secret("Secret key").strip(),
            allow_plaintext=allow_plaintext,
        )
    found = ask(replace(connect, credentials=credentials), lambda admin: admin.security.whoami())
    if found["mode"] == "off":
        raise BadRequestError(
            "users and rights are off in this cluster, so nobody can tell whether the key is good;"
            " switch them on with `paceline security enable`"
        )
    name = _save(connect, credentials)
    path = defaults().folder / FILE_NAME
    if as_json:
        echo_json({"ok": True, "user": found["user"], "profile": str(path), "name": name})
    else:
        click.echo(f"you are {found['user']} at {connect.bootstrap}; kept in {path}")


@click.command("logout")
@click.option("--json", "as_json", is_flag=True, help="JSON lines for programs.")
def logout(as_json: bool) -> None:
    """Forget the access key of your profile."""
    found = defaults()
    name = found.profile
    is_there = name in read_profiles(found.folder)
    if is_there:
        write_profile(found.folder, name, None)
    if as_json:
        echo_json({"ok": True, "removed": is_there})
    else:
        click.echo(f"profile {name} " + ("removed" if is_there else "is not there"))


@click.command("whoami", cls=Command)
@cluster_options
def whoami(connect: Connect, as_json: bool) -> None:
    """Show as whom the cluster knows you, and what you may do."""
    found = ask(connect, lambda admin: admin.security.whoami())
    if as_json:
        echo_json(found)
        return
    click.echo(_who(found))
    for name in ("custom", "default"):
        for entry in found["policy"].get(name, ()):
            actions = ",".join(entry["actions"])
            click.echo(f"  {entry['decision']} {actions} on {entry['resource']}")


def _who(found: dict[str, Any]) -> str:
    if found["mode"] == "off":
        return "rights are off: everybody may do everything"
    kind = "" if found["type"] is None else f", a {found['type'].lower()} user"
    namespace = f", in namespace {found['namespace']}" if found["namespace"] else ""
    return f"{found['user']}{kind}{namespace}; rights are {found['mode']}"


def _save(connect: Connect, credentials: "Credentials") -> str:
    """The name of the profile; it is told if it is not the one that was asked for."""
    found = defaults()
    profile = Profile(
        bootstrap=connect.bootstrap,
        access_key=credentials.access_key,
        secret_key=credentials.secret_key,
        allow_plaintext=credentials.allow_plaintext,
        tls_ca="" if connect.tls is None else str(Path(connect.tls.ca_file).resolve()),
        namespace=connect.namespace,
    )
    name = write_profile(found.folder, found.profile, profile)
    if name != found.profile:
        click.echo(
            f"the profile {found.profile} is of another cluster and stays; the key is in the"
            f" profile {name}: name it with PACELINE_PROFILE={name}",
            err=True,
        )
    return name
