"""Pure: all calls by name: the one table of which broker, client and documents know."""

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from paceline.wire.calls import groups, locks, messages, offsets, pop
from paceline.wire.calls.request import Request


def _calls_of(module: ModuleType) -> list[type[Request[Any]]]:
    return [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Request) and value is not Request
    ]


CALLS: Mapping[str, type[Request[Any]]] = {
    call.call_name(): call
    for module in (offsets, locks, groups, pop, messages)
    for call in _calls_of(module)
}
"""Name on the wire -> its request."""
