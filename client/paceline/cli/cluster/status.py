"""`paceline cluster status`: controllers, groups, masters, sync state sets, positions."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from paceline.cli.cluster.ha_status import command as ha_status
from paceline.cli.cluster.pins import command as pins
from paceline.cli.needs import Group
from paceline.cli.options import Connect, cluster_options, open_cluster, run_async
from paceline.cli.output import echo_json, echo_table
from paceline.wire.cluster import GroupSettings

if TYPE_CHECKING:
    from paceline.net.cluster import Cluster
    from paceline.wire.cluster import ClusterView, GroupView, ReplicaView

Status = dict[str, Any]

_STATUS_TIMEOUT_MS = 1_000
_POSITIONS = ("end", "flushed", "confirm")


@click.group("cluster", cls=Group)
def command() -> None:
    """Show the cluster; elect, clean, recover."""


command.add_command(ha_status)
command.add_command(pins)


@command.command("status")
@cluster_options
def status(connect: Connect, as_json: bool) -> None:
    """Show controllers, broker groups, masters, sync state sets and log positions.

    Exits with 1 when no controller leads, or a group has no master that takes messages.
    """
    document = run_async(_status(connect))
    if as_json:
        echo_json(document)
    else:
        _show(document)
    if not document["is_serving"]:
        raise click.exceptions.Exit(1)


async def _status(connect: Connect) -> Status:
    async with open_cluster(connect) as cluster:
        view = cluster.view
        assert view is not None
        replicas = [
            replica
            for name in sorted(view.groups)
            for _, replica in sorted(view.groups[name].replicas.items())
        ]
        controllers, brokers = await asyncio.gather(
            _ask(cluster, view.controllers),
            _ask(cluster, [replica.client_address for replica in replicas]),
        )
        return describe(view, controllers, brokers)


async def _ask(cluster: "Cluster", addresses: Sequence[str]) -> dict[str, Status | None]:
    """`/v1/status` of nodes by address; None: no answer, which is part of the picture."""
    ask = partial(cluster.http.get_if_answered, path="/v1/status", timeout_ms=_STATUS_TIMEOUT_MS)
    answers = await asyncio.gather(*(ask(address) for address in addresses))
    return dict(zip(addresses, answers, strict=True))


def describe(
    view: "ClusterView",
    controllers: Mapping[str, Status | None],
    brokers: Mapping[str, Status | None],
) -> Status:
    """The picture as one JSON document, from the published view and what each node said."""
    groups = [_group(view.groups[name], brokers) for name in sorted(view.groups)]
    rows = [_controller(address, said) for address, said in controllers.items()]
    return {
        "cluster_id": view.cluster_id,
        "version": view.version,
        "topics": len(view.topics),
        "is_serving": bool(groups)
        and all(group["is_open"] for group in groups)
        and any(row["role"] == "leader" for row in rows),
        "controllers": rows,
        "groups": groups,
    }


def _controller(address: str, said: Status | None) -> Status:
    known = said or {}
    return {
        "address": address,
        "controller_id": known.get("controller_id"),
        "role": known.get("role"),
        "term": known.get("term"),
        "applied_index": known.get("applied_index"),
    }


def _group(group: "GroupView", brokers: Mapping[str, Status | None]) -> Status:
    replicas = [
        _replica(group, replica, brokers.get(replica.client_address))
        for _, replica in sorted(group.replicas.items())
    ]
    return {
        "group": group.group,
        "master": group.master,
        "acting": group.acting,
        "epoch": group.master_epoch,
        "is_open": any(row["is_open"] for row in replicas),
        "sync_state_set": sorted(group.sync_state_set),
        "set_epoch": group.set_epoch,
        "settings": group.settings.to_json(),
        "is_write_wiped": group.is_write_wiped,
        "replicas": replicas,
    }


def _replica(group: "GroupView", replica: "ReplicaView", said: Status | None) -> Status:
    # Another process may have taken the port of a broker that died.
    is_it = said is not None and (
        (said.get("group"), said.get("replica_id")) == (group.group, replica.replica_id)
    )
    known = said if said is not None and is_it else {}
    is_master = replica.replica_id == group.master and known.get("role") == "master"
    return {
        "replica_id": replica.replica_id,
        "address": replica.client_address,
        "role": known.get("role"),
        "epoch": known.get("epoch"),
        "in_sync": replica.replica_id in group.sync_state_set,
        "is_learner": replica.is_learner,
        "is_open": is_master and bool(known.get("is_open")),
        "is_healthy": known.get("is_healthy"),
        "stopped": known.get("stopped"),
        "damage": known.get("care", {}).get("damage"),
        **{name: known.get(name) for name in _POSITIONS},
    }


def _show(document: Status) -> None:
    click.echo(
        f"cluster {document['cluster_id']}, version {document['version']},"
        f" topics: {document['topics']}"
    )
    click.echo()
    echo_table(
        ("CONTROLLER", "ROLE", "TERM", "APPLIED", "ADDRESS"),
        [
            (
                _text(row["controller_id"]),
                row["role"] or "no answer",
                _text(row["term"]),
                _text(row["applied_index"]),
                row["address"],
            )
            for row in document["controllers"]
        ],
    )
    for group in document["groups"]:
        click.echo()
        _show_group(group)
    if not document["is_serving"]:
        click.echo()
        click.echo(_trouble(document))


def _weaker(settings: Status) -> str:
    """What the group has given up (R37); "" by default."""
    if settings["all_ack_in_sync_state_set"]:
        return ""
    count, minimum = settings["in_sync_replicas"], settings["min_in_sync_replicas"]
    if settings["enable_auto_in_sync_replicas"]:
        return f", answers UNCONFIRMED with {minimum} to {max(count, minimum)} copies"
    return f", answers UNCONFIRMED with {count} of the copies"


def _show_group(group: Status) -> None:
    settings = group["settings"]
    master = "no master" if group["master"] is None else f"master {group['master']}"
    if group["acting"] is not None:
        master = f"no master, replica {group['acting']} acts for reads"
    in_sync = ", ".join(map(str, group["sync_state_set"]))
    click.echo(
        f"group {group['group']}: {master} in epoch {group['epoch']}, in sync {in_sync or 'none'}"
        f" of {settings['total_replicas']}"
        f" (at least {GroupSettings.from_json(settings).required_in_sync_replicas}),"
        f" durability {settings['durability']}{_weaker(settings)}"
        + (", takes no messages (write permission wiped)" if group["is_write_wiped"] else "")
    )
    rows = []
    for row in group["replicas"]:
        rows.append(
            (
                str(row["replica_id"]),
                row["role"] or "no answer",
                _text(row["epoch"]),
                "yes" if row["in_sync"] else "learner" if row["is_learner"] else "no",
                *(_text(row[name]) for name in _POSITIONS),
                row["address"],
            )
        )
    echo_table(
        ("REPLICA", "ROLE", "EPOCH", "IN SYNC", "END", "FLUSHED", "CONFIRM", "ADDRESS"), rows
    )
    for row in group["replicas"]:
        if row["damage"] is not None:
            click.echo(f"replica {row['replica_id']}: {row['damage']['reason']}")
        if row["stopped"] is not None:
            click.echo(f"replica {row['replica_id']} is excluded: {row['stopped']}")


def _trouble(document: Status) -> str:
    """One sentence for whoever has to act."""
    if all(row["role"] != "leader" for row in document["controllers"]):
        return "No controller leads: nobody can be elected until a majority of them runs."
    if not document["groups"]:
        return "No broker has registered yet; `paceline cluster recover` shows stores that wait."
    unbegun = [group["group"] for group in document["groups"] if group["epoch"] == 0]
    if unbegun:
        return (
            f"Group {', '.join(unbegun)} has not begun: too few of its brokers have registered, or"
            " stores with its records wait (`paceline cluster recover`)."
        )
    closed = [group["group"] for group in document["groups"] if not group["is_open"]]
    return (
        f"No master takes messages in group {', '.join(closed)}: `paceline cluster ha-status` says"
        " what it waits for."
    )


def _text(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else str(value)
