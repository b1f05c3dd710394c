"""`paceline cluster ha-status`: replication as the masters see it, and what they wait for."""

import asyncio
from typing import TYPE_CHECKING, Any

import click

from paceline.cli.needs import Command
from paceline.cli.options import Connect, cluster_options, open_cluster, run_async
from paceline.cli.output import echo_json, echo_table
from paceline.errors import GroupNotFoundError
from paceline.platform.runtime import pause

if TYPE_CHECKING:
    from paceline.net.cluster import Cluster
    from paceline.wire.cluster import GroupView

Status = dict[str, Any]

_TIMEOUT_MS = 1_000
_LOOK_MS = 100
_CARE = (
    "damage",
    "damages_found",
    "repairs",
    "repaired_bytes",
    "quarantine_files",
    "quarantine_bytes",
    "scrub_passes",
)
_COLUMNS = ("appended", "flushed", "lag_bytes", "lag_ms", "bytes_per_second")


@click.command("ha-status", cls=Command)
@click.argument("group", required=False)
@click.option(
    "--wait-in-sync-ms",
    type=click.IntRange(0, 3_600_000),
    default=None,
    help="Wait so long at most for every replica but learners to be in sync and connected.",
)
@cluster_options
def command(
    group: str | None, wait_in_sync_ms: int | None, connect: Connect, as_json: bool
) -> None:
    """Show replication as each master sees it: every replica's lag, and what the master waits for.

    All broker groups, or GROUP. Exits with 1 when a group has no master that answers, or, with
    --wait-in-sync-ms, when not every replica came in sync in time.
    """
    document = run_async(_ha_status(connect, group, wait_in_sync_ms))
    if as_json:
        echo_json(document)
    else:
        for index, row in enumerate(document["groups"]):
            if index:
                click.echo()
            show(row)
    is_good = all(row["is_answering"] for row in document["groups"])
    if wait_in_sync_ms is not None:
        is_good = is_good and is_in_sync(document)
    if not is_good:
        raise click.exceptions.Exit(1)


def is_in_sync(document: Status) -> bool:
    """Whether every group has a master that answers and all replicas, but learners, in its set."""
    return bool(document["groups"]) and all(
        group["is_answering"]
        and all(row["is_learner"] or (row["in_set"] and row["joined"]) for row in group["replicas"])
        for group in document["groups"]
    )


async def _ha_status(connect: Connect, group: str | None, wait_ms: int | None) -> Status:
    async with open_cluster(connect) as cluster:
        deadline_ms = cluster.clock.monotonic_ms() + (wait_ms or 0)
        while True:
            document = await _look(cluster, group)
            is_over = not wait_ms or cluster.clock.monotonic_ms() >= deadline_ms
            if is_over or is_in_sync(document):
                await _add_care(cluster, document)
                return document
            await pause(_LOOK_MS)


async def _look(cluster: "Cluster", group: str | None) -> Status:
    view = cluster.view
    assert view is not None
    names = [name for name in sorted(view.groups) if group in (None, name)]
    if not names and group is not None:
        known = ", ".join(sorted(view.groups)) or "none"
        raise GroupNotFoundError(f"there is no broker group {group}; known: {known}")
    said = await asyncio.gather(*(_ask(cluster, view.groups[name]) for name in names))
    rows = [describe(view.groups[name], one) for name, one in zip(names, said, strict=True)]
    return {"cluster_id": view.cluster_id, "groups": rows}


async def _ask(cluster: "Cluster", group: "GroupView") -> Status | None:
    """`/v1/status` of the group's master; None: nobody is elected, or it does not answer."""
    master = group.master_view()
    return None if master is None else await _status(cluster, master.client_address)


async def _status(cluster: "Cluster", address: str) -> Status | None:
    return await cluster.http.get_if_answered(address, "/v1/status", timeout_ms=_TIMEOUT_MS)


async def _add_care(cluster: "Cluster", document: Status) -> None:
    """To each group what every replica says of its own log: a damaged one is no member."""
    view = cluster.view
    assert view is not None
    for row in document["groups"]:
        group = view.groups.get(row["group"])
        replicas = [] if group is None else sorted(group.replicas.items())
        said = await asyncio.gather(
            *(_status(cluster, replica.client_address) for _, replica in replicas)
        )
        row["care"] = [
            describe_care(row["group"], replica_id, one)
            for (replica_id, _), one in zip(replicas, said, strict=True)
        ]


def describe_care(group: str, replica_id: int, said: Status | None) -> Status:
    """One replica's log as JSON; all None if it does not answer, or another process does."""
    known = said or {}
    is_it = (known.get("group"), known.get("replica_id")) == (group, replica_id)
    care = (known.get("care") or {}) if is_it else {}
    return {
        "replica": replica_id,
        "is_answering": is_it,
        "stopped": known.get("stopped") if is_it else None,
        **{name: care.get(name) for name in _CARE},
    }


def describe(group: "GroupView", said: Status | None) -> Status:
    """One group as JSON, from the published view and what its master said."""
    known = said or {}
    # Another process may have taken its port, or it is about to learn of its successor.
    is_it = (known.get("group"), known.get("replica_id")) == (group.group, group.master)
    replication = known.get("replication") if is_it else None
    return {
        "group": group.group,
        "master": group.master,
        "epoch": group.master_epoch,
        "is_answering": replication is not None,
        "sync_state_set": sorted(group.sync_state_set),
        "end": known.get("end") if is_it else None,
        "flushed": known.get("flushed") if is_it else None,
        "confirm": known.get("confirm") if is_it else None,
        "waits": replication["waits"] if replication else [],
        "replicas": replication["replicas"] if replication else [],
    }


def show(group: Status) -> None:
    """One group for people; what needs attention is in sentences."""
    if not group["is_answering"]:
        who = "nobody is elected" if group["master"] is None else f"replica {group['master']}"
        tail = "" if group["master"] is None else " is, and does not answer as master"
        click.echo(f"group {group['group']}: no master: {who}{tail}")
        _show_care(group)
        return
    click.echo(
        f"group {group['group']}: master {group['master']} in epoch {group['epoch']},"
        f" end {group['end']:,}, flushed {group['flushed']:,}, confirm {group['confirm']:,}"
    )
    for sentence in group["waits"]:
        click.echo(f"  waits for {sentence}")
    rows = [
        (
            str(row["replica"]),
            "yes" if row["in_set"] else "learner" if row["is_learner"] else "no",
            "yes" if row["joined"] else "joining" if row["connected"] else "no",
            *("-" if row[name] is None else f"{row[name]:,}" for name in _COLUMNS),
            row["address"],
        )
        for row in group["replicas"]
    ]
    head = ("REPLICA", "IN SYNC", "CONNECTED", "APPENDED", "FLUSHED", "LAG BYTES", "LAG MS")
    echo_table((*head, "BYTES/S", "ADDRESS"), rows)
    _show_care(group)


def _show_care(group: Status) -> None:
    """Only what somebody should know."""
    for row in group["care"]:
        name = f"  replica {row['replica']}"
        damage = row["damage"]
        if damage is not None:
            click.echo(
                f"{name}: its log is damaged from {damage['position']:,} to {damage['end']:,}, and"
                f" to be mended by another member: {damage['reason']}"
            )
        if row["stopped"] is not None:
            click.echo(f"{name} is excluded: {row['stopped']}")
        if row["repairs"]:
            click.echo(
                f"{name}: {row['repairs']} repairs since its start, {row['repaired_bytes']:,} bytes"
            )
        if row["quarantine_files"]:
            click.echo(
                f"{name}: {row['quarantine_files']} files with {row['quarantine_bytes']:,} replaced"
                " bytes in quarantine/"
            )
