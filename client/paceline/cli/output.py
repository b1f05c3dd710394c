"""What commands print: aligned tables and JSON lines; no library that would cost start-up time."""

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
import orjson

if TYPE_CHECKING:
    from paceline.consumer.pop.popped_message import PoppedMessage
    from paceline.message import ReceivedMessage


def echo_json(document: Mapping[str, Any], *, err: bool = False) -> None:
    """One JSON line."""
    click.echo(orjson.dumps(document, default=str), err=err)


def echo_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as their widest cell."""
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


def message_json(message: "ReceivedMessage | PoppedMessage") -> bytes:
    """A message as one JSON line: `body` if its bytes are UTF-8 text, else `body_base64`."""
    document: dict[str, Any] = {
        "topic": message.topic,
        "group": message.group,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "key": message.key,
        "tag": message.tag or None,
        "properties": message.properties,
        "born_unix_ms": message.born_unix_ms,
        "store_unix_ms": message.store_unix_ms,
    }
    lock_token = getattr(message, "lock_token", None)  # what was received by receipt has none
    if lock_token is not None:
        document["lock_token"] = list(lock_token)
    logical_queue = getattr(message, "logical_queue", None)  # nor this; None: topic not static
    if logical_queue is not None:
        document["logical_queue"] = logical_queue
        document["logical_offset"] = getattr(message, "logical_offset", None)
    try:
        document["body"] = bytes(message.body).decode()
    except UnicodeDecodeError:
        from binascii import b2a_base64

        document["body_base64"] = b2a_base64(message.body, newline=False).decode()
    return orjson.dumps(document)


def echo_messages(messages: "Sequence[ReceivedMessage | PoppedMessage]", *, as_json: bool) -> None:
    """Print messages one a line, in one write: the bodies' bytes, or JSON.

    On a terminal control characters are shown as escapes: a body must not take it over.
    """
    if not messages:
        return
    if as_json:
        lines = [message_json(message) for message in messages]
    elif sys.stdout.isatty():
        lines = [shown(message.body).encode() for message in messages]
    else:
        lines = [message.body for message in messages]
    click.echo(b"\n".join(lines))


def utc(unix_ms: int) -> str:
    """A moment for human eyes."""
    return datetime.fromtimestamp(unix_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def utc_ms(unix_ms: int) -> str:
    """A moment among others of the same second."""
    return f"{utc(unix_ms)}.{unix_ms % 1000:03d}"


def subscribed(client: Mapping[str, Any]) -> str:
    """The topics of a client, or of a member, with their filters."""
    filters, topics = client.get("filters", {}), client["topics"]
    return ", ".join(f"{name} ({filters[name]})" if name in filters else name for name in topics)


def shown(body: bytes) -> str:
    """A body for human eyes."""
    return "".join(
        character if character.isprintable() or character in "\t\n" else repr(character)[1:-1]
        for character in bytes(body).decode(errors="replace")
    )
