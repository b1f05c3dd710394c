"""Users of a gateway have connections of their own, as long as they use them and there is room."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
from tests.support.controller.harness import eventually

from paceline.errors import OverloadedError, PeerError
from paceline.net.cluster import Cluster
from paceline.platform.runtime import ManualClock
from paceline.security.identity import Principal
from paceline.wire.users import ANONYMOUS
from paceline_gateway import clusters
from paceline_gateway.clusters import CALL_MS_MAX, UserCluster, UserClusters

IDLE_MS = 300_000
ANA, BOB, EVE = (Principal(name, "10.0.0.1", f"key-{name}", door="grpc") for name in "abe")


class Users:
    """Of a gateway for two users, whose cluster answers at once."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.closed: list[str] = []
        self.clusters = UserClusters(
            lambda principal: Cluster("127.0.0.1:1"),
            clock=self.clock,
            clusters_max=2,
            idle_ms=IDLE_MS,
        )


@pytest.fixture
async def users(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Users]:
    made = Users()
    close = UserCluster.close

    async def start(user: UserCluster) -> None:
        if user.principal.user == "e":
            user.refusal = PeerError("no node of the cluster answers")

    async def closing(user: UserCluster) -> None:
        made.closed.append(user.principal.user)
        await close(user)

    monkeypatch.setattr(UserCluster, "start", start)
    monkeypatch.setattr(UserCluster, "close", closing)
    yield made
    await made.clusters.close()
    assert made.clusters.count == 0


async def test_a_user_has_one_for_each_key_address_and_door(users: Users) -> None:
    ana = await users.clusters.of(ANA)

    assert await users.clusters.of(ANA._replace(request_id="7")) is ana
    assert await users.clusters.of(ANA._replace(door="remoting")) is not ana


async def test_an_idle_one_is_closed_and_one_that_is_held_is_not(users: Users) -> None:
    ana = await users.clusters.of(ANA)
    release = ana.hold()
    users.clock.advance(IDLE_MS)
    users.clusters.close_idle()
    assert users.clusters.count == 1

    release()
    release()
    assert ana.holders == 0
    users.clusters.close_idle()
    assert users.clusters.count == 0
    assert await users.clusters.of(ANA) is not ana


async def test_one_that_is_asked_for_is_not_idle(users: Users) -> None:
    ana = await users.clusters.of(ANA)
    users.clock.advance(IDLE_MS - 1)
    assert await users.clusters.of(ANA) is ana
    users.clock.advance(IDLE_MS - 1)

    users.clusters.close_idle()

    assert await users.clusters.of(ANA) is ana


async def test_where_there_is_no_room_the_one_that_was_idle_longest_goes(users: Users) -> None:
    ana = await users.clusters.of(ANA)
    users.clock.advance(1)
    await users.clusters.of(BOB)
    third = ANA._replace(source="10.0.0.2")
    release = ana.hold()
    users.clock.advance(CALL_MS_MAX - 1)
    with pytest.raises(OverloadedError, match="user_clusters_max"):
        await users.clusters.of(third)

    users.clock.advance(1)
    await users.clusters.of(third)
    assert await users.clusters.of(ANA) is ana, "it is held, so the other one went"
    release()
    with pytest.raises(OverloadedError):
        await users.clusters.of(BOB)


async def test_a_user_at_many_addresses_leaves_places_for_others(users: Users) -> None:
    clusters = UserClusters(
        lambda principal: Cluster("127.0.0.1:1"), clock=users.clock, clusters_max=4
    )
    at_addresses = [ANA._replace(source=f"10.0.0.{number}") for number in range(4)]
    first, *_ = [await clusters.of(each) for each in at_addresses[:3]]

    with pytest.raises(OverloadedError, match="user a is served at 3 addresses"):
        await clusters.of(at_addresses[3])
    bob = await clusters.of(BOB)
    users.clock.advance(CALL_MS_MAX)
    release = first.hold()
    await clusters.of(at_addresses[3])

    assert users.closed == ["a"]
    assert await clusters.of(BOB) is bob
    assert await clusters.of(at_addresses[0]) is first
    release()
    nobody = [each._replace(user=ANONYMOUS) for each in at_addresses]
    users.clock.advance(CALL_MS_MAX)
    for each in nobody:
        await clusters.of(each)
    assert clusters.count == 4
    await clusters.close()


async def test_one_that_cannot_start_leaves_its_place(users: Users) -> None:
    with pytest.raises(PeerError):
        await users.clusters.of(EVE)

    assert users.clusters.count == 0
    assert users.closed == ["e"]


@pytest.mark.parametrize("error", [None, PeerError("no node of the cluster answers")])
async def test_one_whose_callers_have_gone_before_it_started_leaves_its_place(
    users: Users, monkeypatch: pytest.MonkeyPatch, error: PeerError | None
) -> None:
    answer = asyncio.Event()

    async def start(user: UserCluster) -> None:
        await answer.wait()
        if error is not None:
            raise error

    monkeypatch.setattr(UserCluster, "start", start)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await users.clusters.of(ANA)
    answer.set()
    users.clock.advance(IDLE_MS)

    def has_left() -> bool:
        users.clusters.close_idle()
        return users.clusters.count == 0 and users.closed == ["a"]

    await eventually(has_left, "it has left")


async def test_renewed_ones_go_when_their_calls_have_ended(users: Users) -> None:
    ana = await users.clusters.of(ANA)
    users.clusters.renew()

    assert await users.clusters.of(ANA) is not ana
    users.clusters.close_idle()
    assert users.clusters.count == 2
    users.clock.advance(CALL_MS_MAX)
    users.clusters.close_idle()
    assert users.clusters.count == 1


async def test_a_cluster_that_does_not_answer_is_told_and_no_failure_of_the_gateway(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "_START_TIMEOUT_MS", 1)
    users = UserClusters(lambda principal: Cluster("127.0.0.1:1"))

    with pytest.raises(PeerError):
        await users.of(ANA)
    await users.close()

    assert users.count == 0
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
