"""`paceline delay list|stats`: which delayed messages wait for their time."""

from typing import TYPE_CHECKING

import click

from paceline.cli.needs import Group
from paceline.cli.options import Connect, cluster_options, find_topic, open_cluster, run_async
from paceline.cli.output import echo_json, echo_table, utc_ms

if TYPE_CHECKING:
    from paceline.wire.calls.messages import Delayed

_TIMEOUT_MS = 5_000
_LISTED_MAX = 1000


@click.group("delay", cls=Group)
def command() -> None:
    """Show which delayed messages wait for their time."""


@command.command("list")
@click.argument("topic", required=False)
@click.option(
    "--max",
    "count_max",
    type=click.IntRange(1, _LISTED_MAX),
    default=20,
    show_default=True,
    help="Messages of each broker group at most.",
)
@cluster_options
def list_messages(topic: str | None, count_max: int, connect: Connect, as_json: bool) -> None:
    """Show the messages that are due next, of TOPIC or of all."""
    from paceline.wire.calls.request import to_json

    rows = [
        {"group": group, **message}
        for group, answer in run_async(_ask(connect, topic, count_max)).items()
        for message in to_json(answer.messages)
    ]
    rows.sort(key=lambda row: row["due_unix_ms"])
    if as_json:
        for row in rows:
            echo_json(row)
    elif rows:
        echo_table(
            ["due (UTC)", "topic", "group", "queue", "recall handle"],
            [
                [
                    utc_ms(row["due_unix_ms"]),
                    row["topic"],
                    row["group"],
                    str(row["queue"]),
                    row["recall_handle"],
                ]
                for row in rows
            ],
        )
    else:
        click.echo("no delayed message waits")


@command.command("stats")
@click.argument("topic", required=False)
@cluster_options
def stats(topic: str | None, connect: Connect, as_json: bool) -> None:
    """Show how many messages wait, by broker group and topic, and when the next one is due."""
    from paceline.wire.calls.request import to_json

    answers = run_async(_ask(connect, topic, 0))
    if as_json:
        for group, answer in answers.items():
            echo_json(
                {
                    "group": group,
                    "pending": answer.pending,
                    "topics": to_json(answer.topics),
                    "next_due_unix_ms": answer.next_due_unix_ms,
                }
            )
        return
    for group, answer in answers.items():
        next_due = answer.next_due_unix_ms
        when = "" if next_due is None else f", the next one is due at {utc_ms(next_due)} UTC"
        click.echo(f"group {group}: {answer.pending:,} wait{when}")
        for row in answer.topics:
            click.echo(f"  {row.topic or row.topic_id}: {row.pending:,}")


async def _ask(connect: Connect, topic: str | None, count_max: int) -> "dict[str, Delayed]":
    """The answer of each broker group's master."""
    from paceline.net.group_links import GroupLinks
    from paceline.wire.calls.messages import Delays

    request = Delays(max=count_max)
    async with open_cluster(connect) as cluster:
        if topic is not None:
            request.topic = (await find_topic(cluster, topic)).topic
        view = cluster.view
        assert view is not None
        links = GroupLinks(cluster)
        try:
            return {
                group: (await links.call(group, request, timeout_ms=_TIMEOUT_MS)).answer
                for group in sorted(view.groups)
            }
        finally:
            await links.close()
