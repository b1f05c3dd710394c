"""Questions to clients, without any."""

import asyncio
from typing import cast

import pytest
from tests.support.controller.harness import eventually

from paceline.errors import OverloadedError
from paceline.platform.runtime import SystemClock, cancel_and_wait, spawn
from paceline.security.identity import Principal
from paceline_gateway.clusters import UserCluster, UserClusters
from paceline_gateway.connected_clients import ConnectedClients
from paceline_gateway.grpc.service import questions
from paceline_gateway.grpc.service.call import Call, call_of
from paceline_gateway.grpc.service.questions import QuestionCalls
from paceline_gateway.grpc.service.telemetry import TelemetryCalls
from paceline_gateway.grpc.stubs import admin_pb2 as wire
from paceline_gateway.grpc.stubs.resources_pb2 import Endpoints, Resource


class SilentClusters:
    """No node answers, for ever."""

    async def of(self, principal: Principal) -> UserCluster:
        await asyncio.Event().wait()
        raise AssertionError


def a_call(user: str) -> Call:
    return call_of(
        {},
        Principal(user, "10.0.0.1"),
        cast(UserClusters, SilentClusters()),
        deadline_ms=None,
        endpoints=Endpoints(),
    )


async def test_one_administrator_leaves_room_for_the_questions_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(questions, "QUESTIONS_MAX", 8)
    calls = QuestionCalls(ConnectedClients(SystemClock()), cast(TelemetryCalls, None))
    request = wire.PrintThreadStackTraceRequest(client_id="one", group=Resource(name="g"))

    async def ask(user: str) -> None:
        await calls.stacks(request, a_call(user))

    waiting = [spawn(ask("anna"), name="asking") for _ in range(4)]
    await eventually(lambda: calls._shares.count == 4, "all wait")

    with pytest.raises(OverloadedError):
        await ask("anna")
    with pytest.raises(OverloadedError):
        await calls.running_info(
            wire.GetConsumerRunningInfoRequest(client_id="one", group=request.group),
            a_call("anna"),
        )
    others = spawn(ask("ben"), name="asking")
    await eventually(lambda: calls._shares.count == 5, "another one asks too")
    await cancel_and_wait(*waiting, others)

    assert calls._shares.count == 0
