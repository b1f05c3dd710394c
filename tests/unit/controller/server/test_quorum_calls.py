"""Status, leadership and members over HTTP, and the controllers' addresses in views."""

from typing import Any

import pytest
from tests.support.controller.builders import a_group, reason
from tests.support.controller.harness import controllers, eventually

from paceline.types import ControllerId
from paceline_controller.state import Machine
from paceline_controller.state.operator_commands import SetControllers

NEW = {"controller_id": "c9", "raft": "127.0.0.1:1", "client": "127.0.0.1:2"}


async def test_status_shows_log_fsyncs_and_members() -> None:
    async with controllers() as cluster:
        _, status = await cluster.ask("GET", "/v1/status")

        assert status["commit_index"] == status["applied_index"]
        assert set(status["sync"]) == {"count", "p50_ms", "p99_ms", "max_ms"}
        assert {"snapshot_age_ms", "generation", "members", "is_handing_over"} <= set(status)
        assert {"leader_silent_ms", "heartbeat_gap_ms", "waiting_commands"} <= set(status)
        assert "election_timeout_ms" in status


async def test_leadership_goes_to_the_controller_that_is_named() -> None:
    async with controllers(2) as cluster:
        status, answer = await cluster.ask("POST", "/v1/leadership", {"to": "c2"})

        assert (status, answer["leader"]) == (200, "c2")
        assert set(answer) == {"leader", "leader_address", "term", "elapsed_ms"}
        await eventually(
            lambda: cluster.nodes[ControllerId("c2")].supervisor.is_leading, "c2 leads"
        )
        status, problem = await cluster.ask("POST", "/v1/leadership", {"to": "c2"}, node=1)
        assert (status, problem["code"]) == (409, "COMMAND_REFUSED")


async def test_leadership_that_is_asked_for_again_moves_once() -> None:
    """R38."""
    async with controllers(3) as cluster:
        _, before = await cluster.ask("GET", "/v1/status")
        order = {"to": "c2", "from": "c1", "term": before["term"]}
        first = await cluster.ask("POST", "/v1/leadership", order)
        second = cluster.nodes[ControllerId("c2")].supervisor
        await eventually(lambda: second.is_leading, "c2 leads")

        for body in (order, {"from": "c1", "term": before["term"]}):
            for node in (0, 1, 2):
                status, again = await cluster.ask("POST", "/v1/leadership", body, node=node)
                assert (status, again["leader"], again["term"]) == (200, "c2", first[1]["term"])
        for stale in (
            {"to": "c3", "from": "c1", "term": before["term"]},
            {"to": "c3", "from": "c1", "term": first[1]["term"]},
            {"to": "c1", "from": "c2", "term": first[1]["term"] + 1},
            {"from": "c2", "term": before["term"]},
        ):
            status, problem = await cluster.ask("POST", "/v1/leadership", stale)
            assert (status, problem["reason"]) == (409, "STALE_TERM"), stale
        assert second.is_leading


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("POST", "/v1/leadership", {"to": "c 2"}, (400, "to")),
        ("POST", "/v1/leadership", {"who": "c2"}, (400, "who")),
        ("POST", "/v1/members", {**NEW, "controller_id": "../x"}, (400, "controller_id")),
        ("POST", "/v1/members", {**NEW, "raft": "nowhere"}, (400, "raft")),
        ("POST", "/v1/members", {**NEW, "client": 7}, (400, "client")),
        ("POST", "/v1/members", {**NEW, "replaces": ""}, (400, "replaces")),
        ("POST", "/v1/members", {**NEW, "more": 1}, (400, "more")),
        ("POST", "/v1/leadership", {"from": "c1"}, (400, "term")),
        ("POST", "/v1/leadership", {"term": 1}, (400, "from")),
        ("POST", "/v1/members", {**NEW, "generation": -1}, (400, "generation")),
        ("DELETE", "/v1/members/c1?generation=x", None, (400, "generation")),
        ("DELETE", "/v1/members/c1?generation=0", None, (409, None)),
        ("POST", "/v1/members", NEW, (409, None)),
        ("DELETE", "/v1/members/c1", None, (409, None)),
        ("DELETE", "/v1/members/c%20", None, (404, None)),
    ],
)
async def test_what_cannot_be_is_refused(
    method: str, path: str, body: Any, expected: tuple[int, str | None]
) -> None:
    async with controllers() as cluster:
        status, problem = await cluster.ask(method, path, body)

        assert (status, problem.get("field")) == expected


def test_the_controllers_of_a_newer_generation_are_published() -> None:
    driver = a_group()
    before = driver.machine.version

    driver.do(SetControllers(generation=3, addresses=("h:1", "h:2")))
    late = driver.do(SetControllers(generation=2, addresses=("h:9",)))

    view = driver.machine.view(("configured:1",))
    assert (view.controllers, view.controllers_generation) == (("h:1", "h:2"), 3)
    assert view.version == before + 1
    assert reason(late) == "STALE_GENERATION"
    again = Machine()
    again.restore(driver.machine.snapshot())
    assert again.view().controllers == ("h:1", "h:2")
    assert again.digest() == driver.machine.digest()
