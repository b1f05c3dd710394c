"""Real processes: two tenants with the same names do all there is to do, and see their own only."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.support.process.harness import RunningCluster, eventually, running_cluster

from paceline.admin.client import AdminClient
from paceline.admin.dead_letters import name_of
from paceline.cli.main import main
from paceline.consumer.lite_pull import LitePullConsumer, LitePullSettings
from paceline.consumer.ordered import OrderedConsumer, OrderedSettings
from paceline.consumer.pull import PullConsumer
from paceline.consumer.push import PushConsumer, PushSettings
from paceline.consumer.simple import SimpleConsumer
from paceline.errors import NotAuthorizedError
from paceline.filters import Subscription, make_filter
from paceline.message import Message, ReceivedMessage
from paceline.net.connect import ConnectSettings
from paceline.producer.producer import Producer
from paceline.producer.transaction import HalfMessage, TransactionProducer, TransactionState
from paceline.queues import QueueName
from paceline.types import GroupName, QueueId, TopicName
from paceline.wire.properties import DLQ_ORIGIN_TOPIC

pytestmark = [pytest.mark.process, pytest.mark.timeout(150)]

COUNT = 40
RETRY_POLICY = {"type": "CUSTOMIZED", "next_ms": [100]}
PATIENCE_MS = 60_000


class Tenant:
    """One tenant: everything it is shown must be its own, under the names that it uses."""

    def __init__(self, name: str, connect: ConnectSettings, folder: Path) -> None:
        self.name = name
        self.connect = connect
        self.folder = folder
        self.seen: list[ReceivedMessage] = []
        self.checked: list[HalfMessage] = []

    def body(self, text: str) -> bytes:
        return f"{self.name}: {text}".encode()

    def note(self, message: ReceivedMessage) -> ReceivedMessage:
        assert message.topic in ("orders", "asks"), message.topic
        assert message.body.startswith(self.name.encode()), message.body
        self.seen.append(message)
        return message

    def bodies(self) -> set[str]:
        return {message.body.decode().partition(": ")[2] for message in self.seen}

    async def run(self) -> None:
        async with AdminClient(self.connect) as admin:
            await self.prepare(admin)
            await self.send(admin)
            await self.consume_and_fail(admin)
            await self.read(admin)
            await self.lock_and_broadcast()
            await self.ask()
            await self.transact()
            await self.look_around(admin)

    async def prepare(self, admin: AdminClient) -> None:
        made = await admin.topics.create("orders", queues=2, message_type="MIXED")
        assert made.topic == "orders"
        await admin.topics.create("asks", queues=1)
        group = await admin.consumer_groups.create(
            "billing", retry_max_times=1, retry_policy=RETRY_POLICY
        )
        assert group.group == "billing"
        assert [topic.topic for topic in await admin.topics.all()] == ["asks", "orders"]
        assert [row.group for row in await admin.consumer_groups.all()] == ["billing"]
        everything = {topic.topic for topic in await admin.topics.all(system=True)}
        assert {"%RETRY%billing", "%DLQ%billing"} <= everything
        assert not any("farm" in name or "shop" in name for name in everything)
        assert (await admin.topics.alter("orders", queues=4)).topic == "orders"
        assert (await admin.topics.get("orders")).queues == {"g1": 4, "g2": 4}

    async def send(self, admin: AdminClient) -> None:
        async with Producer(self.connect) as producer:
            many = [
                Message("orders", self.body(str(number)), key=str(number), tag="plain")
                for number in range(COUNT)
            ]
            await producer.send_many(many)
            await producer.send(Message(f"{self.name}%orders", self.body("by its full name")))
            await producer.send(Message("orders", self.body("poison"), key="p", tag="poison"))
            await producer.send(Message("orders", self.body("late"), delay_ms=300))
            far = await producer.send(Message("orders", self.body("never"), delay_ms=3_600_000))
            assert far.recall_handle is not None
            await producer.recall("orders", far.recall_handle)

    async def consume_and_fail(self, admin: AdminClient) -> None:
        async def listen(message: ReceivedMessage) -> None:
            self.note(message)
            if message.tag == "poison":
                raise ValueError("poison")

        async with PushConsumer(
            self.connect,
            group="billing",
            topics=["orders"],
            listener=listen,
            settings=PushSettings(start="first", commit_interval_ms=100),
        ) as consumer:
            await self.until(lambda: {"late", "by its full name", "0"} <= self.bodies())

            async def is_dead() -> bool:
                return len(await admin.dead_letters.all("billing")) == 1

            await eventually(is_dead, within_ms=PATIENCE_MS, what="the dead letter")
            assert len(consumer.queues) == 8
            members = await admin.consumer_groups.members("billing")
            [member] = members["members"]
            assert sorted(member["topics"]) == ["%RETRY%billing", "orders"]
            found = await admin.clients.all(group="billing")
            assert {row["group"] for row in found.clients} == {"billing"}
        assert "never" not in self.bodies()
        poisoned = [message for message in self.seen if message.tag == "poison"]
        assert [message.reconsume_times for message in poisoned] == [0, 1]
        assert poisoned[1].properties["REAL_TOPIC"] == "%RETRY%billing"
        [letter] = await admin.dead_letters.all("billing")
        assert letter.properties[DLQ_ORIGIN_TOPIC] == "orders", "as the program knows it"
        assert (letter.topic, letter.body) == ("%DLQ%billing", self.body("poison"))
        [resent] = await admin.dead_letters.resend("billing", [name_of(letter)])
        assert (resent.code, resent.topic) == (None, "orders")

    async def read(self, admin: AdminClient) -> None:
        total = COUNT + 4
        async with PullConsumer(self.connect) as consumer:
            await consumer.subscribe("orders")
            pulled: list[ReceivedMessage] = []
            while len(pulled) < total:
                pulled += map(self.note, await consumer.poll(timeout_ms=5_000))
        async with LitePullConsumer(
            self.connect,
            group="auditors",
            topics=[Subscription(f"{self.name}%orders", make_filter("TAG", "poison"))],
            settings=LitePullSettings(start="first"),
        ) as lite:
            found = [self.note(one) for one in await lite.poll(timeout_ms=10_000)]
            assert {message.tag for message in found} == {"poison"}
        async with SimpleConsumer(
            self.connect,
            group="pickers",
            topics=[Subscription("orders", make_filter("TAG", "poison"))],
        ) as simple:
            [picked, *_] = await simple.receive(wait_ms=10_000)
            assert (picked.topic, picked.body) == ("orders", self.body("poison"))
            changed = await simple.change_invisible(picked, 20_000)
            await simple.ack(changed)

    async def lock_and_broadcast(self) -> None:
        ordered: list[bytes] = []
        cast: list[bytes] = []

        async def in_order(message: ReceivedMessage) -> None:
            ordered.append(self.note(message).body)

        async def broadcast(message: ReceivedMessage) -> None:
            cast.append(self.note(message).body)

        async with (
            OrderedConsumer(
                self.connect,
                group="lines",
                topics=["orders"],
                listener=in_order,
                settings=OrderedSettings(start="first"),
            ),
            PushConsumer(
                self.connect,
                group="posters",
                topics=["orders"],
                listener=broadcast,
                settings=PushSettings(
                    start="first", message_model="broadcasting", offsets_folder=str(self.folder)
                ),
            ),
        ):
            await self.until(lambda: min(len(ordered), len(cast)) >= COUNT + 4)

    async def ask(self) -> None:
        async with Producer(self.connect) as asking, Producer(self.connect) as answering:

            async def answer(request: ReceivedMessage) -> None:
                await answering.reply(self.note(request), self.body("answer"))

            async with PushConsumer(
                self.connect,
                group="answerers",
                topics=["asks"],
                listener=answer,
                settings=PushSettings(start="first"),
            ):
                reply = await asking.request(Message("asks", self.body("?")), timeout_ms=30_000)
            assert reply.body == self.body("answer")

    async def transact(self) -> None:
        async def check(half: HalfMessage) -> TransactionState:
            assert half.topic == "orders"
            assert half.body.startswith(self.name.encode())
            self.checked.append(half)
            return TransactionState.COMMIT

        async with TransactionProducer(self.connect, group="payers", check=check) as producer:
            for text, is_commit in (("committed", True), ("rolled back", False)):
                begun = await producer.begin(Message("orders", self.body(text)))
                await (begun.commit() if is_commit else begun.rollback())
            await producer.begin(Message("orders", self.body("asked about")), check_immunity_s=0)
            await self.until(lambda: self.checked)

    async def look_around(self, admin: AdminClient) -> None:
        [poison, *_] = [row async for row in admin.messages.find("orders", key="p")]
        assert (poison["topic"], poison["body"]) == ("orders", self.body("poison").decode())
        assert (await admin.messages.get(poison["message_id"]))["topic"] == "orders"
        tracked = {row["group"] for row in await admin.messages.track(poison["message_id"])}
        assert tracked <= {"billing", "auditors", "pickers", "lines"}
        assert "billing" in tracked
        lag = await admin.consumer_groups.lag("billing")
        assert {row["topic"] for row in lag} >= {"orders"}
        assert all(row["topic"] in ("orders", "%RETRY%billing") for row in lag)
        moved = await admin.consumer_groups.reset_offsets("billing", "orders", to="last")
        assert {row["topic"] for row in moved} == {"orders"}
        await admin.consumer_groups.clone_offsets("copies", "orders", source="billing")
        first = QueueName(TopicName("orders"), GroupName("g1"), QueueId(0))
        pinned = await admin.pins.add("billing", lease_ms=60_000, queues={first: None})
        assert [pin.owner for pin in pinned.values()] == ["billing"]
        owners = [pin.owner for found in (await admin.pins.all()).values() for pin in found.pins]
        assert owners == ["billing"]
        assert await admin.pins.remove("billing") == {"g1"}

    async def until(self, condition: Callable[[], object]) -> None:
        async def holds() -> bool:
            return bool(condition())

        await eventually(holds, within_ms=PATIENCE_MS, what=f"what {self.name} waits for")


async def tenants(cluster: RunningCluster, folder: Path) -> tuple[AdminClient, list[Tenant]]:
    """`shop` by the default namespace of its user, `farm` by its settings."""
    found = []
    async with AdminClient(cluster.bootstrap) as admin:
        await admin.topics.create("orders", queues=1)
        await admin.users.create("root", is_super=True)
        root = ConnectSettings(cluster.bootstrap, await admin.users.add_key("root"))
        for name, default, given in (("shop", "shop", None), ("farm", None, "farm")):
            await admin.users.create(name, namespace=default)
            await admin.policies.set_entry(name, f"Namespace:{name}", ["All"])
            await admin.policies.set_entry(name, "Cluster:*", ["Get"])
            await admin.policies.set_entry(name, "Topic:paceline_REPLY_TOPIC", ["Pub", "Sub"])
            key = await admin.users.add_key(name)
            connect = ConnectSettings(cluster.bootstrap, key, namespace=given)
            found.append(Tenant(name, connect, folder))
    return AdminClient(root), found


async def test_two_tenants_with_the_same_names_see_their_own_only(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "data", "--groups", "2", "--brokers", "1") as cluster:
        root, [shop, farm] = await tenants(cluster, tmp_path / "offsets")
        async with root:
            await root.security.set("on")
            async with asyncio.TaskGroup() as group:
                for tenant in (shop, farm):
                    group.create_task(tenant.run())

            # What nodes know are full names; the topic in no namespace has got nothing.
            names = {topic.topic for topic in await root.topics.all()}
            assert names == {"orders", "shop%orders", "farm%orders", "shop%asks", "farm%asks"}
            assert {lag["topic"] for lag in await root.consumer_groups.lag("shop%billing")} <= {
                "shop%orders",
                "%RETRY%shop%billing",
            }
            found = [row async for row in root.messages.find("orders")]
            assert found == []
            await refused(farm, lambda producer: producer.send(Message("shop%orders", b"mine")))
            unnamed = ConnectSettings(cluster.bootstrap, farm.connect.credentials, namespace="")
            farm.connect = unnamed
            await refused(farm, lambda producer: producer.send(Message("orders", b"mine")))
            await root.security.set("off")


async def refused(tenant: Tenant, act: Callable[[Producer], Awaitable[Any]]) -> None:
    async with Producer(tenant.connect) as producer:
        with pytest.raises(NotAuthorizedError):
            await act(producer)


def test_a_command_works_in_a_namespace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_cluster(tmp_path / "data") as cluster:

        def run(*words: str) -> str:
            capsys.readouterr()
            assert main([*words, "--bootstrap", ",".join(cluster.bootstrap)]) == 0
            return capsys.readouterr().out

        run("topic", "create", "orders", "--queues", "1", "--namespace", "shop")
        monkeypatch.setenv("PACELINE_NAMESPACE", "shop")
        run("send", "orders", "tea", "--key", "k")
        assert [line.split()[0] for line in run("topic", "list").splitlines()[1:]] == ["orders"]
        pulled = orjson.loads(run("pull", "orders", "--json").splitlines()[0])
        assert (pulled["topic"], pulled["body"]) == ("orders", "tea")
        run("group", "create", "billing")
        handle = orjson.loads(
            run("receive", "orders", "--group", "billing", "--json").splitlines()[0]
        )["handle"]
        run("ack", handle, "--group", "billing")
        found = orjson.loads(run("group", "lag", "billing", "--json").splitlines()[0])
        assert found["topic"] == "orders"
        assert "shop%orders" in run("topic", "list", "--namespace", "")
        run("topic", "delete", "orders", "--yes")
