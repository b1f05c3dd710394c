"""Pure: names, times and addresses as protobuf has them."""

from functools import lru_cache

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from paceline.errors import BadRequestError
from paceline.filters import Subscription
from paceline.filters.expression import SQL92
from paceline.wire.names import check_group_name, check_readable_topic_name
from paceline.wire.namespaces import Namespace
from paceline_gateway.grpc.codec.statuses import Refused
from paceline_gateway.grpc.stubs.resources_pb2 import (
    Code,
    Endpoints,
    FilterExpression,
    FilterType,
    Resource,
)

_MS = 1000
_NS_OF_MS = 1_000_000
_SECONDS_MAX = 2**53 // _MS
"""More do not fit the times of paceline, whatever they mean."""


class Named:
    """A topic or consumer group of a request: its full name, and how the client calls it."""

    __slots__ = ("full", "resource")

    def __init__(self, full: str, resource: Resource) -> None:
        self.full = full
        self.resource = resource


def topic_of(resource: Resource, namespace: str) -> Named:
    """A topic; Refused, ForbiddenError for the system's own. `namespace`: of the request's header,
    for a resource that has none."""
    try:
        full = _full_topic(resource.resource_namespace or namespace, resource.name)
    except BadRequestError as error:
        raise Refused(Code.ILLEGAL_TOPIC, error.message) from error
    return Named(full, resource)


def group_of(resource: Resource, namespace: str) -> Named:
    """A consumer group; Refused, ForbiddenError for the system's own."""
    try:
        full = _full_group(resource.resource_namespace or namespace, resource.name)
    except BadRequestError as error:
        raise Refused(Code.ILLEGAL_CONSUMER_GROUP, error.message) from error
    return Named(full, resource)


@lru_cache(maxsize=4096)
def _full_topic(namespace: str, name: str) -> str:
    return check_readable_topic_name(Namespace(namespace).full_topic(name))


@lru_cache(maxsize=4096)
def _full_group(namespace: str, name: str) -> str:
    return check_group_name(Namespace(namespace).full_group(name))


def milliseconds(duration: Duration | Timestamp) -> int:
    """Whole milliseconds; of what is out of every range the nearest bound."""
    seconds = max(-_SECONDS_MAX, min(_SECONDS_MAX, duration.seconds))
    return seconds * _MS + duration.nanos // _NS_OF_MS


def duration_of(milliseconds: int) -> Duration:
    seconds, rest = divmod(milliseconds, _MS)
    return Duration(seconds=seconds, nanos=rest * _NS_OF_MS)


def timestamp_of(unix_ms: int) -> Timestamp:
    seconds, rest = divmod(unix_ms, _MS)
    return Timestamp(seconds=seconds, nanos=rest * _NS_OF_MS)


def subscription_of(topic: Named, expression: FilterExpression) -> Subscription:
    """What of a topic is wanted; Refused."""
    text = expression.expression
    try:
        if expression.type == FilterType.SQL:
            return Subscription.by_sql(topic.full, text)
        return Subscription.by_tags(topic.full, text)
    except BadRequestError as error:
        raise Refused(Code.ILLEGAL_FILTER_EXPRESSION, error.message) from error


def expression_of(type_: str, expression: str) -> FilterExpression:
    """A filter as clients are told it; `type_`: TAG or SQL92."""
    kind = FilterType.SQL if type_ == SQL92 else FilterType.TAG
    return FilterExpression(type=kind, expression=expression)


def has_addresses(endpoints: Endpoints) -> bool:
    """Whether a client has told how it names the server."""
    return any(address.host and address.port > 0 for address in endpoints.addresses)
