"""Each request of the tables for a user who has every right but one that it needs, and for one who
has just those.

A batch of records of 2026 (CVE-2026-67233, -66069, -67218, -66076 of RabbitMQ; CVE-2025-30215 of
NATS; CVE-2024-51988 of RabbitMQ) is about single routes that forgot one check. The walk is made
from the tables, so a new request is in it. Who is nobody, unknown or without rights, and routes
that are no requests: tests/unit/broker/server/test_rights.py and the controllers' beside it.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

import orjson
import pytest
from tests.support.controller.harness import controllers
from tests.support.http.door import a_door
from tests.support.requests import ask_least_by_route, least
from tests.support.rights import a_security, bearer, entry

from paceline.security.access import Access
from paceline.wire.calls.request import Request, names_in_path, read_request
from paceline.wire.calls.table import CALLS
from paceline.wire.controller_calls.table import CALLS as CONTROLLER_CALLS
from paceline.wire.rights import Action, Need, ResourceType, named
from paceline.wire.users import PolicyEntry

TYPES = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER)
Ask: TypeAlias = Callable[[type[Request[Any]]], Awaitable[tuple[int, str]]]


def all_but(need: Need) -> tuple[PolicyEntry, ...]:
    """Everything that the need does not ask for."""
    return tuple(
        entry(
            f"{type_}:*",
            *(each for each in Action if each is not Action.ALL and each not in need.actions),
        )
        if type_ is need.type
        else entry(f"{type_}:*", Action.ALL)
        for type_ in TYPES
    )


def just(call: type[Request[Any]]) -> tuple[PolicyEntry, ...]:
    """One of the actions of each need."""
    needs = read_request(call, least(call)).needed()
    return tuple(entry(f"{need.type}:*", need.actions[0]) for need in needs if need.actions)


def needs_of(call: type[Request[Any]]) -> list[Need]:
    """Those that the least request of the call has something for."""
    document = least(call)
    found = []
    for need in read_request(call, document).needed():
        if need.type is ResourceType.ANY:
            continue
        in_path = any(need.field in names_in_path(route.path) for route in call.routes)
        if need.type is ResourceType.CLUSTER or in_path or document.get(need.field):
            found.append(need)
    return found


async def walk(calls: Mapping[str, type[Request[Any]]], access: Access, ask: Ask) -> list[str]:
    """What was wrong."""
    wrong, version = [], access.version
    for name, call in calls.items():
        for need in needs_of(call):
            version += 1
            access.apply(a_security(version=version, ana=all_but(need)))
            told = await ask(call)
            if told != (403, "NOT_AUTHORIZED"):
                wrong.append(f"{name} without {need}: {told}")
        version += 1
        access.apply(a_security(version=version, ana=just(call)))
        status, code = await ask(call)
        if status in (401, 403) and code == "NOT_AUTHORIZED":
            wrong.append(f"{name} with all that it needs: {status} {code}")
    return wrong


async def test_a_broker_asks_for_each_right_of_each_call() -> None:
    async with a_door() as door:

        async def ask(call: type[Request[Any]]) -> tuple[int, str]:
            body = orjson.dumps({"call": call.call_name(), **least(call)})
            headers = {**bearer("ana"), "Content-Type": "application/json"}
            status, answer = await door.ask("POST", "/v1/call", data=body, headers=headers)
            return status, answer.get("code", "")

        wrong = await walk(CALLS, door.service.access, ask)

    assert not wrong, "\n".join(wrong)


async def test_a_controller_asks_for_each_right_of_each_request() -> None:
    async with controllers() as cluster:

        async def ask(call: type[Request[Any]]) -> tuple[int, str]:
            base = f"http://{cluster.addresses[0]}"
            return await ask_least_by_route(
                cluster.http, base, call, headers=bearer("ana"), within_s=2.0
            )

        wrong = await walk(CONTROLLER_CALLS, cluster.leader.access, ask)

    assert not wrong, "\n".join(wrong)


async def test_a_walk_finds_a_call_that_forgot_a_right(monkeypatch: pytest.MonkeyPatch) -> None:
    call = CALLS["clone_offsets"]
    whole = call.needs or ()
    async with a_door() as door:

        async def ask(_: type[Request[Any]]) -> tuple[int, str]:
            with monkeypatch.context() as patch:
                patch.setattr(call, "needs", whole[:1])
                body = orjson.dumps({"call": "clone_offsets", **least(call)})
                headers = {**bearer("ana"), "Content-Type": "application/json"}
                status, answer = await door.ask("POST", "/v1/call", data=body, headers=headers)
            return status, answer.get("code", "")

        assert await walk({"clone_offsets": call}, door.service.access, ask)


def test_every_need_names_a_field_that_its_request_has() -> None:
    """Else it would ask for nothing."""
    for calls in (CALLS, CONTROLLER_CALLS):
        for call in calls.values():
            request = read_request(call, least(call))
            for need in request.needed():
                if need.field:
                    list(named(getattr(request, need.field)))
