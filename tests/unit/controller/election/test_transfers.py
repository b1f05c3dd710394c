"""Graceful transfers: the leader orders the master, and what happens if it does not (R20, R38)."""

import asyncio
from typing import Any

import pytest
from tests.support.controller.harness import eventually
from tests.support.controller.liveness_bed import Bed, a_running_group
from tests.support.controller.sessions import a_cluster

from paceline.admin.client import AdminClient
from paceline.errors import OutcomeUnknownError
from paceline.platform.runtime import SystemClock
from paceline.types import GroupName, ReplicaId
from paceline.wire import session as wire
from paceline_controller.election.election import ReplicaStatus
from paceline_controller.election.liveness_events import LivenessSettings
from paceline_controller.state import Machine
from paceline_controller.state.model import Group


async def test_the_master_hands_over_to_the_member_that_is_named() -> None:
    async with a_cluster() as (cluster, brokers):
        status, result = await cluster.ask("POST", "/v1/transfers", {"group": "g1", "to": 3})

        assert (status, result["master"], result["master_epoch"]) == (200, 3, 2)
        assert result["is_graceful"] is True
        assert [order.preferred for order in brokers[0].orders] == [3]
        assert brokers[1].orders == []
        _, group = await cluster.ask("GET", "/v1/groups/g1")
        assert group["history"][-1]["reason"] == "transfer"


async def test_a_transfer_that_is_asked_for_again_moves_mastership_once() -> None:
    async with a_cluster(2) as (cluster, brokers):
        order = {"group": "g1", "to": 3, "from": 1, "master_epoch": 1}
        first = await cluster.ask("POST", "/v1/transfers", order, node=1)
        cluster.log.elect(cluster.ids[1])
        await eventually(lambda: cluster.leader.supervisor.is_leading, "the second leads")

        for body in (order, {"group": "g1", "from": 1, "master_epoch": 1}):
            for node in (0, 1):
                assert await cluster.ask("POST", "/v1/transfers", body, node=node) == first
        assert (first[0], first[1]["master"], first[1]["is_graceful"]) == (200, 3, True)
        assert [len(broker.orders) for broker in brokers] == [1, 0, 0]


async def test_an_admin_client_whose_answers_are_lost_moves_everything_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with a_cluster(3) as (cluster, brokers):
        async with AdminClient([str(address) for address in cluster.addresses]) as admin:
            send = admin._cluster.http.send
            lost: list[str] = []

            async def send_and_lose_the_first_answer(*arguments: Any, **more: Any) -> Any:
                answer = await send(*arguments, **more)
                if arguments[2] not in lost:
                    lost.append(arguments[2])
                    raise OutcomeUnknownError("the answer was lost")
                return answer

            monkeypatch.setattr(admin._cluster.http, "send", send_and_lose_the_first_answer)
            moved = await admin.broker_groups.transfer("g1", to=3)
            led = await admin.controllers.transfer_leadership("c2")

        assert lost == ["/v1/transfers", "/v1/leadership"]
        assert (moved["master"], moved["master_epoch"], moved["is_graceful"]) == (3, 2, True)
        assert (led["leader"], led["term"]) == ("c2", cluster.log.term)
        assert [len(broker.orders) for broker in brokers] == [1, 0, 0]


async def test_an_admin_client_does_not_guess_after_somebody_elses_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with a_cluster() as (cluster, _), AdminClient([str(cluster.addresses[0])]) as admin:
        send = admin._cluster.http.send

        async def lose_the_request(*arguments: Any, **more: Any) -> Any:
            monkeypatch.setattr(admin._cluster.http, "send", send)
            await cluster.ask("POST", "/v1/elections", {"group": "g1", "preferred": 2})
            raise OutcomeUnknownError("the request was lost")

        monkeypatch.setattr(admin._cluster.http, "send", lose_the_request)
        with pytest.raises(OutcomeUnknownError, match="replica 2 is the master in epoch 2"):
            await admin.broker_groups.transfer("g1", to=3)


@pytest.mark.parametrize(
    ("basis", "detail"),
    [
        ({"to": 2, "from": 1, "master_epoch": 1}, "replica 3 is the master in epoch 2"),
        ({"to": 2, "from": 1, "master_epoch": 2}, "not replica 1 in epoch 2"),
        ({"from": 3, "master_epoch": 1}, "not replica 3 in epoch 1"),
        ({"from": 3, "master_epoch": 5}, "not replica 3 in epoch 5"),
    ],
)
async def test_a_transfer_from_what_is_no_more_is_refused(basis: Any, detail: str) -> None:
    async with a_cluster() as (cluster, brokers):
        await cluster.ask("POST", "/v1/transfers", {"group": "g1", "to": 3})

        status, problem = await cluster.ask("POST", "/v1/transfers", {"group": "g1", **basis})

        assert (status, problem["reason"]) == (409, "STALE_MASTER_EPOCH")
        assert detail in problem["detail"]
        assert [len(broker.orders) for broker in brokers] == [1, 0, 0]


async def test_half_of_what_a_transfer_starts_from_is_refused() -> None:
    async with a_cluster() as (cluster, _):
        for basis, missing in (({"from": 1}, "master_epoch"), ({"master_epoch": 1}, "from")):
            status, problem = await cluster.ask("POST", "/v1/transfers", {"group": "g1", **basis})
            assert (status, problem["field"]) == (400, missing)


async def test_a_master_that_refuses_stays_and_its_reason_is_told() -> None:
    async with a_cluster() as (cluster, brokers):
        brokers[0].answers_orders = False
        asking = asyncio.gather(cluster.ask("POST", "/v1/transfers", {"group": "g1"}))
        await eventually(lambda: brokers[0].orders, "the order arrives")

        again = await cluster.ask("POST", "/v1/transfers", {"group": "g1"})
        epoch = brokers[0].orders[0].master_epoch
        await brokers[0].say(wire.HandOverRefused(master_epoch=epoch, reason="a member lags"))
        [(status, problem)] = await asking

        assert (again[0], again[1]["reason"]) == (409, "TRANSFER_UNDER_WAY")
        assert (status, problem["reason"]) == (409, "HAND_OVER_REFUSED")
        assert problem["detail"] == "a member lags"
        assert cluster.leader.machine.groups[brokers[0].group].master_epoch == 1


async def test_a_master_that_ignores_the_order_is_replaced_within_a_second_or_so() -> None:
    async with a_cluster() as (cluster, brokers):
        brokers[0].answers_orders = False

        status, result = await cluster.ask("POST", "/v1/transfers", {"group": "g1", "to": 2})

        assert status == 200, result
        assert result["is_graceful"] is False
        assert result["master"] != 1


async def test_a_member_is_asked_how_it_is_before_its_transfer_is_refused() -> None:
    async with a_cluster() as (cluster, brokers):
        await brokers[1].beat(is_healthy=False)  # and is well by now

        def is_heard() -> bool:
            group = cluster.leader.machine.groups[brokers[1].group]
            liveness, now_ms = cluster.leader.supervisor.liveness, SystemClock().monotonic_ms()
            standing = liveness.belief(group, ReplicaId(2), now_ms).standing
            return standing is ReplicaStatus.UNHEALTHY

        await eventually(is_heard, "the leader has heard it")

        status, result = await cluster.ask("POST", "/v1/transfers", {"group": "g1", "to": 2})

        assert status == 200, result
        assert (result["master"], result["is_graceful"]) == (2, True)


async def test_a_master_that_goes_while_members_are_asked_needs_no_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It restarts, and its place is vacant: there is nobody who could hand over."""
    async with a_cluster() as (cluster, brokers):
        supervisor = cluster.leader.supervisor
        decide = supervisor._decide

        async def decide_as_it_goes(group: Group, **asked: Any) -> Any:
            decision = await decide(group, **asked)
            cluster.leader.machine.groups[group.group].master = None
            return decision

        monkeypatch.setattr(supervisor, "_decide", decide_as_it_goes)

        status, result = await cluster.ask("POST", "/v1/transfers", {"group": "g1", "to": 2})

        assert (status, result.get("master"), result.get("is_graceful")) == (200, 2, False)
        assert brokers[0].orders == []


async def test_what_cannot_be_is_refused_with_the_reason() -> None:
    async with a_cluster() as (cluster, brokers):
        for body, code, detail in (
            ({"group": "g1", "to": 1}, "ALREADY_MASTER", "replica 1 is the master"),
            ({"group": "g1", "to": 9}, "NO_ELECTION", "replica 9 is not a healthy member"),
        ):
            status, problem = await cluster.ask("POST", "/v1/transfers", body)
            assert (status, problem["reason"], problem["detail"]) == (409, code, detail)
        assert brokers[0].orders == []
        assert (await cluster.ask("POST", "/v1/transfers", {"group": "g9"}))[0] == 404


async def test_election_of_a_group_that_is_removed_while_reports_are_awaited_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with a_cluster() as (cluster, _):
        supervisor = cluster.leader.supervisor

        def remove(group: GroupName) -> None:
            monkeypatch.setattr(Machine, "groups", {})

        monkeypatch.setattr(supervisor._hub, "ask_reports", remove)

        status, problem = await cluster.ask(
            "POST", "/v1/elections", {"group": "g1", "preferred": 9}
        )

        assert (status, problem["code"]) == (404, "GROUP_NOT_FOUND")


# -- the preferred master -------------------------------------------------------------------------

SETTLE_MS = LivenessSettings().preferred_settle_ms


def a_group_that_prefers(number: int) -> Bed:
    bed = a_running_group()
    bed.driver.group.replicas[ReplicaId(number)].election_priority = 1
    return bed


def orders(bed: Bed, milliseconds: int, *beating: int) -> list[ReplicaId]:
    """Whom masters are to hand over to while time passes."""
    before = len(bed.transfers)
    bed.run(milliseconds, *beating)
    return bed.transfers[before:]


def test_a_preferred_member_gets_mastership_after_it_has_been_well_for_long() -> None:
    bed = a_group_that_prefers(3)

    assert orders(bed, SETTLE_MS - 500, 1, 2, 3) == []
    assert orders(bed, 1000, 1, 2, 3) == [3]
    assert orders(bed, SETTLE_MS - 1000, 1, 2, 3) == []  # hysteresis between attempts, too


def test_who_was_silent_meanwhile_waits_anew() -> None:
    bed = a_group_that_prefers(3)

    orders(bed, SETTLE_MS - 2000, 1, 2, 3)
    orders(bed, 2500, 1, 2)
    assert orders(bed, SETTLE_MS - 500, 1, 2, 3) == []
    assert orders(bed, 1000, 1, 2, 3) == [3]


def test_nobody_is_preferred_to_the_one_who_leads_already() -> None:
    bed = a_group_that_prefers(1)

    assert orders(bed, 2 * SETTLE_MS, 1, 2, 3) == []


def test_the_preferred_member_wins_an_election() -> None:
    bed = a_group_that_prefers(3)

    bed.close(1)
    bed.probe(1, is_refused=True)

    assert bed.elections[-1].winner == 3
