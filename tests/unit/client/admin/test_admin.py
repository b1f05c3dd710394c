"""Admin client and blocking façade."""

import asyncio
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from tests.support.app_server import AppServer
from tests.support.client.consumers import eventually
from tests.support.client.fake_cluster import FakeCluster
from tests.support.client.pins import a_master
from tests.support.http.http import send
from tests.support.service.clients import CONSUMER

from paceline import BlockingAdminClient, BlockingProducer, BlockingPullConsumer, Message
from paceline.admin.broker_groups import BrokerGroups
from paceline.admin.client import AdminClient
from paceline.admin.clients import Clients
from paceline.admin.consumer_groups import ConsumerGroups
from paceline.admin.controllers import Controllers
from paceline.admin.dead_letters import DeadLetters
from paceline.admin.messages import Messages
from paceline.admin.pins import Pins
from paceline.admin.topics import Topics
from paceline.blocking.admin import (
    BlockingBrokerGroups,
    BlockingClients,
    BlockingConsumerGroups,
    BlockingControllers,
    BlockingDeadLetters,
    BlockingMessages,
    BlockingPins,
    BlockingTopics,
)
from paceline.errors import (
    ConfigError,
    GroupNotFoundError,
    OutcomeUnknownError,
    PeerError,
    TopicExistsError,
    TopicNotFoundError,
)
from paceline.wire.cluster import ClusterView
from paceline.wire.commands import NOT_RELAYED_HEADER


async def test_a_topic_is_created_at_the_leader_that_another_controller_names() -> None:
    async with FakeCluster() as cluster, _Follower(cluster) as follower:
        cluster.publish(controllers=(follower.address, cluster.controller))
        async with AdminClient(follower.address) as admin:
            created = await admin.topics.create("orders", queues=3)
            with pytest.raises(TopicExistsError):
                await admin.topics.create("orders", queues=3)
            listed = await admin.topics.all()
            await admin.topics.delete("orders")
            with pytest.raises(TopicNotFoundError):
                await admin.topics.get("orders")

    assert created.queues == {"g1": 3}
    assert [topic.topic for topic in listed] == ["orders"]
    assert follower.asked > 0


async def test_a_leader_that_cannot_be_reached_is_asked_by_another_controller() -> None:
    async with FakeCluster() as cluster, _Follower(cluster) as follower:
        cluster.publish(controllers=(follower.address,))
        async with AdminClient(follower.address) as admin:
            await admin.topics.create("orders", queues=3)
            assert follower.relayed == 0
            follower.unreachable = "127.0.0.1:1"
            admin._requests._leader = None
            await admin.topics.create("prices", queues=3)
            first = follower.relayed
            created = await admin.topics.create("more", queues=3)

    assert created.queues == {"g1": 3}
    assert (first, follower.relayed) == (1, 2)


async def test_a_cluster_without_controllers_is_said_to_be_one() -> None:
    async with FakeCluster() as cluster:
        cluster.publish(controllers=())
        async with AdminClient(cluster.controller) as admin:
            for asking in (admin.topics.create("orders", queues=1), admin.topics.all()):
                with pytest.raises(ConfigError, match="know no controllers"):
                    await asking


async def test_a_repeated_creation_of_unknown_outcome_is_no_error() -> None:
    async with FakeCluster() as cluster:
        cluster.break_off_writes = 1
        async with AdminClient(cluster.controller) as admin:
            created = await admin.topics.create("orders", queues=3)

    assert created.queues == {"g1": 3}


async def test_a_repeated_creation_with_a_table_of_queues_is_no_error_either() -> None:
    async with FakeCluster() as cluster:
        cluster.break_off_writes = 1
        async with AdminClient(cluster.controller) as admin:
            created = await admin.topics.create("orders", queues={"g1": 3})

    assert created.queues == {"g1": 3}


async def test_a_repeated_creation_does_not_believe_a_follower_that_is_late() -> None:
    async with FakeCluster() as cluster, _Follower(cluster) as follower:
        cluster.publish(controllers=(follower.address, cluster.controller))
        cluster.break_off_writes = 1
        follower.late = cluster.view
        async with AdminClient(follower.address) as admin:
            created = await admin.topics.create("orders", queues=3)

    assert created.queues == {"g1": 3}


async def test_a_repeated_creation_that_finds_another_topic_is_an_error() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 2)
        cluster.break_off_writes = 1
        async with AdminClient(cluster.controller) as admin:
            with pytest.raises(TopicExistsError):
                await admin.topics.create("orders", queues={"g1": 3})


async def test_a_session_that_expired_unused_is_replaced() -> None:
    async with FakeCluster() as cluster, AdminClient(cluster.controller) as admin:
        await admin.topics.create("orders", queues=3)
        cluster.sessions.clear()
        created = await admin.topics.create("prices", queues=2)
        await admin.topics.create("more", queues=2)

    assert created.queues == {"g1": 2}
    assert len(cluster.sessions) == 1


async def test_a_session_that_expired_after_an_attempt_leaves_the_outcome_unknown() -> None:
    """R38: what the attempt did cannot be asked for any more, and is not done again."""

    class Forgetful(FakeCluster):
        def add_topic(self, *arguments: Any, **more: Any) -> Any:
            self.sessions.clear()
            self.made += 1
            return super().add_topic(*arguments, **more)

        made = 0

    cluster = Forgetful()
    async with cluster:
        cluster.break_off_writes = 1
        async with AdminClient(cluster.controller) as admin:
            with pytest.raises(OutcomeUnknownError, match="an earlier try may have done it"):
                await admin.topics.create("orders", queues=3)

    assert cluster.made == 1


async def test_controller_that_does_not_answer_is_not_asked_first_again() -> None:
    """Each question to one that is cut off costs a timeout of seconds."""
    async with FakeCluster() as cluster, AdminClient(cluster.controller) as admin:
        cluster.publish(controllers=("127.0.0.1:1", cluster.controller))
        await admin._requests.find_cluster()
        await eventually(lambda: len(admin._requests.controllers()) == 2)
        asked: list[str] = []
        get = admin._cluster.http.get

        async def get_noted(address: str, path: str, **how: Any) -> Any:
            asked.append(address)
            return await get(address, path, **how)

        admin._cluster.http.get = get_noted  # type: ignore[method-assign]
        await admin.view()
        await admin.view()

    assert asked == ["127.0.0.1:1", cluster.controller, cluster.controller]


async def test_nobody_at_the_bootstrap_address_is_one_clear_error() -> None:
    async with AdminClient("127.0.0.1:1", timeout_ms=200) as admin:
        with pytest.raises(PeerError, match=r"no node of the cluster answered at 127.0.0.1:1"):
            await admin.topics.all()


async def test_scripts_send_and_pull_without_an_event_loop() -> None:
    def script(bootstrap: str) -> list[bytes]:
        with BlockingProducer(bootstrap) as producer:
            producer.send(Message("orders", b"0"))
            producer.send_many([Message("orders", b"%d" % number) for number in range(1, 5)])
        with BlockingPullConsumer(bootstrap) as consumer:
            consumer.subscribe("orders")
            found: list[bytes] = []
            while len(found) < 5:
                found += [message.body for message in consumer.poll()]
            return found

    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        found = await asyncio.to_thread(script, cluster.controller)

    assert found == [b"%d" % number for number in range(5)]


def test_scripts_can_do_whatever_the_admin_client_can() -> None:
    def public(of: object) -> set[str]:
        return {name for name in dir(of) if not name.startswith("_")}

    assert public(BlockingAdminClient) == public(AdminClient)
    assert BlockingAdminClient.reset_offsets.__doc__ == AdminClient.reset_offsets.__doc__
    for part, twin in (
        (Topics, BlockingTopics),
        (ConsumerGroups, BlockingConsumerGroups),
        (DeadLetters, BlockingDeadLetters),
        (Messages, BlockingMessages),
        (Clients, BlockingClients),
        (BrokerGroups, BlockingBrokerGroups),
        (Pins, BlockingPins),
        (Controllers, BlockingControllers),
    ):
        assert public(part) <= public(twin)


async def test_scripts_look_for_messages_dead_letters_and_clients() -> None:
    def script(bootstrap: str) -> list[str]:
        with BlockingAdminClient(bootstrap, timeout_ms=3_000) as admin:
            [row] = admin.messages.find("orders", limit=1)
            assert admin.messages.get(row["message_id"])["body"] == row["body"]
            assert len(admin.messages.find("orders")) == 3
            assert (
                admin.consumer_groups.reset_offsets("audit", "orders", to="last")[0]["offset"] == 3
            )
            assert admin.consumer_groups.lag("audit")[0]["lag"] == 0
            with pytest.raises(TopicNotFoundError, match="nosuch"):
                admin.consumer_groups.reset_offsets("audit", "nosuch", to="first")
            with pytest.raises(GroupNotFoundError, match="audit is not on record"):
                admin.dead_letters.all("audit")
            return [client["client_id"] for client in admin.clients.all().clients]

    async with a_master() as (cluster, door, _):
        for body in "abc":
            await send(door, body)
        offsets = [{"topic": "orders", "queue": 0, "offset": 1}]
        commit = {"call": "commit", "group": "audit", "offsets": offsets}
        await door.ask("POST", "/v1/call", commit)
        await door.ask("POST", "/v1/call", {"call": "client", **CONSUMER})
        assert await asyncio.to_thread(script, cluster.controller) == ["c1"]


class _Follower:
    """A controller that does not lead."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.asked = 0
        self.late: ClusterView | None = None
        """What it still answers, if it lags behind."""
        self.address = ""
        self.unreachable = ""
        """What it calls the leader's address; it relays to the real one."""
        self.relayed = 0
        self._cluster = cluster
        app = web.Application()
        app.router.add_get("/v1/routes", self._routes)
        app.router.add_get("/v1/watch", self._routes)
        app.router.add_post("/v1/topics", self._not_leader)
        app.router.add_post("/v1/sessions", self._not_leader)
        self._server = AppServer(app)

    async def __aenter__(self) -> "_Follower":
        await self._server.start()
        self.address = self._server.address
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop()

    async def _routes(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("linearizable") == "true":
            return await self._not_leader(request)
        is_watch = "from" in request.query  # that answers once it has got on
        view = self._cluster.view if self.late is None or is_watch else self.late
        return web.json_response(view.to_json())

    async def _not_leader(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        if self.unreachable and NOT_RELAYED_HEADER not in request.headers:
            return await self._relayed(request)
        leader = self.unreachable or self._cluster.controller
        problem = {"code": "NOT_LEADER", "detail": "no", "leader": leader}
        return web.json_response(problem, status=421)

    async def _relayed(self, request: web.Request) -> web.StreamResponse:
        self.relayed += 1
        async with (
            aiohttp.ClientSession() as http,
            http.request(
                request.method,
                f"http://{self._cluster.controller}{request.path_qs}",
                data=await request.read(),
                headers=request.headers,
            ) as answer,
        ):
            return web.json_response(await answer.json(), status=answer.status)


async def test_calls_have_their_former_names_for_one_version() -> None:
    async with a_master() as (cluster, _, _), AdminClient(cluster.controller) as admin:
        names = [topic.topic for topic in await admin.topics()]
        assert names == [topic.topic for topic in await admin.topics.all()]
        assert await admin.topic("orders") == await admin.topics.get("orders")
        assert AdminClient.create_topic.__doc__ == Topics.create.__doc__
