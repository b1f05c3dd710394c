"""What a controller that follows relays to the leader, and never tells wrongly (R38)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from tests.support.askers import PROOFS, proof_of
from tests.support.controller.builders import users_topics
from tests.support.controller.harness import Controllers, controllers, eventually, free_address
from tests.support.controller.sessions import a_cluster

from paceline.security.node_tls import Dial
from paceline.wire.commands import NOT_RELAYED_HEADER
from paceline_controller.server import relay
from paceline_controller.server.http_errors import problem_middleware
from paceline_controller.server.relay import RELAYED, Relay


async def test_every_write_may_be_asked_of_a_follower() -> None:
    async with a_cluster(3) as (cluster, _):
        status, made = await cluster.ask("POST", "/v1/topics", {"topic": "t", "queues": 2}, node=1)
        assert (status, made["queues"]) == (201, {"g1": 2})
        settings = {"min_in_sync_replicas": 1}
        status, _ = await cluster.ask("PUT", "/v1/groups/g1/settings", settings, node=2)
        assert status == 202
        status, elected = await cluster.ask("POST", "/v1/elections", {"group": "g1"}, node=1)
        assert (status, elected["ok"]) == (200, True)
        assert (await cluster.ask("DELETE", "/v1/topics/t", node=1))[0] == 200
        status, answer = await cluster.ask("POST", "/v1/leadership", {"to": "c2"}, node=2)
        assert (status, answer["leader"]) == (200, "c2")

        assert not users_topics(cluster.leader.machine)


async def test_who_does_not_want_a_relay_is_told_the_leader() -> None:
    async with a_cluster(3) as (cluster, _):
        headers = {NOT_RELAYED_HEADER: "true"}
        body = {"topic": "t", "queues": 2}

        refused, problem = await cluster.ask("POST", "/v1/topics", body, node=1, headers=headers)
        made, _ = await cluster.ask("POST", "/v1/topics", body, node=0, headers=headers)

        assert (refused, problem["code"]) == (421, "NOT_LEADER")
        assert problem["leader"] == str(cluster.addresses[0])
        assert made == 201


async def test_what_the_leader_refuses_is_refused_in_its_words() -> None:
    async with a_cluster(3) as (cluster, _):
        for method, path, body, status in (
            ("POST", "/v1/topics", {"topic": "bad name"}, 400),
            ("POST", "/v1/topics", {"topic": "t", "color": "red"}, 400),
            ("DELETE", "/v1/topics/none", None, 404),
            ("DELETE", "/v1/groups/g1/replicas/1?force=true", None, 409),
            ("DELETE", "/v1/groups/g1/replicas/1?force=maybe", None, 400),
            ("PATCH", "/v1/topics", {}, 405),
            ("POST", "/v1/nothing", {}, 404),
        ):
            there = await cluster.ask(method, path, body, node=0)
            here = await cluster.ask(method, path, body, node=1)
            assert here == there
            assert here[0] == status, here
        status, problem = await cluster.ask("POST", "/v1/topics", data=b" " * 300_000, node=1)
        assert (status, problem["code"]) == (413, "TOO_LARGE")


async def test_a_relayed_request_is_never_relayed_again() -> None:
    async with controllers(3) as cluster:
        url, body = f"http://{cluster.addresses[1]}/v1/topics", b'{"topic": "t"}'
        proof = proof_of(
            cluster.nodes[cluster.ids[2]].proofs,
            "POST",
            "/v1/topics",
            body,
            to=cluster.nodes[cluster.ids[1]].proofs,
            address=str(cluster.addresses[1]),
            source="10.0.0.1",
        )
        media = {"Content-Type": "application/json", RELAYED: "c3"}
        async with cluster.http.post(url, data=body, headers={**proof, **media}) as answer:
            problem = await answer.json(content_type=None)
        async with cluster.http.post(url, data=body, headers=media) as unproven:
            assert unproven.status == 401, "its address would count as the asker's"

        assert (answer.status, problem["code"]) == (421, "NOT_LEADER")
        assert problem["leader"] == str(cluster.addresses[0])


async def test_what_a_node_has_proven_is_not_relayed_with_another_body() -> None:
    """A follower would vouch for what somebody put into a request that he has overheard."""
    async with controllers(3) as cluster:
        follower = cluster.nodes[cluster.ids[1]].proofs
        proof = proof_of(
            cluster.leader.proofs,
            "POST",
            "/v1/topics",
            b"{}",
            to=follower,
            address=str(cluster.addresses[1]),
            source="10.0.0.1 ana",
        )
        url = f"http://{cluster.addresses[1]}/v1/topics"
        async with cluster.http.post(url, json={"topic": "t"}, headers=proof) as answer:
            problem = await answer.json(content_type=None)

    assert (answer.status, problem["code"]) == (421, "NOT_LEADER")


async def test_without_a_leader_a_write_is_refused_for_certain() -> None:
    async with controllers(2) as cluster:
        cluster.log.elect(None)
        await eventually(lambda: not _any_leads(cluster), "nobody leads")

        status, problem = await cluster.ask("POST", "/v1/topics", {"topic": "t"}, node=1)

        assert (status, problem["code"], problem["leader"]) == (421, "NOT_LEADER", None)
        assert problem["definite"]


async def test_a_leader_whose_answer_is_unknown_is_told_as_it_is() -> None:
    async with a_cluster(2) as (cluster, _):
        cluster.quorums[cluster.ids[0]].loses_answers = True

        status, problem = await cluster.ask("POST", "/v1/topics", {"topic": "t"}, node=1)

        assert (status, problem["code"], problem["definite"]) == (504, "OUTCOME_UNKNOWN", False)
        assert "t" in cluster.leader.machine.topics


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
@pytest.mark.parametrize("how", ["breaks off", "never ends", "is silent"])
async def test_a_leader_that_was_reached_and_did_not_answer_is_an_unknown_outcome(
    method: str, how: str
) -> None:
    leader = _BadLeader(how)
    async with _serving(leader) as (ask, _):
        status, problem = await ask(method)

        assert (status, problem["code"], problem["definite"]) == (504, "OUTCOME_UNKNOWN", False)
        assert leader.asked == ["c9"], "sent once, and marked"


@pytest.mark.parametrize("how", ["breaks off", "never ends", "is silent"])
async def test_a_linearizable_read_that_is_not_answered_is_nobodys_unknown_write(how: str) -> None:
    leader = _BadLeader(how)
    async with _serving(leader) as (ask, _):
        status, problem = await ask("GET", "?linearizable=true")

        assert (status, problem["code"]) == (502, "PEER")
        assert leader.asked == ["c9"], "sent once, and marked"


async def test_a_leader_that_was_not_reached_is_a_definite_refusal() -> None:
    async with _serving(None) as (ask, address):
        status, problem = await ask("DELETE")

        assert (status, problem["code"], problem["definite"]) == (421, "NOT_LEADER", True)
        assert problem["leader"] == address


def _any_leads(cluster: Controllers) -> bool:
    return any(node.supervisor.is_leading for node in cluster.nodes.values())


class _BadLeader:
    """Takes a request, and does not answer it as it should."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.asked: list[str] = []
        self.is_over = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.headers[RELAYED])
        assert request.transport is not None
        if self.how == "breaks off":
            request.transport.abort()
        answer = web.StreamResponse()
        await answer.prepare(request)
        if self.how == "is silent":
            await self.is_over.wait()
        while not self.is_over.is_set():
            await answer.write(b"x" * 65_536)
        return answer


@asynccontextmanager
async def _serving(leader: _BadLeader | None) -> AsyncIterator[tuple[Any, str]]:
    """A follower of that leader (None: nobody is at its address); asks it, and the address."""
    theirs = web.Application()
    runner = web.AppRunner(theirs, access_log=None, shutdown_timeout=0)
    address = str(free_address())
    if leader is not None:
        theirs.router.add_route("*", "/{path:.*}", leader.handle)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        address = f"127.0.0.1:{runner.addresses[0][1]}"
    relay = Relay(
        lambda: address,
        is_leading=lambda: False,
        controller_id="c9",
        timeout_ms=300,
        source_host="",
        proofs=PROOFS,
        dial=Dial(),
    )
    await relay.start()
    ours = web.Application(middlewares=[problem_middleware, relay.middleware])
    ours.router.add_route("*", "/v1/topics", _unreachable)
    follower = web.AppRunner(ours, access_log=None, shutdown_timeout=0)
    await follower.setup()
    await web.TCPSite(follower, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{follower.addresses[0][1]}/v1/topics"

    async def ask(method: str, query: str = "") -> tuple[int, Any]:
        async with aiohttp.ClientSession() as http, http.request(method, url + query) as answer:
            return answer.status, await answer.json(content_type=None)

    try:
        yield ask, address
    finally:
        if leader is not None:
            leader.is_over.set()
        await follower.cleanup()
        await relay.stop()
        await runner.cleanup()


async def _unreachable(request: web.Request) -> web.StreamResponse:
    raise AssertionError("a follower does not handle writes itself")


async def test_bodies_that_come_slowly_keep_nobody_from_the_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relay, "RELAYS_MAX", 4)
    async with a_cluster(2) as (cluster, _):
        address = cluster.addresses[1]
        slow = []
        for _ in range(8):
            _, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(
                b"POST /v1/topics HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                b"Content-Length: 100\r\n\r\n{"
            )
            slow.append(writer)
        follower = cluster.nodes[cluster.ids[1]]
        await eventually(lambda: follower.places.count >= 8, "all have come")

        status, _ = await cluster.ask("POST", "/v1/topics", {"topic": "t", "queues": 1}, node=1)
        for writer in slow:
            writer.transport.abort()

    assert status == 201
