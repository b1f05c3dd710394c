"""The batch that delivers messages whose time has come (R34), buries them (R35), or is sent to
another group (R36)."""

from collections.abc import Sequence
from typing import NamedTuple

from paceline.records.encode import encode_batch
from paceline.records.header import Cause, unpack_source
from paceline.types import GroupName
from paceline.wire import properties as names
from paceline.wire.message_ids import OffsetMessageId
from paceline_broker.projections.timers import Due
from paceline_broker.service.delays.sources import SourceBatch, Waiting

DELAY_PROPERTIES = (
    names.DELAY_LEVEL,
    names.TIMER_DELIVER_MS,
    names.TIMER_DELAY_MS,
    names.ESCAPED_FROM,
)
"""Not true any more, or never: only who sends a message to another group says that."""


class Ready(NamedTuple):
    """A message whose time has come, read from the log."""

    entry: Due
    batch: SourceBatch
    number: int
    message: Waiting
    origin: int
    """What it was first stored as."""


class Target(NamedTuple):
    """Where a batch goes, and why. `group`: where its messages waited. `origin_topic`: of a dead
    letter, where it should have gone."""

    topic_id: int
    queue_id: int
    cause: Cause
    group: GroupName
    origin_topic: str = ""


def delivered_batch(found: Sequence[Ready], target: Target) -> bytes:
    """One batch of all of them, with what they had; not yet stamped."""
    return encode_batch(
        [ready.message.body for ready in found],
        keys=[ready.message.key for ready in found],
        tags=[ready.message.tag for ready in found],
        properties=[_properties(ready, target) for ready in found],
        born_unix_ms=[ready.message.born_unix_ms for ready in found],
        # What lies in another group's log closes nothing in that which takes it (R36).
        sources=None if target.cause is Cause.ESCAPED else [ready.entry.source for ready in found],
        topic_id=target.topic_id,
        queue_id=target.queue_id,
        flags=target.cause,
    )


def _properties(ready: Ready, target: Target) -> dict[str, str]:
    entry, batch, number, message, origin = ready
    properties = dict(message.properties)
    if properties:
        for name in DELAY_PROPERTIES:
            properties.pop(name, None)
    if names.UNIQ_KEY not in properties:
        properties[names.UNIQ_KEY] = batch.unique_key(number, target.group)
    properties[names.TIMER_OUT_MS] = str(entry.due_unix_ms)
    place = OffsetMessageId(target.group, *unpack_source(origin))
    if target.cause is Cause.ESCAPED:
        properties[names.ESCAPED_FROM] = str(place)
    if target.cause is Cause.DEAD:
        properties[names.DLQ_ORIGIN_TOPIC] = target.origin_topic
        properties[names.DLQ_ORIGIN_MESSAGE_ID] = str(place)
    return properties
