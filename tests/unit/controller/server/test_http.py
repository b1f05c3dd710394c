"""The HTTP interface on an in-memory log: routes, watch, and bad input."""

import asyncio
from typing import Any

import aiohttp
import pytest
from tests.support.controller.builders import users_topics
from tests.support.controller.harness import DEADLINE_S, TalkingBroker, controllers, eventually
from tests.support.controller.sessions import a_cluster

from paceline.admin.client import AdminClient
from paceline.errors import DeadlineError
from paceline.types import GroupName
from paceline.wire import session as wire
from paceline.wire.cluster import ClusterView
from paceline.wire.names import SYSTEM_TOPICS
from paceline_controller.server import topic_calls
from paceline_controller.server.call_context import CallContext
from paceline_controller.state.operator_commands import RemoveGroup


async def test_a_new_cluster_answers_its_view_and_status() -> None:
    async with controllers() as cluster:
        status, routes = await cluster.ask("GET", "/v1/routes")
        view = ClusterView.from_json(routes)
        assert status == 200
        assert view.controllers == (str(cluster.addresses[0]),)

        status, node = await cluster.ask("GET", "/v1/status")
        assert (status, node["role"], node["version"]) == (200, "leader", view.version)
        assert (await cluster.ask("GET", "/readyz"))[0] == 200


async def test_a_topic_is_made_described_and_deleted() -> None:
    async with a_cluster() as (cluster, _):
        status, made = await cluster.ask("POST", "/v1/topics", {"topic": "t", "queues": 4})
        assert (status, made["queues"]) == (201, {"g1": 4})
        assert made["topic_id"] == 1 + len(SYSTEM_TOPICS)

        assert (await cluster.ask("GET", "/v1/topics/t"))[1]["queues"] == {"g1": 4}
        assert [t["topic"] for t in (await cluster.ask("GET", "/v1/topics"))[1]["topics"]] == ["t"]
        assert (await cluster.ask("DELETE", "/v1/topics/t"))[0] == 200
        assert (await cluster.ask("GET", "/v1/topics/t"))[0] == 404


async def test_those_who_change_different_settings_of_a_group_at_once_undo_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write = CallContext.write
    changes: list[Any] = []

    async def together(self: CallContext, command: Any, once: Any) -> Any:
        if not getattr(command, "is_new", False):
            changes.append(command)
            await eventually(lambda: len(changes) >= 3, "all three are read")
        return await write(self, command, once)

    monkeypatch.setattr(CallContext, "write", together)
    async with a_cluster() as (cluster, _):
        path = "/v1/consumer-groups/billing"
        await cluster.ask("POST", "/v1/consumer-groups", {"group": "billing"})

        answers = await asyncio.gather(
            cluster.ask("PUT", path, {"retry_max_times": 3}),
            cluster.ask("PUT", path, {"consume_enable": False}),
            cluster.ask("PUT", path, {"retry_queue_nums": 2}),
        )

        assert [status for status, _ in answers] == [200] * 3
        assert len(changes) == 3
        settings = (await cluster.ask("GET", path))[1]["settings"]
        assert settings["retry_max_times"] == 3
        assert settings["consume_enable"] is False
        assert settings["retry_queue_nums"] == 2
        assert (await cluster.ask("PUT", path, {"retry_max_times": -1}))[0] == 400
        assert (await cluster.ask("PUT", f"{path}-not", {}))[0] == 404


async def test_queues_that_were_written_again_after_they_were_found_read_are_not_taken_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two operators: one shrinks, the other one grows the topic, thinks better of it, and messages
    have come meanwhile. The numbers are the same again, the queues are not."""

    async def found_read(*_: Any, **__: Any) -> None:
        for writes in (4, 2):
            status, _ = await cluster.ask("PUT", "/v1/topics/t", {"write_queues": writes})
            assert status == 200

    async def still_read(*_: Any, **__: Any) -> None:
        return None

    async with a_cluster() as (cluster, _):
        await cluster.ask("POST", "/v1/topics", {"topic": "t", "queues": 4})
        await cluster.ask("PUT", "/v1/topics/t", {"write_queues": 2})
        monkeypatch.setattr(topic_calls, "check_drained", found_read)
        status, answer = await cluster.ask("PUT", "/v1/topics/t", {"read_queues": 2})
        assert (status, answer["reason"]) == (409, "TOPIC_CHANGED")
        assert (await cluster.ask("GET", "/v1/topics/t"))[1]["read_queues"] == {"g1": 4}

        monkeypatch.setattr(topic_calls, "check_drained", still_read)
        status, shrunk = await cluster.ask("PUT", "/v1/topics/t", {"read_queues": 2})
        assert (status, shrunk["read_queues"]) == (200, {"g1": 2})


@pytest.mark.parametrize("is_state_replaced", [False, True])
async def test_a_group_that_is_removed_while_queues_are_looked_at_is_not_there(
    monkeypatch: pytest.MonkeyPatch, is_state_replaced: bool
) -> None:
    """The master of one group may take seconds to say whether its queues are read. A controller
    that fell behind has its state out of a snapshot then: not the topic that was looked at."""

    async def forgotten_meanwhile(*_: Any, **__: Any) -> None:
        if is_state_replaced:
            machine = cluster.leader.machine
            machine.restore(machine.snapshot())
        command = RemoveGroup(group=GroupName("g2"), is_forced=True)
        await cluster.leader.proposer.submit(command)

    async with a_cluster() as (cluster, _):
        other = TalkingBroker(cluster, 1, group="g2")
        await other.join()
        await cluster.ask("POST", "/v1/topics", {"topic": "t", "queues": 4})
        await cluster.ask("PUT", "/v1/topics/t", {"write_queues": 2})
        await other.stop()

        monkeypatch.setattr(topic_calls, "check_drained", forgotten_meanwhile)
        status, answer = await cluster.ask("PUT", "/v1/topics/t", {"read_queues": 2})

        assert (status, answer["code"]) == (404, "GROUP_NOT_FOUND"), answer
        assert (await cluster.ask("GET", "/v1/topics/t"))[1]["read_queues"] == {"g1": 4}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/topics", {"topic": "t"}),
        ("POST", "/v1/topics", {"topic": "t", "logical_queues": 1}),
        ("PUT", "/v1/topics/there", {}),
    ],
)
async def test_an_attribute_that_would_be_a_setting_elsewhere_is_refused(
    method: str, path: str, body: dict[str, Any]
) -> None:
    async with a_cluster() as (cluster, _):
        await cluster.ask("POST", "/v1/topics", {"topic": "there"})

        for name, words in {
            "cleanup.policy": "compaction is not supported",
            "a.b": "change",
        }.items():
            wanted = {**body, "attributes": {name: "COMPACTION", "owner": "me"}}
            status, problem = await cluster.ask(method, path, wanted)
            assert (status, problem["field"]) == (400, "attributes")
            assert name in problem["detail"]
            assert words in problem["detail"]

        assert (await cluster.ask("GET", "/v1/topics/t"))[0] == 404
        assert (await cluster.ask("GET", "/v1/topics/there"))[1]["attributes"] == {}
        status, _ = await cluster.ask(
            "PUT", "/v1/topics/there", {"attributes": {"cleanup.policy": None, "owner": "me"}}
        )
        assert status == 200  # what an older controller took can be taken away


async def test_a_topic_may_have_other_numbers_of_queues_in_each_group() -> None:
    async with a_cluster() as (cluster, _):
        other = TalkingBroker(cluster, 1, group="g2")
        await other.join()

        _, made = await cluster.ask("POST", "/v1/topics", {"topic": "t", "queues": {"g2": 3}})
        _, wide = await cluster.ask("POST", "/v1/topics", {"topic": "u", "queues": 2})

        assert made["queues"] == {"g2": 3}
        assert wide["queues"] == {"g1": 2, "g2": 2}
        await other.stop()


@pytest.mark.parametrize(
    ("body", "status", "code", "field"),
    [
        ({"topic": "bad name", "queues": 1}, 400, "BAD_NAME", "topic"),
        ({"topic": "../x", "queues": 1}, 400, "BAD_NAME", "topic"),
        ({"topic": 7, "queues": 1}, 400, "BAD_REQUEST", "topic"),
        ({"topic": "%RETRY%g", "queues": 1}, 403, "FORBIDDEN", "topic"),
        ({"queues": 1}, 400, "BAD_REQUEST", "topic"),
        ({"topic": "t", "queues": 0}, 400, "BAD_REQUEST", "queues"),
        ({"topic": "t", "queues": "8"}, 400, "BAD_REQUEST", "queues"),
        ({"topic": "t", "queues": True}, 400, "BAD_REQUEST", "queues"),
        ({"topic": "t", "queues": 10**9}, 400, "BAD_REQUEST", "queues"),
        ({"topic": "t", "queues": {}}, 400, "BAD_REQUEST", "queues"),
        ({"topic": "t", "queues": {"g9": 1}}, 404, "GROUP_NOT_FOUND", "queues"),
        ({"topic": "t", "queues": 1, "color": "red"}, 400, "BAD_REQUEST", "color"),
    ],
)
async def test_a_bad_topic_is_refused_naming_the_field(
    body: dict[str, Any], status: int, code: str, field: str
) -> None:
    async with a_cluster() as (cluster, _):
        answer = await cluster.ask("POST", "/v1/topics", body)

        assert answer[0] == status
        assert answer[1]["code"] == code
        assert answer[1]["field"] == field
        assert not users_topics(cluster.leader.machine)


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (b"", 400, "BAD_JSON"),
        (b"{", 400, "BAD_JSON"),
        (b"[]", 400, "BAD_JSON"),
        (b'{"topic":NaN}', 400, "BAD_JSON"),
        (b'{"topic":"a","topic":"b"}', 400, "BAD_JSON"),
        (b"\xff", 400, "BAD_JSON"),
        (b" " * 300_000, 413, "TOO_LARGE"),
    ],
)
async def test_a_body_that_is_no_json_object_is_refused(
    data: bytes, status: int, code: str
) -> None:
    async with controllers() as cluster:
        answer = await cluster.ask("POST", "/v1/topics", data=data)

        assert (answer[0], answer[1]["code"]) == (status, code)


async def test_a_topic_twice_is_a_conflict_and_without_brokers_it_waits() -> None:
    async with controllers() as cluster:
        answer = await cluster.ask("POST", "/v1/topics", {"topic": "t"})
        assert (answer[0], answer[1]["code"]) == (503, "NOT_YET_AVAILABLE")

    async with a_cluster() as (cluster, _):
        await cluster.ask("POST", "/v1/topics", {"topic": "t"})
        answer = await cluster.ask("POST", "/v1/topics", {"topic": "t"})
        assert (answer[0], answer[1]["code"]) == (409, "TOPIC_EXISTS")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404),
        ("PUT", "/v1/topics", 405),
        ("GET", "/v1/topics/none", 404),
        ("GET", "/v1/groups/none", 404),
        ("DELETE", "/v1/topics/none", 404),
        ("DELETE", "/v1/groups/g1/replicas/x", 404),
        ("GET", "/v1/watch?from=x", 400),
        ("GET", "/v1/watch?wait_ms=-1", 400),
        ("GET", "/v1/watch?wait_ms=99999999", 400),
        ("GET", "/v1/topics?linearizable=maybe", 400),
    ],
)
async def test_what_does_not_exist_is_a_problem_document(
    method: str, path: str, status: int
) -> None:
    async with a_cluster() as (cluster, _):
        assert (await cluster.ask(method, path))[0] == status


@pytest.mark.parametrize(
    ("method", "path", "body", "said"),
    [
        ("PUT", "/v1/topics/typo", {"queues": 3}, "topic typo does not exist"),
        ("POST", "/v1/topics/typo/remap", {"logical_queue": 0, "group": "g1"}, "topic typo does"),
        ("PUT", "/v1/consumer-groups/typo", {"retry_max_times": 3}, "consumer group typo is not"),
        ("GET", "/v1/groups/g9", None, "there is no broker group g9; known: g1"),
        ("POST", "/v1/elections", {"group": "g9"}, "there is no broker group g9; known: g1"),
        ("POST", "/v1/transfers", {"group": "g9"}, "there is no broker group g9; known: g1"),
    ],
)
async def test_what_is_unknown_is_named(
    method: str, path: str, body: dict[str, Any] | None, said: str
) -> None:
    async with a_cluster() as (cluster, _):
        status, answer = await cluster.ask(method, path, body)

    assert status == 404
    assert said in answer["detail"]


async def test_a_follower_that_lags_answers_linearizable_reads_by_the_leaders_word() -> None:
    async with a_cluster(3) as (cluster, _):
        cluster.quorums[cluster.ids[1]].is_attached = False
        await cluster.ask("POST", "/v1/topics", {"topic": "t"})

        assert (await cluster.ask("GET", "/v1/topics", node=1))[1]["topics"] == []
        for path in ("/v1/topics", "/v1/topics/t", "/v1/routes", "/v1/cluster", "/v1/groups/g1"):
            there = await cluster.ask("GET", f"{path}?linearizable=true", node=0)
            here = await cluster.ask("GET", f"{path}?linearizable=true", node=1)
            assert here == there
            assert here[0] == 200
        assert (await cluster.ask("GET", "/v1/topics?linearizable=maybe", node=1))[0] == 400


async def test_a_linearizable_read_wants_a_leader_with_a_majority() -> None:
    async with a_cluster(3) as (cluster, _):
        path = "/v1/topics?linearizable=true"
        cluster.quorums[cluster.ids[0]].is_attached = False
        for node in (0, 1):
            status, problem = await cluster.ask("GET", path, node=node)
            assert (status, problem["code"]) == (504, "DEADLINE")
        cluster.log.elect(None)
        await eventually(lambda: cluster.nodes[cluster.ids[1]].leader_address() is None, "nobody")
        status, problem = await cluster.ask("GET", path, node=1)
        assert (status, problem["code"], problem["leader"]) == (421, "NOT_LEADER", None)


async def test_an_admin_client_says_that_nobody_leads() -> None:
    async with (
        a_cluster(2) as (cluster, _),
        AdminClient([str(cluster.addresses[0])], timeout_ms=2_000) as admin,
    ):
        cluster.log.elect(None)

        with pytest.raises(DeadlineError, match="no controller leads"):
            await admin.broker_groups.history("g1")
        with pytest.raises(DeadlineError, match="no controller leads"):
            await admin.topics.create("t")
        assert (await admin.view()).groups, "views are what a controller has"


async def test_an_admin_client_reads_its_own_writes_while_leadership_moves() -> None:
    """It asks followers, too, and waits while nobody leads."""
    async with a_cluster(3) as (cluster, _):
        first, second, third = cluster.ids
        async with AdminClient([str(cluster.addresses[2])]) as admin:
            await admin.topics.create("one")
            cluster.quorums[third].is_attached = False
            await cluster.ask("POST", "/v1/topics", {"topic": "two"})
            cluster.log.elect(None)
            asking = asyncio.gather(admin.topics.all())
            await eventually(lambda: not cluster.nodes[first].supervisor.is_leading, "nobody leads")
            cluster.log.elect(second)

            async with asyncio.timeout(DEADLINE_S):
                [found] = await asking

            assert [topic.topic for topic in found] == ["one", "two"]
            assert users_topics(cluster.nodes[third].machine) == ["one"], "it lags all the while"


async def test_settings_are_read_and_changed_with_a_new_epoch() -> None:
    async with a_cluster() as (cluster, brokers):
        status, _ = await cluster.ask(
            "PUT", "/v1/groups/g1/settings", {"min_in_sync_replicas": 1, "durability": "memory"}
        )
        assert status == 202
        group = cluster.leader.machine.groups[brokers[0].group]
        await brokers[0].command(open_epoch(brokers[0]))

        await eventually(lambda: group.settings.durability == "memory", "in effect")
        assert (group.master, group.master_epoch) == (1, 2)


def open_epoch(broker: TalkingBroker) -> Any:
    from paceline.types import MasterEpoch
    from paceline.wire.session import OpenEpoch

    assert broker.replica_id is not None
    return OpenEpoch(
        group=broker.group,
        master=broker.replica_id,
        master_incarnation=broker.incarnation,
        master_epoch=MasterEpoch(1),
        confirm=0,
    )


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"min_in_sync_replicas": 9}, "min_in_sync_replicas"),
        ({"durability": "hope"}, "durability"),
        ({"replicas": 3}, "replicas"),
    ],
)
async def test_bad_settings_are_refused(body: dict[str, Any], field: str) -> None:
    async with a_cluster() as (cluster, _):
        status, problem = await cluster.ask("PUT", "/v1/groups/g1/settings", body)

        assert status == 400
        assert problem.get("field") == field


async def test_an_operator_orders_elections() -> None:
    async with a_cluster() as (cluster, _):
        status, result = await cluster.ask("POST", "/v1/elections", {"group": "g1", "preferred": 3})
        assert (status, result["ok"], result["master"]) == (200, True, 3)

        for body in (
            {"group": "g1", "preferred": 9},
            {"group": "g1", "unclean": True, "preferred": 9},
            {"group": "g1", "preferred": 3},
        ):
            status, problem = await cluster.ask("POST", "/v1/elections", body)
            assert (status, problem["code"]) == (409, "COMMAND_REFUSED"), body
        assert problem["reason"] == "ALREADY_MASTER"
        status, problem = await cluster.ask(
            "POST", "/v1/elections", {"group": "g1", "unclean": True}
        )
        assert (status, problem["field"]) == (400, "preferred")


async def test_an_unclean_election_marks_the_group_as_lossy() -> None:
    async with a_cluster() as (cluster, _):
        status, _ = await cluster.ask(
            "POST", "/v1/elections", {"group": "g1", "preferred": 2, "unclean": True}
        )
        _, group = await cluster.ask("GET", "/v1/groups/g1")

        assert status == 200
        assert (group["is_unclean"], group["is_lossy"]) == (True, True)
        assert group["sync_state_set"] == [2]


async def test_a_group_shows_what_the_leader_believes_and_its_history() -> None:
    async with a_cluster() as (cluster, _):
        _, group = await cluster.ask("GET", "/v1/groups/g1")

        assert group["standings"]["1"]["standing"] == "healthy"
        assert group["history"][0]["kind"] == "master_elected"


async def test_metrics_are_exposed() -> None:
    async with (
        controllers() as cluster,
        cluster.http.get(f"http://{cluster.addresses[0]}/metrics") as response,
    ):
        text = await response.text()

    assert "paceline_controller_is_leader_count 1.0" in text
    assert 'paceline_controller_commands_total{kind="lead",ok="true"} 1.0' in text


@pytest.mark.parametrize(
    ("body", "field"),
    [({}, "writable"), ({"writable": 1}, "writable"), ({"writable": True, "x": 1}, "x")],
)
async def test_a_write_permission_that_says_nothing_is_refused(
    body: dict[str, Any], field: str
) -> None:
    async with a_cluster() as (cluster, _):
        status, problem = await cluster.ask("PUT", "/v1/groups/g1/write-permission", body)
        assert (status, problem["code"], problem["field"]) == (400, "BAD_REQUEST", field)
        missing = await cluster.ask("PUT", "/v1/groups/g9/write-permission", {"writable": True})
        assert (missing[0], missing[1]["code"]) == (404, "GROUP_NOT_FOUND")


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Content-Type": "text/plain"}, "UNSUPPORTED_MEDIA_TYPE"),
        ({"Content-Type": "application/x-www-form-urlencoded"}, "UNSUPPORTED_MEDIA_TYPE"),
        ({"Content-Type": "application/json", "Origin": "http://evil.example.net"}, "FORBIDDEN"),
        ({"Content-Type": "application/json", "Host": "evil.example.net"}, "FORBIDDEN"),
    ],
)
async def test_no_web_page_can_order_an_election(headers: dict[str, str], code: str) -> None:
    async with a_cluster() as (cluster, _):
        epoch = cluster.leader.machine.groups[GroupName("g1")].master_epoch
        url = f"http://{cluster.addresses[0]}/v1/elections"
        async with cluster.http.post(url, data=b'{"group":"g1"}', headers=headers) as response:
            problem = await response.json(content_type=None)

        assert problem["code"] == code
        assert cluster.leader.machine.groups[GroupName("g1")].master_epoch == epoch


async def test_no_web_page_can_open_a_session() -> None:
    async with a_cluster() as (cluster, _):
        url = f"http://{cluster.addresses[0]}{wire.PATH}"
        with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
            await cluster.http.ws_connect(url, origin="http://evil.example.net")
