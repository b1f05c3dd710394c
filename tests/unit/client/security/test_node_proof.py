"""What a node says to another one over HTTP is carried out once, there, and soon."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from tests.support.app_server import AppServer
from tests.support.askers import PROOFS, proof_of

from paceline.errors import UnauthenticatedError
from paceline.http_api.rights import NODE_CHALLENGE, _is_node, add_safe_headers
from paceline.platform.runtime import ManualClock, SeededRandom
from paceline.platform.secret import ClusterSecrets
from paceline.security import node_proof
from paceline.security.node_proof import CHALLENGE_MS, NodeProofs
from paceline.wire.proof import CHALLENGE_HEADER

PATH = "/v1/call"


class Node:
    """Of a cluster with one secret; `clock` is its own, and wrong by as much as one likes."""

    def __init__(self, name: str, *secrets: bytes) -> None:
        self.clock = ManualClock()
        self.addresses = {name}
        self.proofs = NodeProofs(
            ClusterSecrets(*(secrets or (b"the secret of a test",))),
            node_id=name,
            addresses=lambda: self.addresses,
            clock=self.clock,
            random=SeededRandom(name),
        )

    def told(self, other: "Node") -> dict[str, str]:
        """A request to another node, which that one takes."""
        (address,) = other.addresses
        return proof_of(self.proofs, "POST", PATH, to=other.proofs, address=address)

    def takes(self, headers: dict[str, str]) -> bool:
        return self.proofs.is_node("POST", PATH, headers)


def test_a_request_is_taken_once() -> None:
    a, b = Node("a"), Node("b")
    headers = a.told(b)

    assert b.takes(headers)
    with pytest.raises(UnauthenticatedError, match="second time"):
        b.takes(headers)
    assert b.takes(a.told(b)), "the next one is another"


def test_a_request_for_one_node_is_taken_by_no_other() -> None:
    a, b, c = Node("a"), Node("b"), Node("c")
    lured = proof_of(a.proofs, "POST", PATH, to=c.proofs, address="b")

    with pytest.raises(UnauthenticatedError, match="the node at b came here"):
        c.takes(lured)
    with pytest.raises(UnauthenticatedError, match="ask again"):
        b.takes(lured)


def test_a_request_from_before_a_restart_is_taken_no_more() -> None:
    a, b = Node("a"), Node("b")
    headers = a.told(b)
    reborn = NodeProofs(
        ClusterSecrets(b"the secret of a test"),
        node_id="b",
        addresses=lambda: {"b"},
        clock=ManualClock(),
        random=SeededRandom("another start"),
    )

    with pytest.raises(UnauthenticatedError, match="ask again"):
        reborn.is_node("POST", PATH, headers)


@pytest.mark.parametrize(("age_ms", "is_taken"), [(0, True), (2 * CHALLENGE_MS - 1, True)])
def test_a_request_that_was_held_up_is_taken_for_a_while(age_ms: int, is_taken: bool) -> None:
    a, b = Node("a"), Node("b")
    headers = a.told(b)
    b.clock.advance(age_ms)

    assert b.takes(headers) is is_taken
    with pytest.raises(UnauthenticatedError, match="second time"):
        b.takes(headers)


def test_a_request_that_was_held_up_for_long_is_not_taken() -> None:
    for looks_count in (1, 5):
        a, b = Node("a"), Node("b")
        headers = a.told(b)
        for _ in range(looks_count):
            b.clock.advance(2 * CHALLENGE_MS // looks_count)
            assert b.takes(a.told(b))

        with pytest.raises(UnauthenticatedError, match="ask again"):
            b.takes(headers)


def test_what_is_remembered_is_bounded_and_nothing_is_taken_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_proof, "CHALLENGE_PROOFS_MAX", 10)
    a, b = Node("a"), Node("b")
    sent = []

    for _ in range(95):
        sent.append(a.told(b))
        assert b.takes(sent[-1])
        remembered = len(b.proofs._present.nonces) + len(b.proofs._past.nonces)
        assert remembered <= 20

    for headers in sent:
        with pytest.raises(UnauthenticatedError):
            b.takes(headers)


def test_wall_clocks_do_not_matter() -> None:
    a, b = Node("a"), Node("b")
    a.clock.step_wall(3_600_000)
    b.clock.step_wall(-3_600_000)

    assert b.takes(a.told(b))


@asynccontextmanager
async def serving(node: Node) -> AsyncIterator[tuple[str, list[str]]]:
    """The node's address, and what it has carried out."""
    done: list[str] = []

    @web.middleware
    async def check(request: web.Request, handler: Any) -> web.StreamResponse:
        try:
            assert _is_node(node.proofs, request)
        except UnauthenticatedError as error:
            return web.Response(status=401, text=error.message)
        response: web.StreamResponse = await handler(request)
        return response

    async def handle(request: web.Request) -> web.Response:
        done.append(await request.text())
        return web.Response(text=request[NODE_CHALLENGE])

    app = web.Application(middlewares=[check])
    app.router.add_post(PATH, handle)
    app.on_response_prepare.append(add_safe_headers)
    async with AppServer(app) as server:
        node.addresses = {server.address}
        yield server.address, done


async def ask(asker: Node, http: aiohttp.ClientSession, address: str, body: bytes) -> int:
    asking = asker.proofs.request(
        http, "POST", address, PATH, url=f"http://{address}{PATH}", body=body
    )
    async with asking as answer:
        return answer.status


async def test_whoever_has_an_old_challenge_asks_once_more_by_itself() -> None:
    a, b = Node("a"), Node("b")
    async with serving(b) as (address, done), aiohttp.ClientSession() as http:
        together = await asyncio.gather(*(ask(a, http, address, b"%d" % n) for n in range(5)))
        assert (together, sorted(done)) == ([200] * 5, ["0", "1", "2", "3", "4"])
        b.clock.advance(10 * CHALLENGE_MS)
        assert await ask(a, http, address, b"late") == 200

    assert done[5:] == ["late"]


async def test_who_is_refused_for_another_reason_does_not_ask_again() -> None:
    """The address is not the node's own: a second attempt would be no better."""
    a, b = Node("a"), Node("b")
    async with serving(b) as (address, done), aiohttp.ClientSession() as http:
        b.addresses = {"elsewhere:1"}
        assert await ask(a, http, address, b"one") == 401
        assert await ask(a, http, address, b"two") == 401

    assert not done


@pytest.mark.parametrize("told", ["", "-", "zz" * 16, "a b", "0" * 31, "0" * 33])
def test_only_a_challenge_is_learned(told: str) -> None:
    assert PROOFS.learn("there", {CHALLENGE_HEADER: told}) is None
    assert PROOFS.learn("there", {}) is None
