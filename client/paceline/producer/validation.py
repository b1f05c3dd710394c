"""Pure: what a producer refuses before anything is sent: messages that no broker would take.

One bad message would spoil the whole batch that it rides in, so each is looked at when it is given.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import orjson

from paceline.errors import BadRequestError, TooLargeError
from paceline.message import Message
from paceline.producer.batch import MESSAGE_OVERHEAD_BYTES
from paceline.records.dues import written_due
from paceline.records.header import (
    KEY_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    PROPERTIES_BYTES_MAX,
    TAG_BYTES_MAX,
)
from paceline.wire.names import RETRY_PREFIX, check_topic_name
from paceline.wire.properties import PRIORITY, SHARDING_KEY, check_application_properties
from paceline.wire.topics import PRIORITY_MAX, is_priority

UNIT_BYTES_MAX = MESSAGE_BYTES_MAX
"""Of all bodies that are sent as one unit: RocketMQ's limit, as for one message."""
_KEY_PLAIN = 64
"""Shorter ASCII keys need no closer look: the usual ones."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a producer takes."""

    body_bytes_max: int
    delay_s_max: int
    unix_ms: Callable[[], int]
    """The wall clock."""


def cost_of(message: Message, limits: Limits, *, is_library: bool = False) -> int:
    """Bytes charged for a message. BadRequestError, TooLargeError: it is wrong in itself.

    `is_library`: this library sets properties of the system; applications may not.
    """
    if not message.topic:
        check_topic_name(message.topic)  # it says what a name is
    body = message.body
    if body.__class__ is not bytes:
        raise BadRequestError(
            f"a body must be bytes, not {type(body).__name__}; encode text first", field="body"
        )
    size = len(body)
    if size > limits.body_bytes_max:
        limit = limits.body_bytes_max
        raise TooLargeError(f"a body of {size} bytes is over {limit}", limit=limit)
    key = message.key
    if key:
        is_plain = key.__class__ is str and len(key) <= _KEY_PLAIN and key.isascii()
        size += len(key) if is_plain else check_key(key)
    if (
        message.properties
        or message.tag
        or message.delay_ms
        or message.delay_level
        or message.delivery_unix_ms
        or message.sharding
        or message.queue is not None
        or message.priority is not None
    ):
        if message.properties and not is_library:
            check_application_properties(message.properties)
        size += _checked_extras(message)
        _check_delay(message, limits)
    return size + MESSAGE_OVERHEAD_BYTES


def is_delayed(message: Message) -> bool:
    """Whether it waits for a time before it is in its queue."""
    return bool(message.delay_ms or message.delay_level or message.delivery_unix_ms)


def due_of(message: Message) -> int | None:
    """What its batch says of a message's time; BadRequestError if that is none."""
    return written_due(message.delay_level, message.delay_ms, message.delivery_unix_ms)


def _check_delay(message: Message, limits: Limits) -> None:
    """Refuse a time that is too far away. Of a level only the broker knows the delay."""
    due = due_of(message)
    if due is None or message.delay_level:
        return
    delay_ms = -due if due < 0 else due - limits.unix_ms()
    if delay_ms > limits.delay_s_max * 1000:
        raise BadRequestError(
            f"a delay of {delay_ms // 1000} s is over timer_max_delay_sec, {limits.delay_s_max} s",
            field="delay_ms" if due < 0 else "delivery_unix_ms",
        )


def check_unit(messages: Sequence[Message], *, is_queue_chosen: bool) -> None:
    """Refuse what cannot be one unit: RocketMQ's rules for batches, and one queue for all.

    `is_queue_chosen`: whatever the keys are, the application names the queue.
    """
    if not messages:
        raise BadRequestError("a batch holds at least one message", field="messages")
    topics = {message.topic for message in messages}
    if len(topics) > 1:
        raise BadRequestError(
            f"a batch is for one topic, not for {len(topics)}: send one batch for each",
            field="topic",
        )
    if any(map(is_delayed, messages)):
        raise BadRequestError(
            "a batch cannot be delayed: send its messages one by one", field="delivery_unix_ms"
        )
    if messages[0].topic.startswith(RETRY_PREFIX):
        raise BadRequestError("a batch cannot go to a retry topic", field="topic")
    size = sum(len(message.body) for message in messages)
    if size > UNIT_BYTES_MAX:
        raise TooLargeError(
            f"a batch of {size} bytes is over {UNIT_BYTES_MAX}: split it", limit=UNIT_BYTES_MAX
        )
    if is_queue_chosen:
        return
    chosen_by = {(each.queue, each.sharding or each.key, each.priority) for each in messages}
    if len(chosen_by) > 1:
        raise BadRequestError(
            "a batch goes to one queue, and these keys, priorities or queues may mean several:"
            " choose a queue for all of them",
            field="key",
        )


def check_key(key: object) -> int:
    """Bytes of a key; refuses one that the codec would refuse for the whole batch."""
    if not isinstance(key, str):
        raise BadRequestError(f"a key must be text, not {type(key).__name__}", field="key")
    return _check_text(key, "key", KEY_BYTES_MAX)


def _check_text(text: str, field: str, limit: int) -> int:
    """Its bytes."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise BadRequestError(f"a {field} must be UTF-8 text: {error}", field=field) from error
    if size > limit:
        raise TooLargeError(f"a {field} of {size} bytes is over {limit}", limit=limit)
    return size


def _checked_extras(message: Message) -> int:
    """Bytes of tag and properties; refuses what the codec would refuse for the whole batch."""
    size = _check_text(message.tag or "", "tag", TAG_BYTES_MAX)
    if message.queue is not None and message.queue.topic != message.topic:
        raise BadRequestError(
            f"a queue of topic {message.queue.topic} is chosen for a message of {message.topic}",
            field="queue",
        )
    if message.sharding:
        if not isinstance(message.sharding, str):
            raise BadRequestError("a sharding key must be text", field="sharding")
        _check_text(message.sharding, "sharding", PROPERTIES_BYTES_MAX)
    if message.priority is not None and not is_priority(message.priority):
        raise BadRequestError(
            f"a priority is 0 to {PRIORITY_MAX}, not {message.priority!r}", field="priority"
        )
    if message.properties or message.sharding or message.priority is not None:
        size += _checked_properties(message)
    return size


def _checked_properties(message: Message) -> int:
    """Bytes of the properties as they will be stored."""
    properties = stored_properties(message) or {}
    try:
        encoded = len(orjson.dumps(properties))
    except (TypeError, orjson.JSONEncodeError) as error:
        raise BadRequestError(
            f"properties must be text to text: {error}", field="properties"
        ) from error
    if set(map(type, properties.values())) - {str}:
        raise BadRequestError("a property must be text", field="properties")
    if encoded > PROPERTIES_BYTES_MAX:
        raise TooLargeError(
            f"properties of {encoded} bytes are over {PROPERTIES_BYTES_MAX}",
            limit=PROPERTIES_BYTES_MAX,
        )
    return encoded


def own_copy(message: Message) -> Message:
    """What waits keeps nothing of the application's: it may change message and properties."""
    return replace(message, properties=dict(message.properties) if message.properties else None)


def stored_properties(message: Message) -> dict[str, str] | None:
    """The message's properties with its sharding key and priority, which readers see there."""
    found = dict(message.properties) if message.properties else {}
    if message.sharding:
        found[SHARDING_KEY] = message.sharding
    if message.priority is not None:
        found[PRIORITY] = str(message.priority)
    return found or None
