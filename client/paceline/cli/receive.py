"""`paceline receive`, `ack` and `change-invisible`: a simple consumer by hand."""

from typing import TYPE_CHECKING, Any

import click
import orjson

from paceline.cli.filters import filter_options
from paceline.cli.needs import Command
from paceline.cli.options import Connect, cluster_options, find_topic, open_cluster, run_async
from paceline.cli.output import echo_json, echo_messages, message_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.consumer.pop.popped_message import PoppedMessage
    from paceline.consumer.simple import SimpleConsumer
    from paceline.filters import Filter, Subscription

MESSAGES_MAX = 32
"""Of one receive; more are received in turn."""


_client_option = click.option(
    "--client-id", help="Which client of a group that broadcasts; a new one by default."
)


@click.command("receive", cls=Command)
@click.argument("topics", nargs=-1, required=True)
@click.option("--group", required=True, help="The consumer group that receives.")
@click.option(
    "--max",
    "count_max",
    type=click.IntRange(1),
    default=MESSAGES_MAX,
    show_default=True,
    help="End after so many messages.",
)
@click.option(
    "--invisible-ms",
    type=click.IntRange(10_000, 43_200_000),
    default=60_000,
    show_default=True,
    help="So long nobody else is given the messages, unless they are acknowledged.",
)
@click.option(
    "--wait-ms",
    type=click.IntRange(0, 20_000),
    default=5_000,
    show_default=True,
    help="Wait so long for a first message.",
)
@click.option("--ack", "is_acked", is_flag=True, help="Acknowledge each message once printed.")
@filter_options
@click.option("--ordered", is_flag=True, help="A queue's next messages when the last are done.")
@_client_option
@cluster_options
def command(
    topics: tuple[str, ...],
    group: str,
    count_max: int,
    invisible_ms: int,
    wait_ms: int,
    is_acked: bool,
    ordered: bool,
    client_id: str | None,
    wanted: "Filter",
    connect: Connect,
    as_json: bool,
) -> None:
    """Receive messages of topics by receipt.

    Prints each message's body on a line; with --json also its handle, which `paceline ack` takes.
    A message that is not acknowledged comes again when its invisible time is over.
    """
    options = {
        "invisible_ms": invisible_ms,
        "wait_ms": wait_ms,
        "ordered": ordered,
    }
    from paceline.filters import Subscription

    asked = [Subscription(topic, wanted) for topic in topics]
    me = {"group": group, "client_id": client_id}
    work = _receive(connect, asked, me, count_max, options, is_acked=is_acked, as_json=as_json)
    run_async(work)


async def _receive(
    connect: Connect,
    topics: "Sequence[Subscription]",
    me: dict[str, Any],
    count_max: int,
    options: dict[str, Any],
    *,
    is_acked: bool,
    as_json: bool,
) -> None:
    from paceline.consumer.settings.simple import SimpleSettings
    from paceline.consumer.simple import SimpleConsumer

    settings = SimpleSettings(**options)
    async with open_cluster(connect) as cluster:
        for topic in topics:
            await find_topic(cluster, topic.topic)
        consumer = SimpleConsumer(cluster, **me, topics=topics, settings=settings)
        async with consumer:
            left = count_max
            while left > 0:
                messages = await _next(
                    consumer, min(left, MESSAGES_MAX), is_first=left == count_max
                )
                if not messages:
                    return
                left -= len(messages)
                _echo(messages, as_json=as_json)
                if is_acked:
                    await consumer.ack(messages)


async def _next(consumer: "SimpleConsumer", count: int, *, is_first: bool) -> "list[PoppedMessage]":
    """Waits for the first messages; afterwards only what is there."""
    return await consumer.receive(count) if is_first else await consumer.receive(count, wait_ms=0)


def _echo(messages: "list[PoppedMessage]", *, as_json: bool) -> None:
    if not as_json:
        echo_messages(messages, as_json=False)
        return
    for message in messages:
        about = {
            "attempt": message.attempt,
            "handle": message.handle,
            "invisible_until_unix_ms": message.invisible_until_unix_ms,
        }
        echo_json({**orjson.loads(message_json(message)), **about})


@click.command("ack", cls=Command)
@click.argument("handles", nargs=-1, required=True)
@click.option("--group", required=True, help="The consumer group that received the messages.")
@_client_option
@cluster_options
def ack(
    handles: tuple[str, ...], group: str, client_id: str | None, connect: Connect, as_json: bool
) -> None:
    """Acknowledge received messages by their handles.

    They are done: nobody of the group is given them again.
    """
    run_async(_ack(connect, handles, {"group": group, "client_id": client_id}))
    if as_json:
        echo_json({"acknowledged": len(handles)})
    else:
        click.echo(f"acknowledged {len(handles)} message{'s' * (len(handles) != 1)}")


async def _ack(connect: Connect, handles: tuple[str, ...], me: dict[str, Any]) -> None:
    from paceline.consumer.simple import SimpleConsumer
    from paceline.wire.receipts import parse_handle

    async with open_cluster(connect) as cluster, SimpleConsumer(cluster, **me) as consumer:
        for handle in handles:
            parse_handle(handle, cluster.namespace.full_group(me["group"]))
        await consumer.ack(handles)


@click.command("change-invisible", cls=Command)
@click.argument("handles", nargs=-1, required=True)
@click.option("--group", required=True, help="The consumer group that received the messages.")
@click.option(
    "--invisible-ms",
    type=click.IntRange(0, 43_200_000),
    required=True,
    help="From now: 10000 or more, or 0 to give them back at once.",
)
@_client_option
@cluster_options
def change_invisible(
    handles: tuple[str, ...],
    group: str,
    invisible_ms: int,
    client_id: str | None,
    connect: Connect,
    as_json: bool,
) -> None:
    """Extend the invisible time of received messages.

    Prints the new handle of each; the old ones are void.
    """
    me = {"group": group, "client_id": client_id}
    run_async(_change_invisible(connect, handles, me, invisible_ms, as_json=as_json))


async def _change_invisible(
    connect: Connect,
    handles: tuple[str, ...],
    me: dict[str, Any],
    invisible_ms: int,
    *,
    as_json: bool,
) -> None:
    from paceline.consumer.simple import SimpleConsumer
    from paceline.wire.receipts import parse_handle

    async with open_cluster(connect) as cluster, SimpleConsumer(cluster, **me) as consumer:
        for handle in handles:
            parse_handle(handle, cluster.namespace.full_group(me["group"]))
        for handle in handles:
            changed, until_unix_ms = await consumer.change_handle(handle, invisible_ms)
            if as_json:
                echo_json({"handle": changed, "invisible_until_unix_ms": until_unix_ms})
            else:
                click.echo(changed)
