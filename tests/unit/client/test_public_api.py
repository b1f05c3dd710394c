"""What a user writes types with can be imported from `paceline`, and every client has a twin."""

import inspect
import typing
from collections.abc import Iterator
from typing import Any

import pytest

import paceline
from paceline import errors
from paceline.blocking import admin as blocking_admin
from paceline.blocking.twin import Part

INTERNAL = {
    "Batch",
    "Clock",
    "Disk",
    "TransactionEndSender",
    "HeldQueue",
    "Place",
    "Namespace",
    "Proofs",
    "Request",
    "PostConnection",
    "Random",
    "Record",
    "Section",
    "Shown",
    "RealDisk",
    "StreamConnection",
    "_Asker",
    "LoopThread",
}
"""Of methods that the library calls itself, and ports of its tests."""
CLIENTS = [
    "AdminClient",
    "LitePullConsumer",
    "OrderedConsumer",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "SimpleConsumer",
    "TransactionProducer",
]


def types_in(hint: Any) -> Iterator[type]:
    for part in typing.get_args(hint):
        yield from types_in(part)
    origin = typing.get_origin(hint) or hint
    if isinstance(origin, type):
        yield origin


def hints_of(name: str) -> Iterator[dict[str, Any]]:
    found = getattr(paceline, name)
    yield typing.get_type_hints(found)
    for key, member in inspect.getmembers(found) if isinstance(found, type) else ():
        function = member.fget if isinstance(member, property) else member
        if inspect.isfunction(function) and (key == "__init__" or not key.startswith("_")):
            yield typing.get_type_hints(function)


@pytest.mark.parametrize("name", sorted(set(paceline.__all__) - {"__version__"}))
def test_types_of_public_signatures_are_exported(name: str) -> None:
    missing = {
        type_.__name__
        for hints in hints_of(name)
        for hint in hints.values()
        for type_ in types_in(hint)
        if type_.__module__.startswith("paceline.")
    }

    assert missing - set(paceline.__all__) - INTERNAL == set()


def test_every_error_is_exported() -> None:
    found = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.PacelineError)
    }

    assert found <= set(paceline.__all__)


@pytest.mark.parametrize("name", CLIENTS)
def test_the_blocking_twin_has_the_methods_of_its_client(name: str) -> None:
    client, twin = getattr(paceline, name), getattr(paceline, f"Blocking{name}")

    methods = {
        key
        for key, value in inspect.getmembers(client, inspect.isfunction)
        if not key.startswith("_")
    }

    left_out = {"start", "send_nowait", "arrived", "dropped", "poll_batch", "commit_sync"}
    assert methods - left_out <= set(dir(twin))
    assert all(getattr(twin, method).__doc__ for method in methods - left_out)


def test_each_part_of_the_blocking_admin_client_has_the_methods_of_its_own() -> None:
    def methods(part: type) -> set[str]:
        named = inspect.getmembers(part, inspect.iscoroutinefunction)
        return {key for key, _ in named if not key.startswith("_")}

    parts = [
        (twin, typing.get_args(vars(twin)["__orig_bases__"][0])[0])
        for _, twin in inspect.getmembers(blocking_admin, inspect.isclass)
        if issubclass(twin, Part) and twin is not Part
    ]
    assert len(parts) > 8
    for twin, own in parts:
        assert methods(own) <= set(dir(twin)), twin


@pytest.mark.parametrize("name", [*CLIENTS, *(f"Blocking{name}" for name in CLIENTS)])
def test_clients_and_their_methods_say_what_they_do(name: str) -> None:
    found = getattr(paceline, name)

    assert found.__doc__
    silent = [
        key
        for key, member in inspect.getmembers(found, inspect.isfunction)
        if not key.startswith("_") and not member.__doc__
    ]
    assert silent == []


def test_the_blocking_producer_says_that_it_gives_results() -> None:
    signature = inspect.signature(paceline.BlockingProducer.send)

    assert signature.return_annotation is paceline.SendResult
