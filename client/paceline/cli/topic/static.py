"""`paceline topic remap`, and what `create` and `describe` have for static topics."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from paceline.cli.asking import ask
from paceline.cli.needs import Command
from paceline.cli.options import Connect, cluster_options
from paceline.cli.output import echo_json, echo_table
from paceline.errors import DeadlineError
from paceline.wire.static_topics import LOGICAL_QUEUES_MAX

if TYPE_CHECKING:
    from paceline.admin.client import AdminClient
    from paceline.wire.cluster import TopicView

WAIT_DEFAULT_MS = 10_000
Function = Callable[..., Any]


def logical_queues_option(command: Function) -> Function:
    return click.option(
        "--logical-queues",
        "--static",
        "logical_queues",
        type=click.IntRange(1, LOGICAL_QUEUES_MAX),
        default=None,
        help="Make a static topic: so many logical queues in all, which `topic remap` moves.",
    )(command)


def groups_option(command: Function) -> Function:
    return click.option(
        "--group",
        "groups",
        multiple=True,
        metavar="GROUP",
        help="A broker group for logical queues, in turn; repeatable. [default: all]",
    )(command)


def add_to(group: click.Group) -> None:
    group.add_command(remap)


@click.command("remap", cls=Command)
@click.argument("name")
@click.argument("logical_queue", type=click.IntRange(0, LOGICAL_QUEUES_MAX - 1))
@click.argument("group")
@click.option(
    "--generation",
    type=click.IntRange(0, 2**32 - 1),
    default=None,
    help="Only if the segment that it leaves has this generation.",
)
@click.option(
    "--wait-ms",
    type=click.IntRange(0, 600_000),
    default=WAIT_DEFAULT_MS,
    show_default=True,
    help="How long to wait until it has arrived; 0: not at all.",
)
@cluster_options
def remap(
    name: str,
    logical_queue: int,
    group: str,
    generation: int | None,
    wait_ms: int,
    connect: Connect,
    as_json: bool,
) -> None:
    """Move LOGICAL_QUEUE of the static topic NAME to the broker group GROUP, in use.

    The master of its present group seals the queue there; then it goes on in GROUP. A group that
    has no master cannot seal: the queue moves once it has one again.
    """
    from paceline.wire.names import check_topic_name

    check_topic_name(name)

    async def move(admin: "AdminClient") -> "TopicView":
        topic = await admin.topics.remap_queue(name, logical_queue, group, generation=generation)
        if not wait_ms:
            return topic
        try:
            return await admin.topics.wait_remapped(name, logical_queue, group, timeout_ms=wait_ms)
        except DeadlineError:
            return await admin.topics.get(name)

    topic = ask(connect, move)
    logical = topic.logical_queues[logical_queue]
    last = logical.last
    if as_json:
        echo_json({"topic": name, "logical_queue": logical_queue, **logical.to_json()})
    elif logical.moving_to is None:
        where = f"{last.group}/{last.queue_id} from logical offset {last.start:,}"
        click.echo(f"logical queue {logical_queue} of topic {name} is now {where}")
    else:
        click.echo(
            f"logical queue {logical_queue} of topic {name} is to move from {last.group} to"
            f" {logical.moving_to}: the master of {last.group} has not sealed it yet"
        )


def echo_segments(topic: "TopicView") -> None:
    """A row for each segment of each logical queue; what is on its way is said."""
    rows = []
    for number, logical in enumerate(topic.logical_queues):
        for segment in logical.segments:
            is_leaving = segment is logical.last and logical.moving_to is not None
            state = "open" if segment.end is None else "sealed"
            rows.append(
                (
                    str(number),
                    str(segment.generation),
                    f"{segment.group}/{segment.queue_id}",
                    f"{segment.start:,}",
                    "-" if segment.end is None else f"{segment.end:,}",
                    f"moving to {logical.moving_to}" if is_leaving else state,
                )
            )
    echo_table(("LOGICAL", "GENERATION", "QUEUE", "FROM", "TO", "STATE"), rows)
