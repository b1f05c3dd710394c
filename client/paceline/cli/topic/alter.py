"""`paceline topic alter`, and what it shares with `create`: the options of a topic."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from paceline.cli.asking import ask
from paceline.cli.needs import Command
from paceline.cli.options import Connect, cluster_options
from paceline.cli.output import echo_json
from paceline.wire.static_topics import LOGICAL_QUEUES_MAX
from paceline.wire.topic_commands import QUEUES_MAX
from paceline.wire.topics import MESSAGE_TYPES, PERM_BOTH, PERM_READ, PERM_WRITE

if TYPE_CHECKING:
    from paceline.wire.cluster import TopicView

_PERMS = {
    "r": PERM_READ,
    "w": PERM_WRITE,
    "rw": PERM_BOTH,
    "none": 0,
    "2": PERM_WRITE,
    "4": PERM_READ,
    "6": PERM_BOTH,
    "0": 0,
}
"""RocketMQ's numbers are understood too."""
Function = Callable[..., Any]


def queue_option(name: str, text: str) -> Callable[[Function], Function]:
    return click.option(name, type=click.IntRange(1, QUEUES_MAX), default=None, help=text)


def topic_options(command: Function) -> Function:
    """Permissions, message type and attributes."""
    options = (
        click.option(
            "--perm",
            type=click.Choice(list(_PERMS), case_sensitive=False),
            default=None,
            callback=lambda context, option, value: None if value is None else _PERMS[value],
            help="What clients may do: r, w, rw (RocketMQ's 4, 2, 6) or none.",
        ),
        click.option(
            "--message-type",
            "--type",
            "message_type",
            type=click.Choice(MESSAGE_TYPES, case_sensitive=False),
            default=None,
            help="What the topic takes; MIXED takes everything.",
        ),
        click.option(
            "--attribute",
            "attributes",
            multiple=True,
            metavar="NAME=VALUE",
            callback=_attributes,
            help="An attribute of the topic; without a value it is taken away. Repeatable.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _attributes(
    context: click.Context, option: click.Parameter, pairs: tuple[str, ...]
) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator:
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE")
        found[name] = value or None
    return found


def add_to(group: click.Group) -> None:
    group.add_command(alter)


@click.command("alter", cls=Command)
@click.argument("name")
@queue_option("--queues", "Queues in each broker group, to read and to write.")
@queue_option("--read-queues", "Queues that consumers read.")
@queue_option("--write-queues", "Queues that producers send to; lower these first to shrink.")
@click.option(
    "--logical-queues",
    type=click.IntRange(1, LOGICAL_QUEUES_MAX),
    default=None,
    help="More logical queues of a static topic, in all; nothing else with it.",
)
@topic_options
@click.option("--force", is_flag=True, help="Shrink although messages are left unread.")
@cluster_options
def alter(
    name: str,
    queues: int | None,
    read_queues: int | None,
    write_queues: int | None,
    logical_queues: int | None,
    perm: int | None,
    message_type: str | None,
    attributes: dict[str, str | None],
    force: bool,
    connect: Connect,
    as_json: bool,
) -> None:
    """Change the topic NAME: its numbers of queues, permissions, message type, attributes.

    To shrink it and lose no message: `--write-queues 4`, let consumers drain the rest, then
    `--read-queues 4`, which is refused while a consumer group has messages left there.
    """
    from paceline.wire.names import check_topic_name

    check_topic_name(name)
    changes: dict[str, Any] = {
        "queues": queues,
        "read_queues": read_queues,
        "write_queues": write_queues,
        "logical_queues": logical_queues,
        "perm": perm,
        "message_type": message_type,
        "attributes": attributes or None,
    }
    if all(value is None for value in changes.values()):
        raise click.UsageError("say what to change, for example --write-queues 4")
    topic = ask(connect, lambda admin: admin.topics.alter(name, force=force, **changes))
    if as_json:
        echo_json(topic.to_json())
    else:
        click.echo(f"topic {topic.topic} altered: {spread(topic)}")


def spread(topic: "TopicView") -> str:
    """One line: the topic's queues, and what is not as usual."""
    parts = []
    if topic.is_static:
        count = len(topic.logical_queues)
        parts.append(f"{count} logical {'queue' if count == 1 else 'queues'}")
    for group, count in sorted(topic.queues.items()):
        written = topic.write_queues.get(group, 0)
        narrow = "" if written == count else f" ({written} written)"
        parts.append(f"{count} {'queue' if count == 1 else 'queues'} in group {group}{narrow}")
    if topic.perm != PERM_BOTH:
        parts.append(f"perm {topic.perm_letters}")
    if topic.message_type != MESSAGE_TYPES[0]:
        parts.append(topic.message_type)
    parts += [f"{name}={value}" for name, value in sorted(topic.attributes.items())]
    return ", ".join(parts) or "no queues"
