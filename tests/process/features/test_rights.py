"""Real processes: rights are switched on, given and taken while clients send and consume."""

import asyncio
import signal
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import orjson
import pytest
from tests.support.idp import a_token, an_idp
from tests.support.process.harness import RunningCluster, eventually, running_cluster

from paceline.admin.client import AdminClient
from paceline.consumer.lite_pull import LitePullConsumer, LitePullSettings
from paceline.consumer.ordered import OrderedConsumer, OrderedSettings
from paceline.consumer.pop.popped_message import PoppedMessage
from paceline.consumer.pull import PullConsumer
from paceline.consumer.push import PushConsumer, PushSettings
from paceline.consumer.settings.simple import SimpleSettings
from paceline.consumer.simple import SimpleConsumer
from paceline.errors import (
    NotAuthorizedError,
    OutcomeUnknownError,
    PacelineError,
    TopicNotFoundError,
    UnauthenticatedError,
)
from paceline.message import Message, ReceivedMessage
from paceline.net.connect import ConnectSettings, Credentials, TokenFile
from paceline.platform.runtime import SystemClock, pause, spawn
from paceline.producer.producer import Producer
from paceline.producer.settings import ProducerSettings
from paceline.producer.transaction import TransactionProducer, TransactionState
from paceline.wire.topics import MIXED

pytestmark = [pytest.mark.process, pytest.mark.timeout(150)]

COUNT = 400
ALL_OF_ORDERS = {"resource": "Topic:orders", "actions": ["Pub", "Sub"], "decision": "Allow"}
FAILOVER_MS = 30_000


class Shop:
    """Sends numbered messages one after the other, and never stops for an error."""

    def __init__(self, connect: ConnectSettings) -> None:
        self._connect = connect
        self.sent: list[bytes] = []
        self.errors: list[str] = []
        self.is_done = False

    async def run(self) -> None:
        async with Producer(self._connect) as producer:
            number = 0
            while not self.is_done:
                body = b"%d" % number
                try:
                    await producer.send(Message("orders", body))
                except Exception as error:
                    self.errors.append(f"{number}: {error!r}")
                self.sent.append(body)
                number += 1


async def with_users(cluster: RunningCluster) -> tuple[ConnectSettings, ConnectSettings]:
    """Super user root and user shop, who may do what a shop does; rights are off yet."""
    async with AdminClient(cluster.bootstrap) as admin:
        await admin.topics.create("orders", queues=4)
        await admin.users.create("root", is_super=True)
        root = await admin.users.add_key("root")
        await admin.users.create("shop")
        shop = await admin.users.add_key("shop")
        await admin.policies.set_entry("shop", "Topic:orders", ["Pub", "Sub"])
        await admin.policies.set_entry("shop", "Group:billing", ["Sub"])
    return (
        ConnectSettings(cluster.bootstrap, root),
        ConnectSettings(cluster.bootstrap, shop),
    )


async def test_rights_are_switched_on_in_use_and_no_send_fails(tmp_path: Path) -> None:
    """Across a failover too: the next master knows the rights."""
    with running_cluster(tmp_path) as cluster:
        root, shop = await with_users(cluster)
        seen: list[bytes] = []

        async def listen(message: ReceivedMessage) -> None:
            seen.append(message.body)

        consumer = PushConsumer(
            shop,
            group="billing",
            topics=["orders"],
            listener=listen,
            settings=PushSettings(commit_interval_ms=100, start="first"),
        )
        selling = Shop(shop)
        async with consumer:
            task = spawn(selling.run(), name="selling")
            await until(lambda: len(selling.sent) > COUNT // 4, "the first")

            async with AdminClient(root) as admin:
                await admin.security.set("on")
                await until(lambda: len(selling.sent) > COUNT // 2, "after rights")
                before = await master_of(cluster, admin)
                cluster.send_signal(before, signal.SIGKILL)
                await until(lambda: len(selling.sent) > COUNT, "after the kill")
                selling.is_done = True
                await task
            await until(lambda: set(seen) >= set(selling.sent), "all consumed")

            assert selling.errors == []
            with pytest.raises(UnauthenticatedError):
                async with Producer(cluster.bootstrap) as stranger:
                    await stranger.send(Message("orders", b"stranger"))
            assert b"stranger" not in seen


async def master_of(cluster: RunningCluster, admin: AdminClient) -> str:
    """The name of the node; the cluster tells it only to who may know."""
    [group] = (await admin.view()).groups.values()
    master = group.master_view()
    assert master is not None
    [name] = [
        node["name"] for node in cluster.brokers() if node["address"] == master.client_address
    ]
    return str(name)


async def until(condition: Callable[[], object], what: str) -> None:
    async def holds() -> bool:
        return bool(condition())

    await eventually(holds, within_ms=FAILOVER_MS, what=what)


@pytest.mark.alone
async def test_what_is_taken_away_ends_within_a_second_also_on_open_streams(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        root, shop = await with_users(cluster)
        settings = ProducerSettings(request_timeout_ms=1_000, delivery_timeout_ms=3_000)
        async with (
            AdminClient(root) as admin,
            Producer(shop, settings=settings) as producer,
        ):
            await admin.security.set("on")
            await producer.send(Message("orders", b"before"))

            await admin.policies.set_entry("shop", "Topic:orders", ["Sub"])
            taken_ms = await refused(producer)
            await admin.policies.set_entry("shop", "Topic:orders", ["Pub", "Sub"])
            await eventually(lambda: sends(producer), what="the right is back")
            assert isinstance(shop.credentials, Credentials)
            await admin.users.remove_key("shop", shop.credentials.access_key)
            with pytest.raises(UnauthenticatedError):
                async with Producer(shop):
                    pass
            with pytest.raises(UnauthenticatedError):
                await producer.send(Message("orders", b"after"))
        assert taken_ms < 1_000


async def test_who_breaks_off_is_still_the_user_that_he_is(tmp_path: Path) -> None:
    """A follower passes on what it was asked by a connection that is gone, and has no address."""
    asked = orjson.dumps({"type": "Super"})
    with running_cluster(tmp_path, "--controllers", "3") as cluster:
        root, shop = await with_users(cluster)
        assert isinstance(shop.credentials, Credentials)
        key = f"{shop.credentials.access_key}.{shop.credentials.secret_key}"
        request = (
            b"PUT /v1/users/shop HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Authorization: Bearer %s\r\nContent-Length: %d\r\n\r\n" % (key.encode(), len(asked))
        )
        async with AdminClient(root) as admin:
            await admin.security.set("on")
            for number in range(30):
                for address in cluster.bootstrap:
                    await asyncio.to_thread(ask_and_reset, address, request + asked)
                await admin.users.create(f"other-{number}")
            assert (await admin.users.get("shop"))["type"] == "Normal"


def ask_and_reset(address: str, request: bytes) -> None:
    """Send it and break off: the peer has nobody's address any more."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(request)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def test_a_reader_whose_right_is_taken_is_told_by_its_polls_and_goes_on(
    tmp_path: Path,
) -> None:
    with running_cluster(tmp_path) as cluster:
        root, shop = await with_users(cluster)
        lite = LitePullConsumer(
            shop, group="billing", topics=["orders"], settings=LitePullSettings(start="first")
        )
        async with AdminClient(root) as admin, Producer(shop) as producer:
            await admin.security.set("on")
            async with PullConsumer(shop) as pull, lite:
                await pull.subscribe("orders", start="first")
                await producer.send(Message("orders", b"before"))
                for consumer in (pull, lite):
                    assert await next_body(consumer) == b"before"

                await admin.policies.set_entry("shop", "Topic:orders", ["Pub"])
                for consumer in (pull, lite):
                    with pytest.raises(NotAuthorizedError, match="Topic:orders"):
                        await next_body(consumer)

                await admin.policies.set_entry("shop", "Topic:orders", ["Pub", "Sub"])
                await producer.send(Message("orders", b"after"))
                for consumer in (pull, lite):
                    await eventually(partial(goes_on, consumer), what="it reads again")


async def test_who_loses_his_rights_in_a_transaction_ends_it_once_he_has_them_again(
    tmp_path: Path,
) -> None:
    """Refused, and nothing shows meanwhile; then a check finds the half, and his producer."""
    entries = [ALL_OF_ORDERS, {"resource": "Group:payers", "actions": ["Sub"], "decision": "Allow"}]
    seen: list[bytes] = []
    with running_cluster(tmp_path) as cluster:
        root, shop = await with_users(cluster)
        async with (
            AdminClient(root) as admin,
            Producer(shop) as plain,
            Producer(root) as other,
            PullConsumer(root) as reader,
            TransactionProducer(
                shop, group="payers", check=lambda half: TransactionState.COMMIT
            ) as producer,
        ):
            await admin.topics.alter("orders", message_type=MIXED)
            await admin.policies.put("shop", custom=entries)
            await admin.security.set("on")
            await reader.subscribe("orders", start="last")
            transaction = await producer.begin(Message("orders", b"half"))

            await admin.policies.put("shop", custom=[])
            await refused(plain)
            with pytest.raises(NotAuthorizedError, match="shop may not Pub"):
                await transaction.commit()
            with pytest.raises(NotAuthorizedError, match="shop may not Pub"):
                await transaction.rollback()
            await other.send(Message("orders", b"of others"))
            await eventually(partial(shows, reader, seen, b"of others"), what="others go on")
            assert b"half" not in seen

            await admin.policies.put("shop", custom=entries)
            await eventually(partial(shows, reader, seen, b"half"), what="its end")
    assert seen.count(b"half") == 1


async def test_a_lock_whose_holder_loses_its_key_is_anothers_after_its_lease(
    tmp_path: Path,
) -> None:
    """In the middle of a listener call: what it commits counts no more, and nothing is lost."""
    begun = asyncio.Event()
    processed: list[bytes] = []

    async def stuck(message: ReceivedMessage) -> None:
        begun.set()
        await asyncio.Event().wait()

    async def listen(message: ReceivedMessage) -> None:
        processed.append(message.body)

    settings = OrderedSettings(
        start="first",
        commit_interval_ms=200,
        rebalance_lock_max_live_time_ms=2_000,
        rebalance_lock_interval_ms=500,
        unlock_delay_ms=0,
    )
    with running_cluster(tmp_path) as cluster:
        root, shop = await with_users(cluster)
        async with AdminClient(root) as admin, Producer(root) as producer:
            await admin.topics.create("line", queues=1)
            await admin.policies.set_entry("shop", "Topic:line", ["Sub"])
            lost = ConnectSettings(cluster.bootstrap, await admin.users.add_key("shop"))
            assert isinstance(lost.credentials, Credentials)
            await admin.security.set("on")
            await producer.send_many([Message("line", b"%d" % n, key="k") for n in range(20)])
            options = {"group": "billing", "topics": ["line"], "settings": settings}
            refusals: list[PacelineError] = []
            async with OrderedConsumer(
                lost,
                listener=stuck,
                on_error=lambda _, error: refusals.append(error),
                **options,  # type: ignore[arg-type]
            ):
                await asyncio.wait_for(begun.wait(), FAILOVER_MS / 1000)
                async with OrderedConsumer(shop, listener=listen, **options):  # type: ignore[arg-type]
                    await admin.users.remove_key("shop", lost.credentials.access_key)
                    await until(lambda: len(processed) >= 20, "the other member has the queue")
                await until(lambda: refusals, "the application is told")

    assert processed == [b"%d" % n for n in range(20)]
    assert all(isinstance(error, UnauthenticatedError) for error in refusals)


async def test_what_was_received_by_who_loses_his_rights_is_given_to_another(
    tmp_path: Path,
) -> None:
    settings = SimpleSettings(invisible_ms=10_000)
    with running_cluster(tmp_path) as cluster:
        root, shop = await with_users(cluster)
        options = {"group": "billing", "topics": ["orders"], "settings": settings}
        async with (
            AdminClient(root) as admin,
            Producer(shop) as plain,
            SimpleConsumer(shop, **options) as holder,  # type: ignore[arg-type]
            SimpleConsumer(root, **options) as other,  # type: ignore[arg-type]
        ):
            await admin.security.set("on")
            await plain.send_many([Message("orders", b"kept"), Message("orders", b"done")])
            held: list[PoppedMessage] = []
            while len(held) < 2:
                held += await holder.receive(2, wait_ms=1_000)
            [kept] = [message for message in held if message.body == b"kept"]
            [done] = [message for message in held if message.body == b"done"]
            await holder.ack(done)

            await admin.policies.put("shop", custom=[])
            await refused(plain)
            with pytest.raises(NotAuthorizedError, match="Group:billing"):
                await holder.ack(kept)
            with pytest.raises(NotAuthorizedError, match="Group:billing"):
                await holder.change_invisible(kept, 60_000)

            attempts: dict[bytes, int] = {}  # also of what a broker took that had not heard yet
            async with asyncio.timeout(FAILOVER_MS / 1000):
                while b"kept" not in attempts:
                    for message in await other.receive(8, wait_ms=1_000):
                        attempts[message.body] = message.attempt
                        await other.ack(message)
    assert attempts.pop(b"kept") == 2
    assert attempts in ({}, {b"still": 1})


async def shows(reader: PullConsumer, seen: list[bytes], body: bytes) -> bool:
    """Adds to `seen` what the reader finds."""
    seen += [message.body for message in await reader.poll(timeout_ms=300)]
    return body in seen


async def test_replies_are_for_who_may_read_the_reply_topic_by_its_name(tmp_path: Path) -> None:
    reply_topic = "Topic:paceline_REPLY_TOPIC"
    with running_cluster(tmp_path) as cluster:
        root, shop = await with_users(cluster)
        async with AdminClient(root) as admin, Producer(shop) as producer, Producer(root) as other:
            await admin.policies.set_entry("shop", "Topic:*", ["Pub", "Sub"])
            await admin.security.set("on")

            async def answer(request: ReceivedMessage) -> None:
                await other.reply(request, b"yes")

            async with PushConsumer(
                root,
                group="answering",
                topics=["orders"],
                listener=answer,
                settings=PushSettings(start="first"),
            ):
                with pytest.raises(NotAuthorizedError, match=f"--resource {reply_topic}"):
                    await producer.request(Message("orders", b"?"), timeout_ms=2_000)
                await admin.policies.set_entry("shop", reply_topic, ["Pub"])
                for what in ("may have been acted upon", "not sent"):
                    refusal = f"{what}: shop may not Sub on {reply_topic}"
                    with pytest.raises(NotAuthorizedError, match=refusal):
                        await producer.request(Message("orders", b"?"), timeout_ms=FAILOVER_MS)
                await admin.policies.set_entry("shop", reply_topic, ["Sub"])
                reply = await replied(producer)

    assert reply.body == b"yes"


async def replied(producer: Producer) -> ReceivedMessage:
    """A reply, once the producer has read where replies go."""
    async with asyncio.timeout(FAILOVER_MS / 1000):
        while True:
            try:
                return await producer.request(Message("orders", b"?"), timeout_ms=FAILOVER_MS)
            except NotAuthorizedError:
                await pause(50)


async def next_body(consumer: PullConsumer | LitePullConsumer) -> bytes:
    """Of the next message; polls may find nothing for a while."""
    async with asyncio.timeout(FAILOVER_MS / 1000):
        while not (found := await consumer.poll(timeout_ms=300)):
            pass
    return found[0].body


async def goes_on(consumer: PullConsumer | LitePullConsumer) -> bool:
    try:
        return await next_body(consumer) == b"after"
    except NotAuthorizedError:
        return False


async def refused(producer: Producer) -> int:
    """Sends until one is refused for want of a right; how long that took."""
    clock = SystemClock()
    began_ms = clock.monotonic_ms()
    while clock.monotonic_ms() - began_ms < 10_000:
        try:
            await producer.send(Message("orders", b"still"))
        except NotAuthorizedError:
            break
        except OutcomeUnknownError:
            pass  # it was on its way when its stream ended (R32)
        except TopicNotFoundError:
            pass  # a view without the topic came first; the next one is told the right
    return clock.monotonic_ms() - began_ms


async def sends(producer: Producer) -> bool:
    try:
        await producer.send(Message("orders", b"again"))
    except NotAuthorizedError:
        return False
    return True


async def test_a_token_of_an_identity_provider_counts_at_every_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with an_idp(tmp_path / "idp") as idp:
        for process in ("CONTROLLER", "BROKER"):
            monkeypatch.setenv(f"PACELINE_{process}_OIDC_ISSUER", idp.issuer)
            monkeypatch.setenv(f"PACELINE_{process}_OIDC_AUDIENCE", "paceline")
            monkeypatch.setenv(f"PACELINE_{process}_OIDC_CA", idp.authority)
        with running_cluster(tmp_path) as cluster:
            root, _ = await with_users(cluster)
            async with AdminClient(root) as admin:
                await admin.security.set("on")
            token = tmp_path / "token"
            now_s = SystemClock().unix_ms() // 1000
            token.write_text(a_token(iss=idp.issuer, sub="shop", exp=now_s + 3_600))
            shop = ConnectSettings(cluster.bootstrap, TokenFile(path=str(token)))

            async def sends() -> bool:
                """Once all nodes have fetched the provider's keys."""
                with suppress(UnauthenticatedError):
                    async with Producer(shop) as producer:
                        await producer.send(Message("orders", b"one"))
                        with pytest.raises((NotAuthorizedError, TopicNotFoundError)):
                            await producer.send(Message("other", b"one"))
                        return True
                return False

            await eventually(sends, what="a token is as good as a key")
            token.write_text(a_token(iss=idp.issuer, sub="shop", exp=now_s - 3_600))
            with pytest.raises(UnauthenticatedError):
                async with Producer(shop):
                    pass


async def test_nodes_that_start_again_know_the_rights_before_they_serve(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        root, shop = await with_users(cluster)
        async with AdminClient(root) as admin:
            await admin.security.set("on")
            async with Producer(shop) as producer:
                await producer.send(Message("orders", b"one"))
    with running_cluster(tmp_path) as cluster:
        moved = ConnectSettings(cluster.bootstrap, shop.credentials)
        with pytest.raises(UnauthenticatedError):
            async with AdminClient(cluster.bootstrap, timeout_ms=3_000) as admin:
                await admin.view()
        async with AdminClient(ConnectSettings(cluster.bootstrap, root.credentials)) as admin:
            assert (await admin.security.get())["mode"] == "on"
        async with Producer(moved) as producer:
            await producer.send(Message("orders", b"two"))
            with pytest.raises((NotAuthorizedError, TopicNotFoundError)):
                await producer.send(Message("other", b"two"))
    secrets = [
        each.credentials.secret_key
        for each in (root, shop)
        if isinstance(each.credentials, Credentials)
    ]
    assert [path for path in files(tmp_path) if any(has(path, each) for each in secrets)] == []


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def has(path: Path, secret: str) -> bool:
    return secret.encode() in path.read_bytes()
