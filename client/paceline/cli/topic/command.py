"""`paceline topic`: create, alter, remap, list, describe, delete."""

import sys
from typing import TYPE_CHECKING, Any

import click

from paceline.cli.asking import ask
from paceline.cli.needs import Group
from paceline.cli.options import Connect, cluster_options, find_topic, open_cluster, run_async
from paceline.cli.output import echo_json, echo_table
from paceline.cli.topic import alter, static
from paceline.cli.topic.alter import spread, topic_options
from paceline.cli.topic.static import echo_segments, groups_option, logical_queues_option
from paceline.errors import PacelineError
from paceline.wire.topic_commands import QUEUES_MAX

if TYPE_CHECKING:
    from paceline.net.cluster import Cluster
    from paceline.types import GroupName
    from paceline.wire.cluster import ClusterView, TopicView

QUEUES_DEFAULT = 8
_CALL_TIMEOUT_MS = 2_000


@click.group("topic", cls=Group)
def command() -> None:
    """Create, alter, remap, list, describe, delete topics."""


@command.command("create")
@click.argument("name")
@click.option(
    "--queues",
    type=click.IntRange(1, QUEUES_MAX),
    default=None,
    help=f"Queues in each broker group. [default: {QUEUES_DEFAULT}]",
)
@logical_queues_option
@groups_option
@topic_options
@cluster_options
def create(
    name: str,
    queues: int | None,
    logical_queues: int | None,
    groups: tuple[str, ...],
    perm: int | None,
    message_type: str | None,
    attributes: dict[str, str | None],
    connect: Connect,
    as_json: bool,
) -> None:
    """Create the topic NAME in every broker group."""
    _check(name)
    if logical_queues is None and groups:
        raise click.UsageError("--group is for static topics: say --logical-queues as well")
    if logical_queues is not None and queues is not None:
        raise click.UsageError("a static topic has --logical-queues: leave --queues out")
    options: dict[str, Any] = {"perm": perm, "message_type": message_type, "queues": queues}
    options |= {"logical_queues": logical_queues, "groups": groups or None}
    options = {key: value for key, value in options.items() if value is not None}
    options["attributes"] = {key: value for key, value in attributes.items() if value is not None}
    topic = ask(connect, lambda admin: admin.topics.create(name, **options))
    if as_json:
        echo_json(topic.to_json())
    else:
        click.echo(f"topic {topic.topic} created: {spread(topic)}")


alter.add_to(command)
static.add_to(command)


@command.command("list")
@click.option("--system", is_flag=True, help="Also the topics that brokers make for themselves.")
@cluster_options
def list_(system: bool, connect: Connect, as_json: bool) -> None:
    """List all topics by name."""
    view = run_async(_view(connect))
    found = [view.topics[name] for name in sorted(view.topics)]
    topics = [topic for topic in found if system or not topic.is_system]
    if as_json:
        for topic in topics:
            echo_json(topic.to_json())
    elif topics:
        rows = [
            (topic.topic, str(topic.topic_id), str(sum(topic.queues.values())), _groups(topic))
            for topic in topics
        ]
        echo_table(("TOPIC", "ID", "QUEUES", "GROUPS"), rows)
    else:
        click.echo("no topics yet; create one with `paceline topic create NAME`", err=True)


@command.command("describe")
@click.argument("name")
@cluster_options
def describe(name: str, connect: Connect, as_json: bool) -> None:
    """Show the queues of the topic NAME, their masters and how many messages they hold."""
    _check(name, is_read=True)
    topic, rows = run_async(_describe(connect, name))
    if as_json:
        echo_json({**topic.to_json(), "ranges": rows})
        return
    total = sum(row["end"] - row["start"] for row in rows if row["end"] is not None)
    is_whole = all(row["end"] is not None for row in rows)
    count = f"{total:,}" if is_whole else f"at least {total:,} (a group does not answer)"
    click.echo(f"topic {topic.topic}, id {topic.topic_id}: {spread(topic)}, messages: {count}")
    echo_table(
        ("GROUP", "QUEUE", "START", "END", "MASTER"),
        [
            tuple(
                "-" if row[key] is None else str(row[key])
                for key in ("group", "queue", "start", "end", "master")
            )
            for row in rows
        ],
    )
    if topic.is_static:
        echo_segments(topic)


@command.command("delete")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@cluster_options
def delete(name: str, yes: bool, connect: Connect, as_json: bool) -> None:
    """Delete the topic NAME with all its messages."""
    _check(name)
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("deleting a topic loses its messages: say --yes")
        click.confirm(f"Delete topic {name} and all its messages?", abort=True)
    ask(connect, lambda admin: admin.topics.delete(name))
    if as_json:
        echo_json({"topic": name, "deleted": True})
    else:
        click.echo(f"topic {name} deleted")


def _check(name: str, *, is_read: bool = False) -> None:
    """Refuse a bad name before any connection is made."""
    from paceline.wire.names import check_readable_topic_name, check_topic_name

    check = check_readable_topic_name if is_read else check_topic_name
    check(name)


def _groups(topic: "TopicView") -> str:
    return ", ".join(f"{group}:{count}" for group, count in sorted(topic.queues.items()))


async def _view(connect: Connect) -> "ClusterView":
    async with open_cluster(connect) as cluster:
        assert cluster.view is not None
        return cluster.view


async def _describe(connect: Connect, name: str) -> "tuple[TopicView, list[dict[str, Any]]]":
    """The topic, and a row for each queue; start and end are None where no master answers."""
    async with open_cluster(connect) as cluster:
        topic = await find_topic(cluster, name)
        rows: list[dict[str, Any]] = []
        for group, count in sorted(topic.queues.items()):
            rows += await _ranges(cluster, topic, group, count)
        return topic, rows


async def _ranges(
    cluster: "Cluster", topic: "TopicView", group: "GroupName", count: int
) -> list[dict[str, Any]]:
    from paceline.queues import master_address
    from paceline.wire.calls.offsets import Ends, QueueOf, RangeRow

    assert cluster.view is not None
    master = master_address(cluster.view, group)
    found: dict[int, RangeRow] = {}
    if master is not None:
        rows = [QueueOf(topic_id=topic.topic_id, queue=queue) for queue in range(count)]
        try:
            connection = await cluster.connect(master, group)
            try:
                answer, _ = await connection.call(Ends(queues=rows), timeout_ms=_CALL_TIMEOUT_MS)
            finally:
                connection.close()
            found = {row.queue: row for row in answer.queues}
        except PacelineError as error:
            click.echo(f"paceline: group {group}: {error.message}", err=True)
    return [
        {
            "group": group,
            "queue": queue,
            "start": found[queue].start if queue in found else None,
            "end": found[queue].end if queue in found else None,
            "master": master,
        }
        for queue in range(count)
    ]
