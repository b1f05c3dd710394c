"""`paceline pull`: print messages of a topic from wherever one likes, without a consumer group."""

import re
from typing import TYPE_CHECKING

import click

from paceline.cli.filters import filter_options
from paceline.cli.needs import Command
from paceline.cli.options import Connect, cluster_options, find_readable, open_cluster, run_async
from paceline.cli.output import echo_messages
from paceline.errors import (
    BadRequestError,
    DeadlineError,
    OffsetOutOfRangeError,
    QueueNotFoundError,
)

if TYPE_CHECKING:
    from paceline.consumer.pull import PullConsumer, QueueRange
    from paceline.filters import Filter
    from paceline.message import ReceivedMessage
    from paceline.queues import QueueName
    from paceline.types import QueueOffset
    from paceline.wire.cluster import TopicView

FIRST, LAST = "first", "last"
STALL_MS = 10_000
"""Messages are known to be there and none comes: long enough for a failover."""
LOOK_MS = 250
"""Between two looks whether the end is reached, where no message of it is wanted."""
FOLLOW_MS = 60_000
POLL_MESSAGES_MAX = 65_535
"""A whole batch: each poll decodes its batch once."""
_OFFSET = re.compile(r"first|last|[0-9]{1,18}", re.ASCII)
_QUEUE = re.compile(r"(?:([A-Za-z0-9._-]{1,127})/)?([0-9]{1,5})", re.ASCII)


@click.command("pull", cls=Command)
@click.argument("topic")
@click.option("--queue", metavar="[GROUP/]QUEUE", help="Only this queue; else all of the topic.")
@click.option(
    "--offset",
    default=FIRST,
    show_default=True,
    metavar="N|first|last",
    help="Where to begin: N needs --queue; last = only what comes from now on.",
)
@click.option("--max", "count_max", type=click.IntRange(1), help="End after so many messages.")
@click.option(
    "--wait-ms",
    type=click.IntRange(0, 86_400_000),
    default=0,
    show_default=True,
    help="At the end, wait so long for one more message.",
)
@click.option("--follow", is_flag=True, help="At the end, wait for more until Ctrl-C.")
@filter_options
@cluster_options
def command(
    topic: str,
    queue: str | None,
    offset: str,
    count_max: int | None,
    wait_ms: int,
    follow: bool,
    wanted: "Filter",
    connect: Connect,
    as_json: bool,
) -> None:
    """Print messages of a topic, without a group.

    Prints each message's body on a line, from the first offset to the end, in order within each
    queue. Nothing is committed: the same call prints the same messages again.
    """
    from paceline.wire.names import check_readable_topic_name

    check_readable_topic_name(topic)
    if _OFFSET.fullmatch(offset) is None:
        raise click.UsageError(f"--offset {offset!r} is no number, first or last")
    if queue is not None:
        check_queue(queue)
    run_async(
        _pull(
            connect,
            topic,
            queue,
            offset,
            count_max=count_max,
            wait_ms=FOLLOW_MS if follow else wait_ms,
            follow=follow,
            wanted=wanted,
            as_json=as_json,
        ),
        is_bulk=True,
    )


async def _pull(
    connect: Connect,
    topic: str,
    queue: str | None,
    offset: str,
    *,
    count_max: int | None,
    wait_ms: int,
    follow: bool,
    wanted: "Filter",
    as_json: bool,
) -> None:
    from paceline.consumer.pull import PullConsumer

    async with open_cluster(connect) as cluster:
        names = choose_queues(await find_readable(cluster, topic), queue)
        async with PullConsumer(cluster) as consumer:
            ranges = await consumer.ranges(names)
            starts = {name: start_of(name, ranges[name], offset, len(names)) for name in names}
            await consumer.assign(starts, wanted=wanted)
            unread = {name: ranges[name].end for name in names if starts[name] < ranges[name].end}
            left = count_max
            while left is None or left > 0:
                messages = await _next(consumer, unread, left, wait_ms)
                if messages:
                    echo_messages(messages, as_json=as_json)
                    left = None if left is None else left - len(messages)
                elif not unread and not follow:
                    return


def check_queue(queue: str) -> None:
    """UsageError unless it is like "3" or "g1/3"."""
    if _QUEUE.fullmatch(queue) is None:
        raise click.UsageError(f"--queue {queue!r} is not like 3 or g1/3")


def choose_queues(topic: "TopicView", queue: str | None) -> "list[QueueName]":
    """All queues, or the one that "3" or "g1/3" names; QueueNotFoundError, BadRequestError."""
    from paceline.queues import QueueName
    from paceline.types import QueueId

    names = [
        QueueName(topic.topic, group, QueueId(number))
        for group, count in sorted(topic.queues.items())
        for number in range(count)
    ]
    if queue is None:
        return names
    matched = _QUEUE.fullmatch(queue)
    assert matched is not None, queue
    group, number = matched[1], int(matched[2])
    found = [name for name in names if name.queue_id == number and group in (None, name.group)]
    if not found:
        counts = ", ".join(f"{group}: 0 to {count - 1}" for group, count in topic.queues.items())
        raise QueueNotFoundError(
            f"topic {topic.topic} has no queue {queue}; it has {counts}", queue=queue
        )
    if len(found) > 1:
        choices = " or ".join(f"{name.group}/{name.queue_id}" for name in found)
        raise BadRequestError(f"queue {queue} is in several groups: say {choices}", field="queue")
    return found


def start_of(name: "QueueName", found: "QueueRange", offset: str, count: int) -> int:
    """The offset where to begin in a queue, checked against what it has."""
    if offset == FIRST:
        return found.start
    if offset == LAST:
        return found.end
    if count > 1:
        raise BadRequestError(
            f"--offset {offset} needs --queue: topic {name.topic} has {count} queues",
            field="offset",
        )
    wanted = int(offset)
    if not found.start <= wanted <= found.end:
        raise OffsetOutOfRangeError(
            f"offset {wanted} is not in queue {name.group}/{name.queue_id} of {name.topic},"
            f" which has {found.start} to {found.end} (the next message's)",
            start=found.start,
            end=found.end,
        )
    return wanted


async def _next(
    consumer: "PullConsumer", unread: "dict[QueueName, QueueOffset]", left: int | None, wait_ms: int
) -> "list[ReceivedMessage]":
    """The next messages, or none: at the end of all queues, after `wait_ms`.

    `unread` maps queues to the ends they had when we began; what is reached leaves it.
    """
    if not unread and not wait_ms:
        return []
    waited_ms = 0
    messages: list[ReceivedMessage] = []
    while not messages and waited_ms < (STALL_MS if unread else wait_ms):
        step_ms = LOOK_MS if unread else wait_ms
        try:
            messages = await consumer.poll(
                max_messages=min(left or POLL_MESSAGES_MAX, POLL_MESSAGES_MAX), timeout_ms=step_ms
            )
        except OffsetOutOfRangeError as error:
            goes_on_at = error.details.get("goes_on_at")
            if goes_on_at is None:
                raise
            click.echo(f"paceline: {error.message}; going on at {goes_on_at}", err=True)
            return await _next(consumer, unread, left, wait_ms)
        # Also without messages: a filter passes over them, and the last records may be others.
        reached = [name for name in unread if consumer.position(name) >= unread[name]]
        for name in reached:
            del unread[name]
        if reached and not messages:
            return []
        waited_ms += step_ms
    if unread and not messages:
        name = min(unread)
        raise DeadlineError(
            f"{name.topic} {name.group}/{name.queue_id} has messages up to {unread[name]}, and"
            f" its broker gave none for {STALL_MS // 1000} s; is there a master?"
            " (`paceline cluster status`)"
        )
    return messages
