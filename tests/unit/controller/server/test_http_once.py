"""The same command over HTTP, asked twice of any controllers: one effect, one result (R38)."""

from contextlib import ExitStack
from typing import Any

import pytest
from tests.support.controller.builders import users_topics
from tests.support.controller.harness import Controllers, controllers, eventually
from tests.support.controller.sessions import a_cluster
from tests.support.rights import a_security, bearer, entry

from paceline.errors import OverloadedError
from paceline.security.access import Asker
from paceline.security.identity import Principal
from paceline.wire.names import SYSTEM_TOPICS
from paceline.wire.rights import SUB
from paceline_controller.server import http_once
from paceline_controller.server.http_once import SessionsOfUsers
from paceline_controller.state.machine import SESSIONS_MAX

OPEN = ("POST", "/v1/sessions", None)
MAKE = ("POST", "/v1/topics", {"topic": "t", "queues": 2})


async def ask(
    cluster: Controllers,
    request: tuple[str, str, Any],
    sequence: object,
    *,
    node: int = 0,
    session: str = "s",
) -> tuple[int, Any]:
    method, path, body = request
    url = f"http://{cluster.addresses[node]}{path}"
    headers = {"Paceline-Session": session, "Paceline-Sequence": str(sequence)}
    async with cluster.http.request(method, url, json=body, headers=headers) as answer:
        return answer.status, await answer.json(content_type=None)


async def test_a_write_of_unknown_outcome_is_repeated_elsewhere_and_done_once() -> None:
    async with a_cluster(3) as (cluster, _):
        assert (await ask(cluster, OPEN, 0, node=1))[0] == 201
        cluster.quorums[cluster.ids[0]].loses_answers = True
        assert (await ask(cluster, MAKE, 1, node=1))[0] == 504
        cluster.log.elect(cluster.ids[1])
        await eventually(lambda: cluster.leader.supervisor.is_leading, "the second leads")

        answers = [await ask(cluster, MAKE, 1, node=node) for node in (0, 1, 2)]

        assert [status for status, _ in answers] == [201, 201, 201]
        assert {answer["topic_id"] for _, answer in answers} == {1 + len(SYSTEM_TOPICS)}
        other = await ask(cluster, MAKE, 2, node=2)
        assert (other[0], other[1]["code"], other[1]["sequence"]) == (409, "TOPIC_EXISTS", 2)


async def test_what_a_command_has_removed_does_not_refuse_its_repetition() -> None:
    async with a_cluster(2) as (cluster, brokers):
        await ask(cluster, OPEN, 0)
        await ask(cluster, MAKE, 1)
        for broker in brokers:
            await broker.kill()
        group = cluster.leader.machine.groups[brokers[0].group]
        is_alive = cluster.leader.http.context.is_alive
        await eventually(
            lambda: not any(is_alive(group.group, key) for key in group.replicas), "they are gone"
        )
        for sequence, request in enumerate(
            (
                ("DELETE", "/v1/topics/t", None),
                ("DELETE", "/v1/groups/g1?force=true", None),
            ),
            start=2,
        ):
            first = await ask(cluster, request, sequence, node=1)
            again = await ask(cluster, request, sequence, node=0)
            assert first[0] == 200, first
            assert again == first
        assert (await ask(cluster, request, 4))[0] == 404


async def test_an_election_that_is_asked_for_twice_begins_one_epoch() -> None:
    async with a_cluster(2) as (cluster, brokers):
        await ask(cluster, OPEN, 0)
        order = ("POST", "/v1/elections", {"group": "g1"})

        first = await ask(cluster, order, 1, node=1)
        again = await ask(cluster, order, 1, node=0)

        assert first[0] == 200
        assert again == first
        group = cluster.leader.machine.groups[brokers[0].group]
        assert group.master_epoch == first[1]["master_epoch"]


async def test_settings_that_are_set_twice_answer_the_same() -> None:
    async with a_cluster() as (cluster, _):
        await ask(cluster, OPEN, 0)
        change = ("PUT", "/v1/groups/g1/settings", {"min_in_sync_replicas": 1})

        first, again = await ask(cluster, change, 1), await ask(cluster, change, 1)

        assert first[0] == 202
        assert again == first


async def test_a_session_that_is_not_open_is_refused_and_nothing_happens() -> None:
    async with a_cluster() as (cluster, _):
        status, problem = await ask(cluster, MAKE, 1, session="unknown")

        assert (status, problem["reason"]) == (409, "UNKNOWN_SESSION")
        assert "sequence" not in problem
        assert not users_topics(cluster.leader.machine)


@pytest.mark.parametrize(
    ("request_", "session", "sequence"),
    [
        (MAKE, "s", "-1"),
        (MAKE, "s", "x"),
        (MAKE, "s", "9" * 16),
        (MAKE, "a b", "1"),
        (OPEN, "s", "1"),
        (("POST", "/v1/transfers", {"group": "g1"}), "s", "1"),
        (("POST", "/v1/leadership", {}), "s", "1"),
        (("DELETE", "/v1/members/c1", None), "s", "1"),
    ],
)
async def test_bad_headers_are_refused(request_: Any, session: str, sequence: str) -> None:
    async with controllers() as cluster:
        status, problem = await ask(cluster, request_, sequence, session=session)

        assert (status, problem["code"]) == (400, "BAD_REQUEST")
        assert problem["field"] in ("Paceline-Session", "Paceline-Sequence")


async def test_a_sequence_that_was_another_command_is_a_conflict() -> None:
    async with a_cluster() as (cluster, _):
        await ask(cluster, OPEN, 0)

        status, problem = await ask(cluster, MAKE, 0)

        assert (status, problem["code"]) == (409, "CONFLICT")


async def test_clients_leave_sessions_to_the_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    async with controllers() as cluster:
        machine = type(cluster.leader.machine)
        monkeypatch.setattr(machine, "sessions_count", property(lambda _: SESSIONS_MAX // 2))

        status, problem = await ask(cluster, OPEN, 0)

        assert (status, problem["code"]) == (429, "OVERLOADED")


async def test_one_user_cannot_take_the_sessions_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_once, "SESSIONS_OF_USER_MAX", 3)

    async with controllers() as cluster:
        cluster.leader.machine._state.security = a_security(anonymous=(entry("Topic:a", SUB),))
        cluster.leader.access.apply(cluster.leader.machine.security)

        async def opened(who: str | None, name: str) -> int:
            headers = {**(bearer(who) if who else {}), "Paceline-Session": name}
            headers["Paceline-Sequence"] = "0"
            return (await cluster.ask("POST", "/v1/sessions", {}, headers=headers))[0]

        assert [await opened("ana", f"a{number}") for number in range(4)] == [201, 201, 201, 429]
        assert await opened("ana", "a0") == 201, "the same again"
        assert [await opened(None, f"s{number}") for number in range(4)] == [201, 201, 201, 429]
        assert [await opened("root", f"r{number}") for number in range(4)] == [201] * 4
        assert await opened("bob", "b0") == 201
        del cluster.leader.machine._state.sessions["a1"]  # it has expired
        assert [await opened("ana", "a4"), await opened("ana", "a5")] == [201, 429]
        monkeypatch.setattr(http_once, "SESSIONS_OF_NORMAL_USERS_MAX", 5)
        assert [await opened("bob", "b1"), await opened("root", "r5")] == [429, 201]


async def test_sessions_that_are_being_opened_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_once, "SESSIONS_OF_USER_MAX", 3)
    monkeypatch.setattr(http_once, "OWNERS_MAX", 1)
    async with controllers() as cluster:
        access = cluster.leader.access
        access.apply(a_security())
        sessions = SessionsOfUsers(cluster.leader.machine)
        asker, other = (Asker(access, Principal(name, "10.0.0.1")) for name in ("ana", "bob"))

        with ExitStack() as opening:
            for number in range(3):
                opening.enter_context(sessions.opening(asker, f"s{number}"))
            with pytest.raises(OverloadedError, match="ana has 3 sessions"):
                opening.enter_context(sessions.opening(asker, "s3"))
            opening.enter_context(sessions.opening(other, "t"))
        with sessions.opening(other, "u"):
            assert list(sessions._opened) == ["bob"], "of ana nothing is left"
