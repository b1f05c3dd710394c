"""`paceline consume`: be a member of a consumer group and print what it is given."""

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from paceline.cli.filters import filter_options
from paceline.cli.group.offsets import parse_target
from paceline.cli.needs import Command
from paceline.cli.options import Connect, cluster_options, find_readable, open_cluster, run_async
from paceline.cli.output import echo_messages
from paceline.errors import PacelineError
from paceline.platform.runtime import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.consumer.fetch.gaps import Gap
    from paceline.consumer.ordered import OrderedConsumer
    from paceline.consumer.push import PushConsumer
    from paceline.filters import Filter, Subscription
    from paceline.message import ReceivedMessage
    from paceline.net.cluster import Cluster
    from paceline.queues import QueueKey

    _Start = dict[str, Any]
    _Make = Callable[
        [Cluster, str, Subscription, _Start, "_Printer"], PushConsumer | OrderedConsumer
    ]


BROADCASTING = "broadcasting"


@click.command("consume", cls=Command)
@click.argument("topic")
@click.option("--group", required=True, help="The consumer group; its members share the queues.")
@click.option(
    "--from",
    "start",
    default="first",
    show_default=True,
    help="Where the group begins on a queue it has never consumed: first, last, a time like "
    '2026-01-31T12:00 (UTC), or 90m ago: "-90m".',
)
@click.option(
    "--ordered",
    is_flag=True,
    help="Each queue in order, under its lock: all members of the group must say so.",
)
@click.option(
    "--broadcasting",
    is_flag=True,
    help="Get every message, whoever else is there; this machine keeps the offsets.",
)
@click.option("--client-id", help="With --broadcasting: whose offsets on this machine.")
@click.option(
    "--offsets-folder",
    help="With --broadcasting: where they are kept; ~/.paceline/offsets by default.",
)
@click.option("--max", "count_max", type=click.IntRange(1), help="End after so many messages.")
@click.option(
    "--idle-exit-ms",
    type=click.IntRange(1, 86_400_000),
    help="End when no message came for so long; else at Ctrl-C.",
)
@filter_options
@cluster_options
def command(
    topic: str,
    group: str,
    start: str,
    ordered: bool,
    broadcasting: bool,
    client_id: str | None,
    offsets_folder: str | None,
    count_max: int | None,
    idle_exit_ms: int | None,
    wanted: "Filter",
    connect: Connect,
    as_json: bool,
) -> None:
    """Consume a topic as a member of a consumer group.

    Prints each message's body on a line. The group's offsets move on as messages are printed, so
    the next call goes on where this one ended.
    """
    from paceline.filters import Subscription
    from paceline.wire.names import check_name, check_topic_name

    check_topic_name(topic)
    check_name(group, "group")
    printer = _Printer(count_max, as_json=as_json)
    make: _Make = _ordered if ordered else _concurrent
    if broadcasting:
        if ordered:
            raise click.UsageError("a broadcasting member takes no locks: not with --ordered")
        make = partial(_concurrent, folder=offsets_folder, client_id=client_id, model=BROADCASTING)
    elif client_id is not None or offsets_folder is not None:
        raise click.UsageError("--client-id and --offsets-folder are for --broadcasting")
    subscription = Subscription(topic, wanted)
    begin = _beginning(start, now_ms=SystemClock().unix_ms())
    run_async(
        _consume(connect, subscription, group, begin, idle_exit_ms, printer, make),
        is_bulk=True,
        told=("offset_out_of_range", "listener_late"),  # `missed`, `printed_again`
    )


def _beginning(text: str, *, now_ms: int) -> dict[str, Any]:
    """What `--from` says, as settings of a consumer. UsageError."""
    # An offset is another message in each queue: paceline group reset.
    target = parse_target(text, now_ms=now_ms, option="--from", takes_offset=False)
    if "to" in target:
        return {"start": target["to"]}
    return {"start": "timestamp", "consume_timestamp": target["unix_ms"]}


async def _consume(
    connect: Connect,
    subscription: "Subscription",
    group: str,
    start: "_Start",
    idle_exit_ms: int | None,
    printer: "_Printer",
    make: "_Make",
) -> None:
    async with open_cluster(connect) as cluster:
        await find_readable(cluster, subscription.topic)
        async with make(cluster, group, subscription, start, printer):
            await printer.wait_end(idle_exit_ms)
    if printer.error is not None:
        raise printer.error


def _concurrent(
    cluster: "Cluster",
    group: str,
    topic: "Subscription",
    start: "_Start",
    printer: "_Printer",
    *,
    model: str = "clustering",
    folder: str | None = None,
    client_id: str | None = None,
) -> "PushConsumer":
    from paceline.consumer.push import PushConsumer, PushSettings

    # What is not printed stays in its queue: sent back it would come late, and as failed once.
    settings = PushSettings(**start, message_model=model, send_back=False)
    if folder is not None:
        settings = replace(settings, offsets_folder=folder)
    return PushConsumer(
        cluster,
        group=group,
        topics=[topic],
        listener=printer.listen,
        settings=settings,
        client_id=client_id,
        on_gap=printer.missed,
        on_error=printer.refused,
    )


def _ordered(
    cluster: "Cluster", group: str, topic: "Subscription", start: "_Start", printer: "_Printer"
) -> "OrderedConsumer":
    from paceline.consumer.ordered import OrderedConsumer, OrderedSettings

    return OrderedConsumer(
        cluster,
        group=group,
        topics=[topic],
        listener=printer.listen,
        settings=OrderedSettings(**start),
        on_gap=printer.missed,
        on_error=printer.refused,
        on_late=printer.printed_again,
    )


def _not_wanted() -> Exception:
    """The answer to a message that stays with the group."""
    from paceline.consumer.settings.ordered import SUSPEND_MS_MAX, SuspendQueueError

    return SuspendQueueError(SUSPEND_MS_MAX)


class _Printer:
    """The listener: prints messages until it has enough."""

    def __init__(self, count_max: int | None, *, as_json: bool) -> None:
        self.error: Exception | None = None
        """Why nothing more can be printed, e.g. because the reader of our pipe has gone, or since
        the cluster refuses it."""
        self._left = count_max
        self._as_json = as_json
        self._news = asyncio.Event()

    async def listen(self, message: "ReceivedMessage") -> None:
        """Print one message; returning means that the group is done with it.

        What came beyond the wanted ones stays with the group, for its next member: not a failure.
        """
        if self._is_over():
            raise _not_wanted()
        try:
            echo_messages([message], as_json=self._as_json)
        except OSError as error:
            self.error = error
            raise _not_wanted() from error
        finally:
            self._news.set()
        if self._left is not None:
            self._left -= 1

    def refused(self, queue: "QueueKey | None", error: PacelineError) -> None:
        """The cluster does not let us consume: a command does not wait until somebody allows it."""
        if queue is None:
            self.error = error
            self._news.set()

    def missed(self, gap: "Gap") -> None:
        """Messages that the group will never see."""
        click.echo(f"paceline: {gap}; going on at {gap.end}", err=True)

    def printed_again(self, message: "ReceivedMessage") -> None:
        """Our lock had run out when it was printed: it stays with the group."""
        where = f"{message.group}/{message.queue_id} offset {message.queue_offset}"
        click.echo(
            f"paceline: {where} was printed past the lock's lease, and comes again", err=True
        )

    async def wait_end(self, idle_exit_ms: int | None) -> None:
        """Return after the last wanted message, or when none came for `idle_exit_ms`."""
        idle_s = None if idle_exit_ms is None else idle_exit_ms / 1000
        while not self._is_over():
            self._news.clear()
            try:
                async with asyncio.timeout(idle_s):
                    await self._news.wait()
            except TimeoutError:
                return

    def _is_over(self) -> bool:
        return self._left == 0 or self.error is not None
