"""`paceline send`: a text, lines, a CSV or a JSON-lines file as messages, each acknowledged."""

import sys
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

import click

from paceline.cli.needs import Command
from paceline.cli.options import (
    Connect,
    cluster_options,
    find_or_make_topic,
    open_cluster,
    run_async,
)
from paceline.cli.output import echo_json
from paceline.cli.send.delay import When, delay_options
from paceline.cli.send.ways import Way, say_oneway, send_once, way_options
from paceline.errors import BadRequestError, PacelineError

if TYPE_CHECKING:
    from paceline.cli.send.input import Row, RowReader
    from paceline.cli.send.progress import Progress
    from paceline.message import Message
    from paceline.producer.oneway import OnewayCounts
    from paceline.producer.producer import Producer
    from paceline.producer.results import Sending, SendResult

UNSETTLED_BYTES_MAX = 8 * 1024 * 1024
UNSETTLED_MESSAGES_MAX = 65_536
"""What is sent and not acknowledged; then reading waits. Far below the producer's buffer, far above
what a master can have in the air, so memory is bounded and the speed is not."""
INTERRUPT_WAIT_MS = 2_000
"""After Ctrl-C: how long to wait for the outcome of what is on its way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """What all messages of one call share."""

    topic: str
    key: str | None
    tag: str | None
    properties: dict[str, str] | None
    when: When = When()
    way: Way = Way()

    def message(self, body: bytes, key: str | None = None) -> "Message":
        """One of them."""
        from paceline.message import Message

        when = self.when
        return Message(
            self.topic,
            body,
            key or self.key,
            self.tag,
            self.properties,
            delivery_unix_ms=when.delivery_unix_ms,
            delay_ms=when.delay_ms,
            delay_level=when.delay_level,
            queue=self.way.queue_of(self.topic),
            sharding=self.way.sharding,
            priority=self.way.priority,
        )


@click.command("send", cls=Command)
@click.argument("topic")
@click.argument("text", required=False)
@click.option("--key", help="Key of every message: messages of one key stay in order.")
@click.option("--tag", help="Tag of every message; consumers can filter by it.")
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE")
@click.option("--csv", "csv_file", type=click.File("rb"), help="Each row as a JSON object.")
@click.option("--jsonl", "jsonl_file", type=click.File("rb"), help="Each line, which is JSON.")
@click.option("--key-column", help="Column (or JSON member) that is the message's key.")
@delay_options
@way_options
@click.option(
    "--transaction",
    type=click.Choice(["commit", "rollback", "none"]),
    help="Send TEXT in a transaction, and end it so; none leaves it open.",
)
@click.option(
    "--producer-group",
    default="paceline-cli",
    show_default=True,
    help="With --transaction: whose producers are asked about it while it is open.",
)
@cluster_options
def command(
    topic: str,
    text: str | None,
    key: str | None,
    tag: str | None,
    properties: tuple[str, ...],
    csv_file: BinaryIO | None,
    jsonl_file: BinaryIO | None,
    key_column: str | None,
    when: When,
    way: Way,
    transaction: str | None,
    producer_group: str,
    connect: Connect,
    as_json: bool,
) -> None:
    """Send a text, lines or a file to a topic.

    TEXT is one message. Without it, or with `-`, every line of stdin is one. FILE may be `-` too.
    Returns when every message is acknowledged by all in-sync replicas.
    """
    from paceline.wire.names import check_topic_name

    check_topic_name(topic)
    if sum(source is not None for source in (text, csv_file, jsonl_file)) > 1:
        raise click.UsageError("give one of TEXT, --csv and --jsonl")
    if key_column is not None and csv_file is None and jsonl_file is None:
        raise click.UsageError("--key-column needs --csv or --jsonl")
    if key_column is not None and key is not None:
        raise click.UsageError("give one of --key and --key-column")
    pairs = _pairs(properties)
    template = Template(topic=topic, key=key, tag=tag, properties=pairs, when=when, way=way)
    file = csv_file or jsonl_file
    if way.is_oneway:
        _send_oneway(connect, template, text, as_json=as_json)
        return
    if transaction is not None:
        _send_in_transaction(connect, template, text, transaction, producer_group, as_json=as_json)
        return
    if text is not None and text != "-":
        sending = _send_one(connect, template, text.encode(errors="surrogateescape"))
        _show_one(run_async(sending), as_json=as_json)
        return
    if file is None:
        file = sys.stdin.buffer
        if text is None and file.isatty():
            raise click.UsageError("give a TEXT, - for lines of stdin, or --csv or --jsonl")
    is_csv, is_json = csv_file is not None, jsonl_file is not None
    reader = _row_reader(is_csv=is_csv, is_json=is_json, key=key_column)
    run_async(_send_file(connect, template, file, reader, as_json=as_json), is_bulk=True)


def _pairs(properties: Iterable[str]) -> dict[str, str] | None:
    found: dict[str, str] = {}
    for text in properties:
        name, separator, value = text.partition("=")
        if not name or not separator:
            raise click.UsageError(f"--property {text!r} is not NAME=VALUE")
        if name in found:
            raise click.UsageError(f"--property {name} is there twice")
        found[name] = value
    return found or None


def _row_reader(*, is_csv: bool, is_json: bool, key: str | None) -> "RowReader":
    from paceline.cli.send.input import CsvReader, JsonLinesReader, TextReader

    if is_csv:
        return CsvReader(key_column=key)
    return JsonLinesReader(key_member=key) if is_json else TextReader()


async def _send_one(connect: Connect, template: Template, body: bytes) -> "SendResult":
    from paceline.producer.producer import Producer

    async with open_cluster(connect) as cluster:
        await find_or_make_topic(cluster, template.topic)
        async with Producer(cluster, settings=template.way.settings()) as producer:
            return await producer.send(template.message(body))


def _send_oneway(connect: Connect, template: Template, text: str | None, *, as_json: bool) -> None:
    if text is None or text == "-":
        raise click.UsageError("--oneway needs a TEXT")

    async def send() -> "OnewayCounts":
        from paceline.producer.producer import Producer

        async with open_cluster(connect) as cluster:
            await find_or_make_topic(cluster, template.topic)
            async with Producer(cluster) as producer:
                body = text.encode(errors="surrogateescape")
                return await send_once(producer, template.message(body))

    say_oneway(template.topic, run_async(send()), as_json=as_json)


def _send_in_transaction(
    connect: Connect, template: Template, text: str | None, end: str, group: str, *, as_json: bool
) -> None:
    from paceline.cli.transaction import begin_and_end, show_sent

    if text is None or text == "-":
        raise click.UsageError("--transaction needs a TEXT: one message, one transaction")
    body = text.encode(errors="surrogateescape")
    message = template.message(body)
    sent = run_async(begin_and_end(connect, message, group=group, end=end))
    show_sent(sent, end, as_json=as_json)


def _show_one(result: "SendResult", *, as_json: bool) -> None:
    if as_json:
        document = result._asdict()
        del document["stored_at"], document["number"]
        document |= {"message_id": result.message_id, "unique_key": result.unique_key}
        document["queue"] = document.pop("queue_id")
        document["offset"] = document.pop("queue_offset")
        document["duplicate"] = document.pop("is_duplicate")
        document["confirmed"] = document.pop("is_confirmed")
        if result.logical_queue is None:  # the topic is not static
            del document["logical_queue"], document["logical_offset"]
        echo_json(document)
    else:
        offset = f"offset {result.queue_offset}"
        if result.recall_handle is not None:
            offset = f"delivered later; to take it back: {result.recall_handle}"
        click.echo(
            f"sent to {result.topic}: group {result.group}, queue {result.queue_id}, {offset}"
            + ("" if result.is_confirmed else ", not confirmed: a failover may still lose it")
        )


async def _send_file(
    connect: Connect, template: Template, file: BinaryIO, reader: "RowReader", *, as_json: bool
) -> None:
    from paceline.cli.send.progress import open_progress
    from paceline.platform.runtime import SystemClock
    from paceline.producer.producer import Producer

    clock = SystemClock()
    async with open_cluster(connect) as cluster:
        await find_or_make_topic(cluster, template.topic)
        began_ms = clock.monotonic_ms()
        upload = Upload(Producer(cluster, settings=template.way.settings()), template)
        try:
            with open_progress(file, is_wanted=not as_json) as progress:
                await upload.run(file, reader, progress)
        finally:
            # All is settled here but after Ctrl-C; then people want to know how far it came.
            await upload.end(timeout_ms=INTERRUPT_WAIT_MS)
            _show_summary(upload, template.topic, clock.monotonic_ms() - began_ms, as_json=as_json)
        if upload.error is not None:
            raise upload.error


def _show_summary(upload: "Upload", topic: str, took_ms: int, *, as_json: bool) -> None:
    rate = round(upload.acknowledged * 1000 / max(1, took_ms))
    if as_json:
        echo_json(
            {
                "topic": topic,
                "sent": upload.sent,
                "acknowledged": upload.acknowledged,
                "failed": upload.sent - upload.acknowledged,
                "seconds": took_ms / 1000,
                "messages_per_second": rate,
            }
        )
    else:
        click.echo(
            f"sent {upload.sent:,}, acknowledged {upload.acknowledged:,}"
            f" in {took_ms / 1000:.2f} s ({rate:,} msg/s)"
        )


class Upload:
    """Sends rows as they are read, and counts outcomes. The first error ends it."""

    def __init__(self, producer: "Producer", template: Template) -> None:
        self.sent = 0
        self.acknowledged = 0
        self.error: PacelineError | None = None
        self._producer = producer
        self._template = template
        self._unsettled: deque[tuple[list[Sending], int]] = deque()
        self._unsettled_bytes = 0
        self._unsettled_messages = 0

    async def run(self, file: BinaryIO, reader: "RowReader", progress: "Progress") -> None:
        """Send all that `file` gives and wait for every outcome; `error` says what went wrong."""
        from paceline.cli.send.source import blocks

        try:
            async for block in blocks(file):
                await self._send(reader.feed(block))
                progress.show(len(block), self.acknowledged)
                if self.error is not None:
                    break
            else:
                await self._send(reader.finish())
        except OSError as error:
            self._fail(BadRequestError(f"the input cannot be read: {error}"))
        while self._unsettled:
            await self._settle_oldest()
            progress.show(0, self.acknowledged)

    async def end(self, *, timeout_ms: int) -> None:
        """Close the producer; after an interruption count what became of the rest."""
        await self._producer.close(timeout_ms=timeout_ms)
        while self._unsettled:
            sendings, _ = self._unsettled.popleft()
            self._count([sending for sending in sendings if sending.done()])

    async def _send(self, rows: "Iterable[Row]") -> None:
        message, send = self._template.message, self._producer.send
        sendings: list[Sending] = []
        size = 0
        try:
            for body, key in rows:
                sendings.append(send(message(body, key)))
                size += len(body)
        except PacelineError as error:  # a wrong row, or a message that no broker would take
            self._fail(error)
        if not sendings:
            return
        self.sent += len(sendings)
        self._unsettled.append((sendings, size))
        self._unsettled_bytes += size
        self._unsettled_messages += len(sendings)
        while (
            self._unsettled_bytes > UNSETTLED_BYTES_MAX
            or self._unsettled_messages > UNSETTLED_MESSAGES_MAX
            or (self._unsettled and self._unsettled[0][0][-1].done())
        ):
            await self._settle_oldest()

    async def _settle_oldest(self) -> None:
        sendings, size = self._unsettled[0]
        for sending in sendings:
            if not sending.done():
                await _outcome(sending)
        self._unsettled.popleft()
        self._unsettled_bytes -= size
        self._unsettled_messages -= len(sendings)
        self._count(sendings)

    def _count(self, sendings: "list[Sending]") -> None:
        for sending in sendings:
            try:
                sending.result()
            except PacelineError as error:
                self._fail(error)
            else:
                self.acknowledged += 1

    def _fail(self, error: PacelineError) -> None:
        self.error = self.error or error


async def _outcome(sending: "Sending") -> None:
    """Wait until a message has its outcome; `result` gives it, when its whole block is counted."""
    with suppress(PacelineError):
        await sending
