"""Graceful transfers: the leader orders the master, and what happens if it does not do it (R20)."""

import asyncio

from tests.unit.controller.harness import eventually
from tests.unit.controller.liveness_bed import Bed, a_running_group
from tests.unit.controller.test_sessions import a_cluster

from paceline.types import ReplicaId
from paceline.wire import session as wire
from paceline_controller.liveness_events import LivenessSettings


async def test_the_master_hands_over_to_the_member_that_is_named() -> None:
    async with a_cluster() as (cluster, brokers):
        status, result = await cluster.ask("POST", "/v1/transfers", {"group": "g1", "to": 3})

        assert (status, result["master"], result["master_epoch"]) == (200, 3, 2)
        assert result["is_graceful"] is True
        assert [order.preferred for order in brokers[0].orders] == [3]
        assert brokers[1].orders == []
        _, group = await cluster.ask("GET", "/v1/groups/g1")
        assert group["history"][-1]["reason"] == "transfer"


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

        assert (status, result["is_graceful"]) == (200, False)
        assert result["master"] != 1


async def test_what_cannot_be_is_refused_at_once_with_the_reason() -> None:
    async with a_cluster() as (cluster, brokers):
        for body, code, detail in (
            ({"group": "g1", "to": 1}, "ALREADY_MASTER", "replica 1 is the master"),
            ({"group": "g1", "to": 9}, "NO_ELECTION", "replica 9 is not a healthy member"),
        ):
            status, problem = await cluster.ask("POST", "/v1/transfers", body)
            assert (status, problem["reason"], problem["detail"]) == (409, code, detail)
        assert brokers[0].orders == []
        assert (await cluster.ask("POST", "/v1/transfers", {"group": "g9"}))[0] == 404


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
