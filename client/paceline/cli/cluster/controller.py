"""`paceline controller status|transfer|members`: the quorum of controllers."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from paceline.cli.needs import Group
from paceline.cli.options import Connect, cluster_options, open_cluster, run_async
from paceline.cli.output import echo_json, echo_table

if TYPE_CHECKING:
    from paceline.admin.client import AdminClient

Result = TypeVar("Result")
Document = dict[str, Any]

WAIT_DEFAULT_S = 60
_POLL_MS = 100


@click.group("controller", cls=Group)
def command() -> None:
    """Show the controllers; hand leadership over, change who they are."""


@command.command("status")
@cluster_options
def status(connect: Connect, as_json: bool) -> None:
    """Show each controller: who leads, term, log, lag, fsync times, member list.

    Exits with 1 when no controller leads.
    """
    found = _ask(connect, lambda admin: admin.controllers.all(with_digests=True))
    rows = [_row(address, said) for address, said in found.items()]
    is_led = any(row["role"] == "leader" for row in rows)
    if as_json:
        echo_json({"is_led": is_led, "controllers": rows})
    else:
        _show_status(rows)
        if not is_led:
            click.echo("No controller leads: a majority of them must run.")
    if not is_led:
        raise click.exceptions.Exit(1)


@command.command("transfer")
@click.option("--to", metavar="ID", help="The controller that is to lead; default: the best one.")
@cluster_options
def transfer(to: str | None, connect: Connect, as_json: bool) -> None:
    """Have another controller lead, at once and without an election timeout."""
    answer = _ask(connect, lambda admin: admin.controllers.transfer_leadership(to))
    if as_json:
        echo_json(answer)
    else:
        click.echo(f"{answer['leader']} leads in term {answer['term']}")


@command.group("members")
def members() -> None:
    """Show or change which controllers there are, while they run."""


@members.command("list")
@cluster_options
def list_(connect: Connect, as_json: bool) -> None:
    """Show the member list in force and what a change under way waits for."""
    _show_members(_ask(connect, lambda admin: admin.controllers.members()), as_json=as_json)


_new_options = (
    click.option("--raft", metavar="HOST:PORT", required=True, help="Its Raft listener."),
    click.option("--client", metavar="HOST:PORT", required=True, help="Its listener for clients."),
    click.option(
        "--wait-s",
        type=click.IntRange(0, 3_600),
        default=WAIT_DEFAULT_S,
        show_default=True,
        help="Wait so long for the change to be complete; 0: do not wait.",
    ),
)


def _with_new_options(function: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_new_options):
        function = option(function)
    return function


@members.command("add")
@click.argument("controller_id")
@_with_new_options
@cluster_options
def add(
    controller_id: str, raft: str, client: str, wait_s: int, connect: Connect, as_json: bool
) -> None:
    """Add CONTROLLER_ID, which votes once it has the log. Start it now if it does not run."""
    _change(
        connect,
        lambda admin: admin.controllers.add(controller_id, raft=raft, client=client),
        wait_s=wait_s,
        as_json=as_json,
    )


@members.command("replace")
@click.argument("old")
@click.argument("controller_id")
@_with_new_options
@cluster_options
def replace(
    old: str,
    controller_id: str,
    raft: str,
    client: str,
    wait_s: int,
    connect: Connect,
    as_json: bool,
) -> None:
    """Add CONTROLLER_ID and take OLD out once the new one has the log."""
    _change(
        connect,
        lambda admin: admin.controllers.add(controller_id, raft=raft, client=client, replaces=old),
        wait_s=wait_s,
        as_json=as_json,
    )


@members.command("remove")
@click.argument("controller_id")
@click.option("--wait-s", type=click.IntRange(0, 3_600), default=WAIT_DEFAULT_S, show_default=True)
@cluster_options
def remove(controller_id: str, wait_s: int, connect: Connect, as_json: bool) -> None:
    """Take CONTROLLER_ID out, or give up adding it while it catches up."""
    _change(
        connect,
        lambda admin: admin.controllers.remove(controller_id),
        wait_s=wait_s,
        as_json=as_json,
    )


# -- inside ----------------------------------------------------------------------------------------


def _ask(connect: Connect, work: "Callable[[AdminClient], Awaitable[Result]]") -> Result:
    async def run() -> Result:
        from paceline.admin.client import AdminClient

        async with open_cluster(connect) as cluster:
            return await work(AdminClient(cluster))

    return run_async(run())


def _change(
    connect: Connect,
    begin: "Callable[[AdminClient], Awaitable[int]]",
    *,
    wait_s: int,
    as_json: bool,
) -> None:
    """Begin, then wait until nobody is catching up or leaving."""

    async def work(admin: "AdminClient") -> Document:
        from paceline.errors import PacelineError
        from paceline.platform.runtime import SystemClock, pause

        clock = SystemClock()
        generation = await begin(admin)
        deadline_ms = clock.monotonic_ms() + wait_s * 1000
        document: Document = {}
        while True:
            try:
                document = await admin.controllers.members()
            except PacelineError:
                if clock.monotonic_ms() >= deadline_ms:
                    raise
            if _is_complete(document, generation) or clock.monotonic_ms() >= deadline_ms:
                return document
            await pause(_POLL_MS)

    document = _ask(connect, work)
    _show_members(document, as_json=as_json)
    if wait_s and not _is_complete(document, 0):
        raise click.exceptions.Exit(1)


def _is_complete(document: Document, generation: int) -> bool:
    return (
        bool(document)
        and document["committed_generation"] == document["generation"] >= generation
        and document["leaving"] is None
        and all(member["is_voter"] for member in document["members"])
    )


def _row(address: str, said: Document | None) -> Document:
    known = said or {}
    names = (
        "controller_id",
        "role",
        "leader",
        "term",
        "commit_index",
        "applied_index",
        "log_length",
        "generation",
        "sync",
        "snapshot_age_ms",
        "sessions",
        "digest",
        "members",
    )
    return {"address": address, **{name: known.get(name) for name in names}}


def _show_status(rows: list[Document]) -> None:
    leader = next((row for row in rows if row["role"] == "leader"), None)
    lags = {m["controller_id"]: m["lag_entries"] for m in (leader or {}).get("members") or ()}
    echo_table(
        (
            "CONTROLLER",
            "ROLE",
            "TERM",
            "COMMIT",
            "APPLIED",
            "LAG",
            "FSYNC P50/P99/MAX MS",
            "LIST",
            "ADDRESS",
        ),
        [
            (
                _text(row["controller_id"]),
                row["role"] or "no answer",
                _text(row["term"]),
                _text(row["commit_index"]),
                _text(row["applied_index"]),
                _text(lags.get(row["controller_id"])),
                _times(row["sync"]),
                _text(row["generation"]),
                row["address"],
            )
            for row in rows
        ],
    )


def _show_members(document: Document, *, as_json: bool) -> None:
    if as_json:
        echo_json(document)
        return
    click.echo(f"generation {document['generation']}")
    echo_table(
        ("CONTROLLER", "VOTES", "LINKED", "LAG", "RAFT", "CLIENT"),
        [
            (
                member["controller_id"],
                _standing(member, document["leaving"]),
                "yes" if member["is_linked"] else "no",
                _text(member["lag_entries"]),
                member["raft"] or "-",
                member["client"] or "-",
            )
            for member in document["members"]
        ],
    )
    if document["waits_for"]:
        click.echo(document["waits_for"])


def _standing(member: Document, leaving: str | None) -> str:
    if not member["is_voter"]:
        return "learner"
    return "leaving" if member["controller_id"] == leaving else "yes"


def _times(sync: Document | None) -> str:
    return "-" if sync is None else f"{sync['p50_ms']}/{sync['p99_ms']}/{sync['max_ms']}"


def _text(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else str(value)
