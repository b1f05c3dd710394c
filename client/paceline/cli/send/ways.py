"""Options of `paceline send` that say how: which queue, compressed, one-way."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from paceline.wire.topics import PRIORITY_MAX

if TYPE_CHECKING:
    from paceline.message import Message
    from paceline.producer.oneway import OnewayCounts
    from paceline.producer.producer import Producer
    from paceline.producer.settings import ProducerSettings
    from paceline.queues import QueueName


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How all messages of one call are sent."""

    queue: tuple[str, int] | None = None
    """Broker group and number."""
    sharding: str | None = None
    priority: int | None = None
    codec: str = "zstd"
    is_oneway: bool = False

    def queue_of(self, topic: str) -> "QueueName | None":
        """The queue that was chosen, if one was."""
        from paceline.queues import QueueName
        from paceline.types import GroupName, QueueId, TopicName

        if self.queue is None:
            return None
        group, number = self.queue
        return QueueName(TopicName(topic), GroupName(group), QueueId(number))

    def settings(self) -> "ProducerSettings":
        """Of the producer."""
        from paceline.producer.settings import ProducerSettings
        from paceline.records.header import Codec

        return ProducerSettings(codec=Codec[self.codec.upper()])


def way_options(function: Callable[..., None]) -> Callable[..., None]:
    """Adds --queue, --sharding-key, --priority, --compress and --oneway (given as `way`)."""

    @click.option("--queue", metavar="GROUP/N", help="Exactly this queue: no retry elsewhere.")
    @click.option("--sharding-key", help="Chooses the queue in the place of the key.")
    @click.option(
        "--priority",
        type=click.IntRange(0, PRIORITY_MAX),
        help="For topics of type PRIORITY: 0 is the lowest.",
    )
    @click.option(
        "--compress",
        "codec",
        type=click.Choice(["zstd", "lz4", "none"]),
        default="zstd",
        show_default=True,
        help="How batches with a message over 4 KiB are compressed.",
    )
    @click.option("--oneway", "is_oneway", is_flag=True, help="TEXT once, without an outcome.")
    @wraps(function)
    def run(
        *,
        queue: str | None,
        sharding_key: str | None,
        priority: int | None,
        codec: str,
        is_oneway: bool,
        **arguments: Any,
    ) -> None:
        way = Way(
            queue=_parsed(queue),
            sharding=sharding_key,
            priority=priority,
            codec=codec,
            is_oneway=is_oneway,
        )
        function(way=way, **arguments)

    return run


def _parsed(text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    group, _, number = text.rpartition("/")
    if not group or not number.isascii() or not number.isdigit() or len(number) > 5:
        raise click.UsageError(f"--queue {text!r} is not GROUP/N, as g1/0")
    return group, int(number)


async def send_once(producer: "Producer", message: "Message") -> "OnewayCounts":
    """Send one-way; what is known of it when the producer has nothing more under way."""
    producer.send_oneway(message)
    await producer.flush()
    return producer.oneway


def say_oneway(topic: str, counts: "OnewayCounts", *, as_json: bool) -> None:
    """Tell what is known of a one-way message."""
    from paceline.cli.output import echo_json

    if as_json:
        known = {name: getattr(counts, name) for name in ("confirmed", "dropped", "unknown")}
        echo_json({"topic": topic, "oneway": True, **known})
        return
    said = "nobody has said that it is stored"
    if counts.confirmed:
        said = "the broker has it"
    elif counts.dropped:
        said = "it was dropped: no master took it"
    click.echo(f"sent one-way to {topic}: {said}")
