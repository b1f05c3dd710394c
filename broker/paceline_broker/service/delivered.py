"""The batch that delivers messages whose time has come (R34), or buries them (R35)."""

from collections.abc import Sequence
from typing import NamedTuple

from paceline.message_ids import OffsetMessageId
from paceline.records.encode import encode_batch
from paceline.records.header import Cause, unpack_source
from paceline.types import GroupName
from paceline.wire import properties as names
from paceline_broker.projections.timers import Due
from paceline_broker.service.waiting import SourceBatch, Waiting

DELAY_PROPERTIES = (names.DELAY_LEVEL, names.TIMER_DELIVER_MS, names.TIMER_DELAY_MS)


class Ready(NamedTuple):
    """A message whose time has come, read from the log."""

    entry: Due
    batch: SourceBatch
    number: int
    message: Waiting
    origin: int
    """What it was first stored as."""


class Target(NamedTuple):
    """Where a batch goes, and why. `origin_topic`: of a dead letter, where it should have gone."""

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
        sources=[ready.entry.source for ready in found],
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
    if target.cause is Cause.DEAD:
        place = OffsetMessageId(target.group, *unpack_source(origin))
        properties[names.DLQ_ORIGIN_TOPIC] = target.origin_topic
        properties[names.DLQ_ORIGIN_MESSAGE_ID] = str(place)
    return properties
