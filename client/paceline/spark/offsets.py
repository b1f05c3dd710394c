"""Pure: positions in queues as Spark and its users write them.

`{topic: {broker_group: {queue: offset}}}` in JSON, as RocketMQ's connector had it, is the one form:
in options, in Spark's checkpoints, in manifests of exports. In code it is a dict by `QueueName`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import orjson

from paceline.errors import BadRequestError
from paceline.queues import QueueName
from paceline.types import GroupName, QueueId, TopicName
from paceline.wire.fields import I64_MAX
from paceline.wire.names import check_name, check_topic_name

Offsets = dict[QueueName, int]

EARLIEST = -2
LATEST = -1
"""Kafka's numbers for an offset that is looked up when the query is planned."""
QUEUE_ID_MAX = 2**16 - 1
_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_RELATIVE = re.compile(r"-([0-9]{1,12})([smhd]?)")


class StartKind(Enum):
    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSETS = "offsets"
    """One for each queue, given."""
    RECORDS_BACK = "records_back"
    """So many records before the end of each queue."""
    TIME_BACK = "time_back"
    """What was stored in the last so many milliseconds."""
    TIMESTAMP = "timestamp"
    """What was stored at or after a moment, unix ms."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where to begin or end, as written in an option; looked up when a query is planned."""

    kind: StartKind
    number: int = 0
    offsets: Mapping[QueueName, int] | None = None


def described(queue: QueueName) -> str:
    """A queue as sentences name it."""
    return f"queue {queue.queue_id} of topic {queue.topic} in group {queue.group}"


def offsets_to_json(offsets: Mapping[QueueName, int]) -> dict[str, dict[str, dict[str, int]]]:
    """The nested form, sorted; queue ids become text, as JSON wants keys."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for queue in sorted(offsets):
        groups = found.setdefault(str(queue.topic), {})
        groups.setdefault(str(queue.group), {})[str(int(queue.queue_id))] = offsets[queue]
    return found


def offsets_from_json(document: object, *, name: str, low: int = 0) -> Offsets:
    """Checked positions of the nested form; BadRequestError names what is wrong in `name`.

    `low` -2 admits `EARLIEST` and `LATEST`.
    """
    found: Offsets = {}
    for topic, groups in _object(document, name).items():
        check_topic_name(topic, name)
        for group, queues in _object(groups, f"{name}: {topic}").items():
            check_name(group, name)
            for queue, offset in _object(queues, f"{name}: {topic}: {group}").items():
                if not queue.isascii() or not queue.isdecimal() or int(queue) > QUEUE_ID_MAX:
                    raise BadRequestError(f"{name}: {queue!r} is no queue id", field=name)
                if type(offset) is not int or not low <= offset <= I64_MAX:
                    raise BadRequestError(
                        f"{name}: the offset of queue {queue} of {topic} in {group} must be an"
                        f" integer from {low}, not {offset!r}",
                        field=name,
                    )
                key = QueueName(TopicName(topic), GroupName(group), QueueId(int(queue)))
                found[key] = offset
    return found


def parse_position(text: str, *, name: str) -> Position:
    """`earliest`, `latest`, JSON offsets, `-1000` (records back) or `-1h` (time back: s m h d)."""
    plain = text.strip()
    if plain in ("earliest", "latest"):
        return Position(StartKind(plain))
    relative = _RELATIVE.fullmatch(plain)
    if relative is not None:
        count, unit = int(relative.group(1)), relative.group(2)
        if unit:
            return Position(StartKind.TIME_BACK, count * _UNITS_MS[unit])
        return Position(StartKind.RECORDS_BACK, count)
    if not plain.startswith("{"):
        raise BadRequestError(
            f'{name} must be earliest, latest, -1000 (records), -1h (time) or offsets as JSON, {{"'
            f'topic": {{"group": {{"0": 23}}}}}}; it is {text[:80]!r}',
            field=name,
        )
    try:
        document = orjson.loads(plain)
    except orjson.JSONDecodeError as error:
        raise BadRequestError(f"{name} is no JSON: {error}", field=name) from error
    offsets = offsets_from_json(document, name=name, low=EARLIEST)
    if not offsets:
        raise BadRequestError(f"{name} names no queue", field=name)
    return Position(StartKind.OFFSETS, offsets=offsets)


def _object(document: object, where: str) -> dict[str, Any]:
    if not isinstance(document, dict) or any(not isinstance(key, str) for key in document):
        raise BadRequestError(
            f'{where} must be an object of the form {{"topic": {{"group": {{"0": 23}}}}}}',
            field=where.partition(":")[0],
        )
    return document
