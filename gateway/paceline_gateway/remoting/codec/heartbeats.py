"""Pure: what clients tell of themselves in heartbeats (HeartbeatData), and lists of queues."""

from typing import Any, NamedTuple

from paceline.errors import BadRequestError
from paceline.filters import ALL, Filter, make_filter
from paceline_gateway.remoting.codec.frames import lenient_json

TOPICS_MAX = 1000
TEXT_LENGTH_MAX = 255
"""Of names and client ids, which are kept."""
_PASSIVE, _POP = "CONSUME_PASSIVELY", "CONSUME_POP"


class ConsumerTold(NamedTuple):
    """A consumer of a group, in a heartbeat."""

    group: str
    is_push: bool
    is_broadcasting: bool
    filters: dict[str, Filter]
    """By topic, every one that it subscribes to."""
    from_where: str = "CONSUME_FROM_LAST_OFFSET"


class Told(NamedTuple):
    """A heartbeat."""

    client_id: str
    producers: list[str]
    """Groups."""
    consumers: list[ConsumerTold]
    is_without_subscriptions: bool
    """It says only that what was told before still holds (V2)."""


def read_heartbeat(body: bytes) -> Told:
    """BadRequestError."""
    document = _object(lenient_json(body), "a heartbeat")
    return Told(
        _text(document, "clientID"),
        [_text(row, "groupName") for row in _rows(document, "producerDataSet")],
        [_consumer(row) for row in _rows(document, "consumerDataSet")],
        bool(document.get("isWithoutSub", document.get("withoutSub", False))),
    )


def _consumer(row: dict[str, Any]) -> ConsumerTold:
    filters: dict[str, Filter] = {}
    for each in _rows(row, "subscriptionDataSet"):
        if len(filters) >= TOPICS_MAX:
            raise BadRequestError(f"a consumer of more than {TOPICS_MAX} topics")
        filters[_text(each, "topic")] = read_filter(
            each.get("expressionType"), each.get("subString")
        )
    consume_type, model = row.get("consumeType"), row.get("messageModel")
    return ConsumerTold(
        _text(row, "groupName"),
        consume_type in (_PASSIVE, _POP, 1, 2),
        model in ("BROADCASTING", 0),
        filters,
        str(row.get("consumeFromWhere", "")),
    )


def read_filter(type_: object, expression: object) -> Filter:
    """What a subscription wants. BadRequestError."""
    text = expression if isinstance(expression, str) else ""
    kind = type_ if isinstance(type_, str) and type_ else "TAG"
    if kind == "TAG" and text.strip() in ("", "*"):
        return ALL
    return make_filter(kind, text)


class QueueAsked(NamedTuple):
    """A MessageQueue."""

    topic: str
    broker_name: str
    queue_id: int


def read_queues(body: bytes) -> tuple[str, str, list[QueueAsked]]:
    """Consumer group, client id and queues of a request to lock or unlock. BadRequestError."""
    document = _object(lenient_json(body), "a list of queues")
    queues = [
        QueueAsked(_text(row, "topic"), _text(row, "brokerName"), _queue_id(row))
        for row in _rows(document, "mqSet")
    ]
    return _text(document, "consumerGroup"), _text(document, "clientId"), queues


def _queue_id(row: dict[str, Any]) -> int:
    found = row.get("queueId")
    if not isinstance(found, int) or found.__class__ is bool or not 0 <= found < 2**16:
        raise BadRequestError("queueId must be a number from 0 to 65535", field="queueId")
    return found


def _text(row: dict[str, Any], name: str) -> str:
    found = row.get(name)
    if not isinstance(found, str) or not found:
        raise BadRequestError(f"{name} is missing", field=name)
    if len(found) > TEXT_LENGTH_MAX:
        raise BadRequestError(f"{name} has at most {TEXT_LENGTH_MAX} characters", field=name)
    return found


def _rows(document: dict[str, Any], name: str) -> list[dict[str, Any]]:
    rows = document.get(name) or []
    if not isinstance(rows, list):
        raise BadRequestError(f"{name} must be a list", field=name)
    return [_object(row, name) for row in rows]


def _object(document: Any, what: str) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise BadRequestError(f"{what} must be a JSON object")
    return document
