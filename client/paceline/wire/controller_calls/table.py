"""Pure: all requests to the controllers by name: clients, controllers and documents know them from
here."""

from collections.abc import Mapping
from typing import Any

from paceline.wire.calls.request import Request, requests_of
from paceline.wire.controller_calls import (
    broker_groups,
    consumer_groups,
    quorum,
    security,
    topics,
)

CALLS: Mapping[str, type[Request[Any]]] = requests_of(
    quorum, broker_groups, topics, consumer_groups, security
)
