"""Pure: all calls of brokers by name: broker, client and documents know them from here."""

from collections.abc import Mapping
from typing import Any

from paceline.wire.calls import audit, groups, locks, messages, offsets, pop
from paceline.wire.calls.request import Request, requests_of

CALLS: Mapping[str, type[Request[Any]]] = requests_of(offsets, locks, groups, pop, messages, audit)
"""Name on the wire -> its request."""
