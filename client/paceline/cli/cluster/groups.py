"""`paceline cluster sync-state-set|elect|transfer|history|epochs|clean`: operators and groups.

What RocketMQ's getSyncStateSet, electMaster, getBrokerEpoch and cleanBrokerMetadata show and do.
"""

import sys
from typing import TYPE_CHECKING, Any

import click

from paceline.cli.asking import ask
from paceline.cli.cluster.status import command
from paceline.cli.options import REPLICA_ID, Connect, cluster_options
from paceline.cli.output import echo_json, echo_table, utc_ms
from paceline.wire.cluster import GroupSettings

if TYPE_CHECKING:
    from paceline.admin.client import AdminClient

Document = dict[str, Any]
_SET_HEAD = ("REPLICA", "IN SYNC", "STANDING", "INCARNATION", "LAST EPOCH", "END", "ADDRESS")


@command.command("sync-state-set")
@click.argument("group", required=False)
@cluster_options
def sync_state_set(group: str | None, connect: Connect, as_json: bool) -> None:
    """Show who is in the sync state set of GROUP, or of every group, and who is not."""
    for document in ask(connect, lambda admin: _sync_state_sets(admin, group)):
        if as_json:
            echo_json(document)
            continue
        master = "no master" if document["master"] is None else f"master {document['master']}"
        click.echo(
            f"group {document['group']}: {master} in epoch {document['master_epoch']},"
            f" set epoch {document['set_epoch']}, at least {document['required_in_sync_replicas']}"
            + (", LOSSY" if document["is_lossy"] else "")
        )
        rows = [
            (str(row["replica_id"]), "yes" if row["in_sync"] else "no", *_row_texts(row))
            for row in document["replicas"]
        ]
        echo_table(_SET_HEAD, rows)


@command.command("elect")
@click.argument("group")
@click.option("--to", "preferred", type=REPLICA_ID, help="Replica id of the new master.")
@click.option(
    "--unclean",
    is_flag=True,
    help="Accept the loss of what only others have: --to alone is the new set.",
)
@click.option("--yes", is_flag=True, help="Do not ask before an unclean election.")
@cluster_options
def elect(
    group: str, preferred: int | None, unclean: bool, yes: bool, connect: Connect, as_json: bool
) -> None:
    """Have another master of GROUP elected at once; `transfer` does it without failing sends."""
    if unclean:
        if preferred is None:
            raise click.UsageError("an unclean election names its winner: --to ID")
        ensure_meant(yes, f"Lose every message of group {group} that replica {preferred} lacks?")
    result = ask(
        connect,
        lambda admin: admin.broker_groups.elect(group, preferred=preferred, unclean=unclean),
    )
    if as_json:
        echo_json(result)
    else:
        click.echo(_elected(group, result))


@command.command("transfer")
@click.argument("group")
@click.option("--to", "preferred", type=REPLICA_ID, help="Replica id of the new master.")
@cluster_options
def transfer(group: str, preferred: int | None, connect: Connect, as_json: bool) -> None:
    """Have the master of GROUP hand over: it stops intake, all is confirmed, another one leads."""
    result = ask(connect, lambda admin: admin.broker_groups.transfer(group, to=preferred))
    if as_json:
        echo_json(result)
        return
    forced = "" if result["is_graceful"] else "; the old master did not answer and was replaced"
    click.echo(_elected(group, result) + forced)


@command.command("history")
@click.argument("group")
@click.option("--limit", type=click.IntRange(1, 64), default=64, show_default=True)
@cluster_options
def history(group: str, limit: int, connect: Connect, as_json: bool) -> None:
    """Show the last elections and set changes of GROUP with their reasons, oldest first."""
    entries = ask(connect, lambda admin: admin.broker_groups.history(group))[-limit:]
    if as_json:
        for entry in entries:
            echo_json(entry)
        return
    rows = [(utc_ms(entry["at"]), entry["kind"], _details(entry)) for entry in entries]
    echo_table(("TIME (UTC)", "EVENT", "DETAILS"), rows)


@command.command("epochs")
@click.argument("group")
@cluster_options
def epochs(group: str, connect: Connect, as_json: bool) -> None:
    """Show which master epoch wrote which bytes of each replica's log of GROUP."""
    tables = ask(connect, lambda admin: admin.broker_groups.epochs(group))
    if as_json:
        for replica_id, table in tables.items():
            echo_json({"group": group, "replica_id": replica_id, **_table_json(table)})
        return
    rows = []
    for replica_id, table in tables.items():
        if table is None:
            rows.append((str(replica_id), "no answer", "-", "-", "-"))
            continue
        for entry in table["epochs"]:
            numbers = (f"{entry[key]:,}" for key in ("epoch", "start", "end"))
            rows.append((str(replica_id), table["role"], *numbers))
    echo_table(("REPLICA", "ROLE", "EPOCH", "START", "END"), rows)


@command.command("clean")
@click.argument("group")
@click.option("--replica", "replica_id", type=REPLICA_ID, help="Only this replica.")
@click.option(
    "--force",
    is_flag=True,
    help="Also a replica that is in the set or alive; a group with the queues of its topics.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@cluster_options
def clean(
    group: str, replica_id: int | None, force: bool, yes: bool, connect: Connect, as_json: bool
) -> None:
    """Forget a dead replica of GROUP, or the whole group when none of its replicas lives."""
    if replica_id is None:
        ensure_meant(yes, f"Forget broker group {group} and all its replicas?")
        ask(connect, lambda admin: admin.broker_groups.remove(group, force=force))
        what = f"group {group}"
    else:
        number = replica_id
        ask(connect, lambda admin: admin.broker_groups.remove_replica(group, number, force=force))
        what = f"replica {replica_id} of group {group}"
    if as_json:
        echo_json({"group": group, "replica_id": replica_id, "forgotten": True})
    else:
        click.echo(f"{what} forgotten")


@command.command("wipe-write-perm")
@click.argument("group")
@cluster_options
def wipe_write_perm(group: str, connect: Connect, as_json: bool) -> None:
    """Have producers send nothing to GROUP any more, so that it drains before maintenance."""
    ask(connect, lambda admin: admin.broker_groups.set_write_permission(group, writable=False))
    _echo_permission(group, "takes no messages any more", writable=False, as_json=as_json)


@command.command("add-write-perm")
@click.argument("group")
@cluster_options
def add_write_perm(group: str, connect: Connect, as_json: bool) -> None:
    """Let producers send to GROUP again."""
    ask(connect, lambda admin: admin.broker_groups.set_write_permission(group, writable=True))
    _echo_permission(group, "takes messages again", writable=True, as_json=as_json)


# -- inside ---------------------------------------------------------------------------------------


def _echo_permission(group: str, what: str, *, writable: bool, as_json: bool) -> None:
    if as_json:
        echo_json({"group": group, "writable": writable})
    else:
        click.echo(f"group {group} {what}")


async def _sync_state_sets(admin: "AdminClient", group: str | None) -> list[Document]:
    names = [group] if group is not None else sorted((await admin.view()).groups)
    return [describe_set(await admin.broker_groups.get(name)) for name in names]


def describe_set(group: Document) -> Document:
    """The set of one group as the controllers' group document tells it."""
    rows = []
    for replica in group["replicas"]:
        known = group["standings"].get(str(replica["replica_id"]), {})
        rows.append(
            {
                "replica_id": replica["replica_id"],
                "in_sync": replica["replica_id"] in group["sync_state_set"],
                "is_learner": replica["is_learner"],
                "standing": known.get("standing"),
                "incarnation": replica["incarnation"],
                "last_epoch": known.get("last_epoch"),
                "end": known.get("end"),
                "address": replica["client_address"],
            }
        )
    settings = GroupSettings.from_json(group["settings"])
    return {
        "group": group["group"],
        "master": group["master"],
        "master_epoch": group["master_epoch"],
        "set_epoch": group["set_epoch"],
        "sync_state_set": group["sync_state_set"],
        "min_in_sync_replicas": settings.min_in_sync_replicas,
        "required_in_sync_replicas": settings.required_in_sync_replicas,
        "is_lossy": group["is_lossy"],
        "replicas": rows,
    }


def _row_texts(row: Document) -> tuple[str, ...]:
    standing = row["standing"] or "-"
    if row["is_learner"]:
        standing += ", learner"
    reach = ("-" if row[key] is None else f"{row[key]:,}" for key in ("last_epoch", "end"))
    return standing, str(row["incarnation"]), *reach, row["address"]


def ensure_meant(yes: bool, question: str) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("this cannot be undone: say --yes")
    click.confirm(question, abort=True)


def _elected(group: str, result: Document) -> str:
    return (
        f"group {group}: replica {result['master']} is master of epoch {result['master_epoch']},"
        f" in sync {', '.join(map(str, result['sync_state_set']))}"
    )


def _details(entry: Document) -> str:
    return ", ".join(
        f"{key} {_value(value)}" for key, value in entry.items() if key not in ("kind", "at")
    )


def _value(value: object) -> str:
    if isinstance(value, list):
        return "/".join(map(str, value)) or "none"
    if isinstance(value, dict):
        return "/".join(f"{key}: {inner}" for key, inner in value.items()) or "none"
    return str(value)


def _table_json(table: Document | None) -> Document:
    known = table or {}
    return {key: known.get(key) for key in ("role", "epoch", "confirm", "epochs")}
