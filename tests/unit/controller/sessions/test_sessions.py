"""Brokers' sessions with real sockets: proofs, commands, views, and a failover."""

import asyncio
from copy import copy
from typing import Any

import pytest
from tests.support.audit import on_disk
from tests.support.controller.harness import (
    DEADLINE_S,
    SECRET,
    TalkingBroker,
    controllers,
    eventually,
)
from tests.support.controller.sessions import a_cluster, group_of, master_of
from tests.support.rights import a_security

from paceline.platform.runtime import SystemClock
from paceline.platform.secret import ClusterSecrets
from paceline.types import MasterEpoch, ReplicaId, SetEpoch
from paceline.wire import session as wire


def first_mastership(broker: TalkingBroker) -> dict[str, Any]:
    """How replica 1 names itself as the master of epoch 1 that has confirmed 100 bytes."""
    return {
        "group": broker.group,
        "master": ReplicaId(1),
        "master_incarnation": broker.incarnation,
        "master_epoch": MasterEpoch(1),
        "confirm": 100,
    }


def alteration(broker: TalkingBroker, *members: TalkingBroker) -> wire.AlterSyncStateSet:
    group = group_of(broker)
    assert group is not None
    assert broker.replica_id is not None
    return wire.AlterSyncStateSet(
        group=broker.group,
        master=broker.replica_id,
        master_incarnation=broker.incarnation,
        master_epoch=group.master_epoch,
        set_epoch=group.set_epoch,
        members={m.replica_id: m.incarnation for m in members if m.replica_id is not None},
        confirm=0,
    )


async def test_three_empty_brokers_become_a_group_with_a_master() -> None:
    async with a_cluster() as (_, brokers):
        group = group_of(brokers[0])

        assert group is not None
        assert group.sync_state_set == {1, 2, 3}
        assert (group.master, group.master_epoch) == (1, 1)


async def test_a_broker_with_another_secret_is_refused_and_the_audit_says_so() -> None:
    async with controllers() as cluster:
        cluster.leader.access.apply(a_security())
        broker = TalkingBroker(cluster, 1)

        with pytest.raises(PermissionError, match="UNAUTHENTICATED"):
            await broker.start(secret=b"another secret, also of 32 bytes")

        await broker.stop()
        [told] = on_disk(cluster.disks[cluster.ids[0]], "unused/audit")
        assert (told.user, told.door, told.outcome) == ("anonymous", "session", "UNAUTHENTICATED")
        assert (told.source, told.decision) == ("127.0.0.1", "Deny")
        assert "secret" in told.rule


async def test_a_broker_of_another_cluster_is_refused() -> None:
    async with a_cluster() as (cluster, _):
        broker = TalkingBroker(cluster, 9)
        broker.cluster_id = "another"

        with pytest.raises(PermissionError, match="FORBIDDEN"):
            await broker.start()

        await broker.stop()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"type":"hello"}', '{"type":"heartbeat"}', "x" * 99]
)
async def test_a_first_message_that_is_no_hello_is_refused_and_closed(text: str) -> None:
    async with (
        controllers() as cluster,
        cluster.http.ws_connect(f"http://{cluster.addresses[0]}{wire.PATH}") as socket,
    ):
        await socket.receive_str()
        await socket.send_str(text)

        answer = wire.parse_from_controller(await socket.receive_str())

        assert isinstance(answer, wire.Refused)
        assert (await socket.receive()).type.name in ("CLOSE", "CLOSED", "CLOSING")


@pytest.mark.parametrize("way", ["text", "repeated", "flipped", "swapped", "own words back"])
async def test_a_message_that_is_not_the_next_of_the_broker_ends_the_session(way: str) -> None:
    async with a_cluster() as (cluster, brokers):
        socket = brokers[0].sockets[0]
        seal = copy(brokers[0]._seals[socket].outgoing)
        opening = wire.OpenSession().to_json()
        texts = [
            wire.encode(wire.Request(id=number, session="s", sequence=0, command=opening))
            for number in (1, 2)
        ]
        sent = [seal.message(text.encode()) for text in texts]
        match way:
            case "text":
                await socket.send_str(texts[0])
            case "repeated":
                await socket.send_bytes(sent[0])
                await socket.send_bytes(sent[0])
            case "flipped":
                await socket.send_bytes(sent[0][:-1] + bytes([sent[0][-1] ^ 1]))
            case "swapped":
                await socket.send_bytes(sent[1])
            case "own words back":
                listener = copy(brokers[0]._seals[socket].incoming)
                await socket.send_bytes(listener.message(texts[0].encode()))

        hub = cluster.leader.hub
        await eventually(lambda: len(hub.sessions) == len(brokers) - 1, "the session has ended")


async def test_a_session_goes_on_with_the_secret_that_the_broker_has_proven() -> None:
    """While secrets are replaced: the controller proves itself with another one at this time."""
    async with controllers(secrets=ClusterSecrets(b"x" * 32, SECRET)) as cluster:
        broker = TalkingBroker(cluster, 1)

        await broker.join()

        await broker.stop()


async def test_a_broker_that_does_not_seal_is_refused() -> None:
    async with controllers() as cluster:
        broker = TalkingBroker(cluster, 1)

        with pytest.raises(PermissionError, match="PEER"):
            await broker.start(is_sealed=False)

        await broker.stop()


async def test_a_repeated_command_gets_the_same_answer_over_another_controller() -> None:
    async with a_cluster(3) as (cluster, brokers):
        command = alteration(brokers[0], brokers[0], brokers[1])
        cluster.quorums[cluster.ids[0]].loses_answers = True
        unknown = await brokers[0].request(command, sequence=9)
        assert unknown.problem is not None
        assert unknown.problem["code"] == "OUTCOME_UNKNOWN"

        cluster.log.elect(cluster.ids[1])
        await eventually(lambda: cluster.leader.supervisor.is_leading, "the second leads")
        again = await brokers[0].request(command, sequence=9, node=1)

        assert again.result is not None
        assert again.result["ok"]
        assert again.result["sync_state_set"] == [1, 2]
        assert cluster.leader.machine.groups[brokers[0].group].set_epoch == SetEpoch(2)


async def test_a_follower_refers_to_the_leader_and_pushes_views_too() -> None:
    async with a_cluster(3) as (cluster, brokers):
        answer = await brokers[0].request(wire.OpenSession(), sequence=0, node=1)

        assert answer.problem is not None
        assert answer.problem["code"] == "NOT_LEADER"
        assert answer.problem["leader"] == str(cluster.addresses[0])
        versions = {node.machine.version for node in cluster.nodes.values()}
        assert len(versions) == 1
        await eventually(lambda: all(b.views_seen >= 3 for b in brokers), "views from all")


async def test_a_broker_cannot_speak_for_another() -> None:
    async with a_cluster() as (_, brokers):
        stolen = await brokers[1].request(alteration(brokers[0], brokers[0]), sequence=50)
        foreign = await brokers[1].request(
            wire.RegisterReplica(
                group=brokers[0].group,
                store_id=brokers[0].store_id,
                replica_id=brokers[0].replica_id,
                incarnation=brokers[0].incarnation,
                client_address="127.0.0.1:1",
                replication_address="127.0.0.1:2",
                end=0,
                confirm=0,
                last_epoch=MasterEpoch(0),
                is_empty=True,
                is_learner=False,
                is_unclean=False,
                is_suspect=False,
            ),
            sequence=51,
        )

        for answer in (stolen, foreign):
            assert answer.problem is not None
            assert answer.problem["code"] == "FORBIDDEN"


async def test_a_killed_master_is_replaced_within_moments_and_all_are_told() -> None:
    async with a_cluster(3) as (cluster, brokers):
        clock = SystemClock()
        began = clock.monotonic_ms()

        await brokers[0].kill()
        await eventually(
            lambda: all(master_of(broker) == 2 for broker in brokers[1:]), "a new master"
        )

        # Goal 60 ms; here the fake brokers share the test's loop and machine.
        assert clock.monotonic_ms() - began < 1000
        group = group_of(brokers[1])
        assert group is not None
        assert group.master_epoch == 2
        assert group.sync_state_set == {2, 3}


async def test_a_broken_session_of_a_living_master_changes_nothing() -> None:
    async with a_cluster() as (cluster, brokers):
        brokers[0].abort()
        await eventually(lambda: len(cluster.leader.hub.sessions) == 2, "the session is gone")
        await brokers[0].connect(str(cluster.addresses[0]))
        brokers[0].sockets.pop(0)
        await brokers[0].beat()

        assert cluster.leader.machine.groups[brokers[0].group].master_epoch == 1


async def test_a_master_that_steps_down_is_replaced_and_left_out() -> None:
    async with a_cluster() as (_, brokers):
        request = wire.StepDown(
            group=brokers[0].group,
            master=ReplicaId(1),
            master_incarnation=brokers[0].incarnation,
            master_epoch=MasterEpoch(1),
            confirm=0,
            preferred=ReplicaId(3),
        )

        result = await brokers[0].command(request)
        again = await brokers[0].command(request)

        assert (result["ok"], result["master"], result["sync_state_set"]) == (True, 3, [2, 3])
        assert (again["ok"], again["reason"]) == (False, "STALE_MASTER_EPOCH")


async def test_a_hand_over_waits_for_reports_newer_than_the_confirm_floor() -> None:
    """R16, R20: it had moved since the members' last heartbeats, and nobody was electable."""
    async with a_cluster() as (_, brokers):
        of_master = first_mastership(brokers[0])
        for broker in brokers:
            broker.end = 100  # no controller has heard of that yet
        assert (await brokers[0].command(wire.RaiseConfirmFloor(**of_master)))["ok"]

        result = await brokers[0].command(wire.StepDown(**of_master))

        assert (result["ok"], result["sync_state_set"]) == (True, [2, 3])


async def test_a_hand_over_to_nobody_is_refused_in_time() -> None:
    """R20: the refusal is definite, and the master need not wait long for it."""
    async with a_cluster() as (cluster, brokers):
        for broker in brokers[1:]:
            broker.is_silent = True
        of_master = first_mastership(brokers[0])
        assert (await brokers[0].command(wire.RaiseConfirmFloor(**of_master)))["ok"]

        result = await brokers[0].command(wire.StepDown(**of_master))

        assert (result["ok"], result["reason"]) == (False, "NO_ELECTION")
        assert cluster.leader.machine.groups[brokers[0].group].master == 1


async def test_a_new_start_of_the_master_is_registered_and_elected_again() -> None:
    async with a_cluster() as (_, brokers):
        brokers[0].incarnation = brokers[0].incarnation.__class__(2)
        brokers[0].end = 168
        assert (await brokers[0].register())["ok"]
        for broker in brokers:
            await broker.beat()

        await eventually(lambda: (master_of(brokers[1]) or 0) > 0, "somebody leads again")
        group = group_of(brokers[1])
        assert group is not None
        await eventually(lambda: group_of(brokers[1]).master_epoch == 2, "in a new epoch")  # type: ignore[union-attr]


async def test_brokers_hear_when_leadership_moves() -> None:
    async with a_cluster(3) as (cluster, brokers):
        for broker in brokers:
            broker.leaderships.clear()

        cluster.log.elect(cluster.ids[2])

        await eventually(
            lambda: all(any(told.is_leader for told in b.leaderships) for b in brokers),
            "the new leader tells",
        )
        for broker in brokers:
            told = [one.leader_address for one in broker.leaderships if one.is_leader]
            assert told == [str(cluster.addresses[2])]


async def test_a_session_that_says_nothing_is_closed() -> None:
    async with controllers(heartbeat_timeout_ms=300, election_open_timeout_ms=3000) as cluster:
        broker = TalkingBroker(cluster, 1)
        await broker.start()

        await eventually(lambda: not cluster.leader.hub.sessions, "closed by the controller")
        await broker.stop()


async def test_stopping_closes_every_session_in_time() -> None:
    async with a_cluster() as (cluster, _):
        async with asyncio.timeout(DEADLINE_S):
            await cluster.leader.stop()

        assert not cluster.nodes[cluster.ids[0]].hub.sessions


async def test_a_session_tells_changes_to_a_broker_that_asked_for_them() -> None:
    async with a_cluster() as (cluster, brokers):
        old, new = brokers[0], brokers[1]
        old.abort()
        old.sockets.clear()
        await old.connect(str(cluster.addresses[0]), takes_changes=False)
        await eventually(lambda: len(cluster.leader.hub.sessions) == len(brokers), "it is back")
        views, changes = (old.views_seen, new.views_seen), (old.changes_seen, new.changes_seen)

        await cluster.ask("POST", "/v1/topics", {"topic": "t"})

        version = cluster.leader.machine.version
        for broker in (old, new):
            await eventually(lambda b=broker: b.view.version == version, "it has heard")  # type: ignore[misc]
        assert old.view == new.view
        assert old.changes_seen == changes[0]
        assert new.views_seen == views[1]
        assert new.changes_seen > changes[1]
        assert old.views_seen > views[0]
