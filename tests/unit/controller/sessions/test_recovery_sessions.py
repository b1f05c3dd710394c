"""Brokers of a cluster whose controllers are lost, at new controllers: real sockets (R18)."""

from tests.support.controller.harness import TalkingBroker, eventually
from tests.support.controller.recovery_sessions import OLD, old_brokers

from paceline.types import Incarnation, MasterEpoch, ReplicaId
from paceline.wire import session as wire


async def test_such_a_session_is_of_no_replica_until_its_group_is_recovered() -> None:
    async with old_brokers() as (cluster, (first, second, _)):
        other = await first.request(second.shown(), sequence=90)
        more = wire.PresentTopics(
            group=second.group,
            store_id=second.store_id,
            incarnation=second.incarnation,
            first=1,
            topics=(),
        )
        mixed = await first.request(more, sequence=93)
        lied = await first.request(first.shown(cluster_id="another"), sequence=91)
        await first.beat()
        opened = await first.request(
            wire.OpenEpoch(
                group=first.group,
                master=ReplicaId(1),
                master_incarnation=first.incarnation,
                master_epoch=MasterEpoch(7),
                confirm=500,
            ),
            sequence=92,
        )

        for answer in (other, mixed, lied, opened):
            assert answer.problem is not None
            assert answer.problem["code"] == "FORBIDDEN"
        assert len(cluster.leader.machine.presented) == 3
        assert not cluster.leader.machine.groups


async def test_stores_are_listed_and_recovered_and_lead_again() -> None:
    async with old_brokers() as (cluster, brokers):
        status, listed = await cluster.ask("GET", "/v1/stores")
        chosen = listed["stores"][0]
        body = {"group": "g1", "store": chosen["store_id"]}
        recovered, result = await cluster.ask("POST", "/v1/recoveries", body)
        for broker in brokers:
            answer = await broker.register(last_epoch=MasterEpoch(7))
            assert (answer["ok"], answer["replaces_cluster"]) == (True, OLD)
            await broker.beat()

        assert (status, recovered) == (200, 200)
        assert [store["losses"] for store in listed["stores"]] == [[], [], []]
        assert (chosen["from_cluster"], chosen["topics"], chosen["end"]) == (OLD, 1, 500)
        assert result["sync_state_set"] == [1]
        group = cluster.leader.machine.groups[brokers[0].group]
        await eventually(lambda: group.master == 1, "the chosen one leads")
        assert group.master_epoch > 7
        assert (await cluster.ask("GET", "/v1/stores"))[1] == {"stores": []}


async def test_what_may_be_lost_is_refused_with_its_reason() -> None:
    async with old_brokers() as (cluster, brokers):
        longer = brokers[2].shown(end=900, incarnation=Incarnation(4))
        await brokers[2].command(longer)
        body = {"group": "g1", "store": brokers[0].store_id}

        status, problem = await cluster.ask("POST", "/v1/recoveries", body)
        accepted, result = await cluster.ask(
            "POST", "/v1/recoveries", {**body, "give_up_missing": True}
        )

        assert (status, problem["reason"]) == (409, "MAY_LOSE_RECORDS")
        assert "holds more" in problem["detail"]
        assert (accepted, result["is_unclean"]) == (200, True)


async def test_a_group_that_is_not_begun_says_why() -> None:
    async with old_brokers() as (cluster, _):
        empty = TalkingBroker(cluster, 9)
        await empty.join()

        status, group = await cluster.ask("GET", "/v1/groups/g1")

        assert (status, group["is_claimed"], group["master_epoch"]) == (200, True, 0)
        assert empty.replica_id == 4
        await empty.stop()


async def test_a_store_is_forgotten() -> None:
    async with old_brokers() as (cluster, brokers):
        gone, _ = await cluster.ask("DELETE", f"/v1/stores/{brokers[0].store_id}")
        again, problem = await cluster.ask("DELETE", f"/v1/stores/{brokers[0].store_id}")
        bad, _ = await cluster.ask("DELETE", "/v1/stores/%20")

        assert (gone, again, bad) == (200, 409, 404)
        assert problem["reason"] == "STORE_UNKNOWN"
        assert len(cluster.leader.machine.presented) == 2
