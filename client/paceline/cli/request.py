"""`paceline request` and `paceline reply`: ask the consumers of a topic, and answer."""

import asyncio
from typing import TYPE_CHECKING

import click

from paceline.cli.needs import Command
from paceline.cli.options import (
    Connect,
    cluster_options,
    find_or_make_topic,
    find_topic,
    open_cluster,
    run_async,
)
from paceline.cli.output import echo_messages
from paceline.errors import NotAuthorizedError, PacelineError

if TYPE_CHECKING:
    from paceline.message import Message, ReceivedMessage
    from paceline.producer.producer import Producer
    from paceline.queues import QueueKey

TIMEOUT_MS_MAX = 3_600_000


@click.command("request", cls=Command)
@click.argument("topic")
@click.argument("text")
@click.option("--key", help="Key of the request.")
@click.option("--tag", help="Tag of the request.")
@click.option(
    "--timeout-ms",
    type=click.IntRange(1, TIMEOUT_MS_MAX),
    default=3_000,
    show_default=True,
    help="Give up when no reply came for so long.",
)
@cluster_options
def request_command(
    topic: str,
    text: str,
    key: str | None,
    tag: str | None,
    timeout_ms: int,
    connect: Connect,
    as_json: bool,
) -> None:
    """Send a request to a topic and print the reply.

    One of the topic's consumers answers (`paceline reply`, or Producer.reply in Python).
    """
    from paceline.message import Message
    from paceline.wire.names import check_topic_name

    check_topic_name(topic)
    message = Message(topic, text.encode(errors="surrogateescape"), key, tag)
    reply = run_async(_request(connect, message, timeout_ms))
    echo_messages([reply], as_json=as_json)


async def _request(connect: Connect, message: "Message", timeout_ms: int) -> "ReceivedMessage":
    from paceline.producer.producer import Producer

    async with open_cluster(connect) as cluster:
        await find_or_make_topic(cluster, message.topic)
        async with Producer(cluster) as producer:
            return await producer.request(message, timeout_ms=timeout_ms)


@click.command("reply", cls=Command)
@click.argument("topic")
@click.argument("text", required=False)
@click.option("--group", required=True, help="The consumer group that answers.")
@click.option("--max", "count_max", type=click.IntRange(1), help="End after so many requests.")
@cluster_options
def reply_command(
    topic: str,
    text: str | None,
    group: str,
    count_max: int | None,
    connect: Connect,
    as_json: bool,
) -> None:
    """Answer the requests of a topic as a member of a consumer group.

    TEXT is the reply to each request; without it the request's own body is. Prints what is
    answered. Messages that are no requests are passed over.
    """
    from paceline.wire.names import check_name, check_topic_name

    check_topic_name(topic)
    check_name(group, "group")
    body = None if text is None else text.encode(errors="surrogateescape")
    run_async(_reply(connect, topic, group, _Replier(body, count_max, as_json=as_json)))


class _Replier:
    """The listener that answers."""

    def __init__(self, body: bytes | None, count_max: int | None, *, as_json: bool) -> None:
        self.producer: Producer | None = None
        self.is_over = asyncio.Event()
        self.error: PacelineError | None = None
        """What the cluster refuses."""
        self._body = body
        self._left = count_max
        self._as_json = as_json

    async def listen(self, message: "ReceivedMessage") -> None:
        """Answer one request; returning means that the group is done with it."""
        from paceline.wire.properties import CORRELATION_ID

        assert self.producer is not None
        if self.is_over.is_set():
            raise _NotWantedError
        if CORRELATION_ID not in message.properties:
            return
        try:
            await self.producer.reply(message, message.body if self._body is None else self._body)
        except NotAuthorizedError as error:
            self.refused(None, error)
            raise
        echo_messages([message], as_json=self._as_json)
        if self._left is not None:
            self._left -= 1
            if self._left <= 0:
                self.is_over.set()

    def refused(self, queue: "QueueKey | None", error: PacelineError) -> None:
        """A command does not wait until somebody allows it."""
        if queue is None:
            self.error = error
            self.is_over.set()


class _NotWantedError(Exception):
    """We have answered all we wanted: the request stays with the group."""


async def _reply(connect: Connect, topic: str, group: str, replier: _Replier) -> None:
    from paceline.consumer.push import PushConsumer, PushSettings
    from paceline.producer.producer import Producer

    async with open_cluster(connect) as cluster:
        await find_topic(cluster, topic)
        async with Producer(cluster) as producer:
            replier.producer = producer
            async with PushConsumer(
                cluster,
                group=group,
                topics=[topic],
                listener=replier.listen,
                on_error=replier.refused,
                settings=PushSettings(start="first", concurrency=1),
            ):
                await replier.is_over.wait()
    if replier.error is not None:
        raise replier.error
