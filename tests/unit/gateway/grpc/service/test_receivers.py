"""Who receives, acknowledges and lengthens the time of messages for clients."""

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.support.controller.harness import eventually

from paceline.consumer.pop.popped_message import PoppedMessage
from paceline.consumer.simple import SimpleConsumer
from paceline.errors import NotMasterError
from paceline.filters import Subscription
from paceline.net.cluster import Cluster
from paceline.net.connect import ConnectSettings
from paceline.platform.runtime import ManualClock
from paceline.security.identity import Principal
from paceline.server.byte_budget import ByteBudget
from paceline.types import ConsumerGroupName
from paceline.wire.calls.pop import EndReceive
from paceline.wire.consumer_groups import ConsumerGroupSettings, ConsumerGroupView
from paceline.wire.receipts import Receipt, format_handle
from paceline_gateway.clusters import UserCluster, UserClusters
from paceline_gateway.connected_clients import SILENT_MS, ClientKey, ConnectedClients
from paceline_gateway.grpc.service import receivers
from paceline_gateway.grpc.service.call import Call, call_of
from paceline_gateway.grpc.service.receivers import _ATTEMPTS_MAX, Receiver, Receivers, Wanted
from paceline_gateway.grpc.service.receiving import ReceiveCalls
from paceline_gateway.grpc.stubs import messaging_pb2 as wire
from paceline_gateway.grpc.stubs.resources_pb2 import Code, Endpoints, Resource

ANA = Principal("ana", "10.0.0.1", "key", door="grpc", namespace="shop")
"""Her programs say `work` for the group `shop%work`."""
ORDERS = Subscription.by_tags("orders", "*")
HANDLE = format_handle(Receipt("g1", 1, 0, 7, 100, 1), "shop%work")


class Scene:
    """A client whose messages are with a broker that takes all that is said of them."""

    def __init__(self) -> None:
        self.clients = ConnectedClients(ManualClock())
        self.calls = ReceiveCalls(self.clients, ByteBudget())
        self.clusters = UserClusters(
            lambda principal: Cluster(
                ConnectSettings("127.0.0.1:1", namespace=principal.namespace)
            ),
        )
        headers = {"x-mq-client-id": "host@1"}
        self.call: Call = call_of(
            headers, ANA, self.clusters, deadline_ms=None, endpoints=Endpoints()
        )
        self.said: list[str] = []


@pytest.fixture
async def scene(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    made = Scene()

    async def start(user: UserCluster) -> None:
        pass

    async def ack(consumer: SimpleConsumer, *handles: str) -> None:
        made.said += handles

    async def change(consumer: SimpleConsumer, handle: str, ms: int) -> tuple[str, int]:
        made.said.append(handle)
        return handle, 0

    monkeypatch.setattr(UserCluster, "start", start)
    monkeypatch.setattr(SimpleConsumer, "ack", ack)
    monkeypatch.setattr(SimpleConsumer, "change_handle", change)
    yield made
    await made.calls.close()
    await made.clusters.close()


async def test_receipts_are_good_for_a_group_in_the_default_namespace(scene: Scene) -> None:
    names: dict[str, Any] = {"group": Resource(name="work"), "topic": Resource(name="orders")}
    acked = await scene.calls.ack(
        wire.AckMessageRequest(**names, entries=[{"message_id": "m", "receipt_handle": HANDLE}]),
        scene.call,
    )
    changed = await scene.calls.change_invisible(
        wire.ChangeInvisibleDurationRequest(
            **names, receipt_handle=HANDLE, invisible_duration={"seconds": 30}
        ),
        scene.call,
    )

    assert [acked.status.code, changed.status.code] == [Code.OK, Code.OK]
    assert scene.said == [HANDLE, HANDLE]


async def test_what_a_client_uses_ends_with_it_whatever_it_has_asked_for(scene: Scene) -> None:
    await scene.calls.change_invisible(
        wire.ChangeInvisibleDurationRequest(
            group=Resource(name="work"),
            topic=Resource(name="orders"),
            receipt_handle=HANDLE,
            invisible_duration={"seconds": 30},
        ),
        scene.call,
    )
    cluster = await scene.call.cluster()
    assert cluster.holders == 1

    scene.clients.gone(scene.call.key)

    await eventually(lambda: cluster.holders == 0, "the user is held no more")


class Brokers:
    """The cluster of a user with a group that broadcasts, and what its brokers were told."""

    def __init__(self) -> None:
        settings = ConsumerGroupSettings(message_model="broadcasting")
        news = ConsumerGroupView(group=ConsumerGroupName("news"), settings=settings)
        view = SimpleNamespace(groups=("g1", "g2"), consumer_groups={"news": news})
        self.cluster = SimpleNamespace(view=view)
        self.links = self
        self.told: list[tuple[str, str, bool]] = []
        self.holders = 0

    def hold(self) -> Callable[[], None]:
        self.holders += 1

        def release() -> None:
            self.holders -= 1

        return release

    async def call(self, group: str, request: EndReceive, *, timeout_ms: int) -> None:
        self.told.append((group, request.client_id, request.has_gone))
        if group == "g1":
            raise NotMasterError("just now", master=None)


async def test_brokers_are_told_of_a_broadcasting_client_only_when_it_does_not_come_back() -> None:
    clock, brokers = ManualClock(), Brokers()
    clients = ConnectedClients(clock)
    gateways = Receivers(clients, ByteBudget())
    for name, groups in (("silent", {"news"}), ("gone", {"news", "work"}), ("worker", {"work"})):
        client = clients.hear(ClientKey("ana", name), "grpc")
        client.cluster, client.groups = cast(UserCluster, brokers), groups

    clients.gone(ClientKey("ana", "worker"))
    clients.gone(ClientKey("ana", "gone"))
    clock.advance(SILENT_MS)
    clients.expire()
    await gateways.close()

    assert sorted(brokers.told) == [("g1", "gone", True), ("g2", "gone", True)]
    assert brokers.holders == 0


class GivenBack:
    """A consumer, and what was given back of its messages."""

    def __init__(self) -> None:
        self.handles: list[str] = []

    def _give_back(self, messages: list[PoppedMessage]) -> None:
        self.handles += [message.handle for message in messages]


def a_receiver(consumer: Any = None) -> Receiver:
    return Receiver(consumer, [], ByteBudget().holder(""))


async def received(receiver: Receiver, attempt_id: str, *handles: str) -> list[str]:
    """Handles of what a client was told of."""

    async def receive() -> list[PoppedMessage]:
        return [cast(PoppedMessage, SimpleNamespace(handle=each, body=b"")) for each in handles]

    async with receiver.receive(attempt_id, receive, 60_000) as found:
        return [message.handle for message in found]


@pytest.mark.parametrize("attempt_id", ["", "a"])
async def test_what_no_client_was_told_of_is_given_back(
    attempt_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a gateway that renews would keep it from all for hours."""
    monkeypatch.setattr(receivers, "REPEATED_S_MAX", 0.001)
    consumer, come = GivenBack(), asyncio.Event()
    receiver = a_receiver(consumer)

    async def receive() -> list[PoppedMessage]:
        await come.wait()
        return [cast(PoppedMessage, SimpleNamespace(handle="h", body=b""))]

    async def client(*, reads: bool) -> None:
        async with receiver.receive(attempt_id, receive, 60_000):
            if not reads:
                raise ConnectionError

    if attempt_id:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await client(reads=True)
    come.set()
    if not attempt_id:
        with pytest.raises(ConnectionError):
            await client(reads=False)

    await eventually(lambda: consumer.handles == ["h"], "it is given back")
    assert not receiver.attempts


async def test_an_attempt_that_is_repeated_soon_is_given_the_same() -> None:
    consumer = GivenBack()
    receiver = a_receiver(consumer)

    first = await received(receiver, "a", "h")
    again = await received(receiver, "a", "other")

    assert first == again == ["h"]
    receiver._look_whether_told("a", receiver.attempts["a"])
    assert not consumer.handles


async def test_more_attempts_at_once_than_are_remembered_are_answered() -> None:
    receiver = a_receiver()

    async with asyncio.timeout(10):
        found = await asyncio.gather(
            *(received(receiver, str(each)) for each in range(_ATTEMPTS_MAX + 5))
        )

    assert found == [[]] * (_ATTEMPTS_MAX + 5)
    assert not receiver.attempts


class Consumer:
    """A simple consumer without a cluster."""

    open_count = 0

    def __init__(self, *_: object, **__: object) -> None:
        Consumer.open_count += 1

    async def close(self) -> None:
        Consumer.open_count -= 1


class Holding:
    """A user's cluster that counts who holds it."""

    def __init__(self) -> None:
        self.cluster = None
        self.principal = Principal("anna", "10.0.0.1")
        self.holders = 0

    def hold(self) -> Any:
        self.holders += 1

        def release() -> None:
            self.holders -= 1

        return release


async def test_what_a_client_has_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receivers, "SimpleConsumer", Consumer)
    monkeypatch.setattr(receivers, "renews", lambda consumer, handle=None: False)
    Consumer.open_count = 0
    clients = ConnectedClients(ManualClock())
    table, cluster = Receivers(clients, ByteBudget()), Holding()
    user = cast(UserCluster, cluster)
    keys = [ClientKey("anna", name) for name in ("one", "two")]
    for key in keys:
        clients.hear(key, "grpc")
        for group in ("a", "b"):
            wanted = Wanted(user, key, group, "orders", ("TAG", "*"), False, False)
            assert table.receiver(wanted, ORDERS) is table.receiver(wanted, ORDERS)
        assert table.consumer_of(key, "c", user, "h") is table.consumer_of(key, "c", user, "h")
    assert Consumer.open_count == cluster.holders == 6

    def left(count: int) -> bool:
        return Consumer.open_count == cluster.holders == count

    clients.gone(keys[0])
    await eventually(lambda: left(3), "the others are left")
    await table.close()
    clients.gone(keys[1])

    assert left(0)


async def test_subscriptions_that_a_client_names_no_more_end_while_it_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(receivers, "SimpleConsumer", Consumer)
    renewing: list[object] = []
    monkeypatch.setattr(receivers, "renews", lambda consumer, handle=None: consumer in renewing)
    Consumer.open_count = 0
    table, cluster = Receivers(ConnectedClients(ManualClock()), ByteBudget()), Holding()
    user, key = cast(UserCluster, cluster), ClientKey("anna", "one")

    def made(tag: str) -> Receiver:
        return table.receiver(Wanted(user, key, "g", "orders", ("TAG", tag), False, False), ORDERS)

    first, renews_on, used = made("a"), made("b"), made("c")
    renewing.append(renews_on.consumer)
    for each in (first, renews_on):
        each.used_at -= receivers.UNUSED_S

    made("d")
    await eventually(lambda: Consumer.open_count == 3, "the first one has ended")

    assert [made(tag) for tag in "bc"] == [renews_on, used]
    assert made("a") is not first
    await table.close()
    assert Consumer.open_count == cluster.holders == 0
