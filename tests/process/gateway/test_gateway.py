"""Real processes: a gateway acts for users whom brokers know, and for nobody else."""

from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.support.delegations import delegated
from tests.support.gateway.grpc_client import signed_by
from tests.support.process.harness import RunningCluster, eventually, running_cluster

from paceline.admin.client import AdminClient
from paceline.errors import NotAuthorizedError, UnauthenticatedError
from paceline.message import Message
from paceline.net.connect import ConnectSettings, Credentials
from paceline.platform.address import parse_address
from paceline.platform.runtime import SystemClock, SystemRandom
from paceline.platform.secret import ClusterSecrets
from paceline.security.identity import Principal
from paceline_gateway.app import Gateway
from paceline_gateway.clusters import UserCluster
from paceline_gateway.config import GatewayConfig
from paceline_gateway.connected_clients import ClientKey
from paceline_gateway.doors import DoorContext

pytestmark = [pytest.mark.process, pytest.mark.timeout(150)]

SOURCE = "10.1.2.3"
GUESSED = b"a secret that a stranger has made up"


class ClosedDoor:
    """Takes nobody: the test speaks for its clients."""

    is_open = False

    async def start(self) -> None:
        self.is_open = True

    async def close(self) -> None:
        self.is_open = False


def a_gateway(cluster: RunningCluster, door: ClosedDoor) -> Gateway:
    secret_file = str(cluster.data_dir / "cluster-secret")
    config = GatewayConfig(
        listen=parse_address("127.0.0.1:0"),
        secret_file=secret_file,
        controllers=tuple(cluster.bootstrap),
        grpc_listen=parse_address("127.0.0.1:0"),
    )

    def doors(context: DoorContext) -> list[ClosedDoor]:
        return [door]

    return Gateway(
        config,
        clock=SystemClock(),
        random=SystemRandom(),
        secrets=ClusterSecrets.read(secret_file),
        doors=doors,
    )


async def secured(cluster: RunningCluster) -> tuple[ConnectSettings, Credentials]:
    """Rights are on; `root`, and the key of `shop`, who may send to `orders` from the office."""
    async with AdminClient(cluster.bootstrap) as admin:
        for topic in ("orders", "secret"):
            await admin.topics.create(topic, queues=1)
        await admin.users.create("root", is_super=True)
        root = ConnectSettings(cluster.bootstrap, await admin.users.add_key("root"))
        await admin.users.create("shop")
        key = await admin.users.add_key("shop", signs=True)
        await admin.policies.set_entry("shop", "Topic:orders", ["Pub"], sources=["10.1.0.0/16"])
        await admin.security.set("on")
    return root, key


async def test_a_gateway_does_what_a_user_may_and_the_audit_names_him(tmp_path: Path) -> None:
    with running_cluster(tmp_path, "--controllers", "1", "--brokers", "1") as cluster:
        root, key = await secured(cluster)
        door = ClosedDoor()
        gateway = a_gateway(cluster, door)
        await gateway.start()
        await gateway.told.known.wait()
        try:
            found = gateway.authenticator.grpc(*signed_by(key), SOURCE, is_encrypted=True)
            assert (found.user, found.access_key) == ("shop", key.access_key)
            with pytest.raises(UnauthenticatedError):
                gateway.authenticator.grpc(
                    *signed_by(key, secret_key="guessed-0123456789"), SOURCE, is_encrypted=True
                )
            user = await gateway.clusters.of(found)
            assert await gateway.clusters.of(found) is user
            await user.producer.send(Message("orders", b"one"))
            with pytest.raises(NotAuthorizedError, match="^shop may not"):
                await user.producer.send(Message("secret", b"two"))
            elsewhere = await gateway.clusters.of(found._replace(source="192.0.2.1"))
            with pytest.raises(NotAuthorizedError, match="^shop may not"):
                await elsewhere.producer.send(Message("orders", b"three"))
            await check_strangers(cluster)
            async with AdminClient(root) as admin:
                await check_audit(admin, key)
                await check_refused(admin, gateway)
                await check_listed(admin, gateway, user)
                assert await gateway_is_ready(gateway)
                await check_revoked(admin, gateway, found)
        finally:
            await gateway.stop()
        assert not door.is_open
        assert gateway.clusters.count == 0
        await counted(root)


async def check_strangers(cluster: RunningCluster) -> None:
    """What somebody has made up who holds another secret lets nobody in, at any node."""
    for node in cluster.nodes():
        shown = delegated("root", address=node["address"], secret=GUESSED)
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"http://{node['address']}/v1/routes", headers=shown) as answer,
        ):
            assert answer.status == 401


async def check_audit(admin: AdminClient, key: Credentials) -> None:
    async def refusals() -> set[tuple[str, ...]]:
        rows = await admin.audit.search(user="shop")
        names = ("source", "door", "access_key", "outcome")
        told = {tuple(str(row[name]) for name in names) for row in rows}
        return told if len(told) > 1 else set()

    assert await eventually(refusals, what="both refusals are in the audit") == {
        (source, "grpc", key.access_key, "NOT_AUTHORIZED") for source in (SOURCE, "192.0.2.1")
    }


async def check_refused(admin: AdminClient, gateway: Gateway) -> None:
    """What the gateway itself has refused, no node has heard of: it is in the audit all the same,
    and a flood of it is one record."""
    for _ in range(1_000):
        with pytest.raises(UnauthenticatedError):
            gateway.authenticator.remoting({}, b"", "192.0.2.7")

    async def refusals() -> list[dict[str, Any]]:
        rows = await admin.audit.search(decision="Deny", user="anonymous")
        found = [row for row in rows if row["node"] == gateway._config.node_id()]
        return found if len(found) > 1 else []

    rows = await eventually(refusals, what="the gateway's refusals are in the audit")
    assert {(row["door"], row["source"], row["outcome"], row.get("times", 1)) for row in rows} == {
        ("grpc", SOURCE, "UNAUTHENTICATED", 1),
        ("remoting", "192.0.2.7", "UNAUTHENTICATED", 1),
    }
    assert {"another secret key" in row["rule"] for row in rows} == {True, False}


async def counted(root: ConnectSettings) -> None:
    """What came after the first one is told when the gateway stops, if not before."""

    async def is_told() -> bool:
        async with AdminClient(root) as admin:
            rows = await admin.audit.search(decision="Deny", user="anonymous")
        times = [row.get("times", 1) for row in rows if row["door"] == "remoting"]
        return sorted(times) == [1, 999]

    await eventually(is_told, what="the flood was counted")


async def check_listed(admin: AdminClient, gateway: Gateway, user: UserCluster) -> None:
    """A client is on the list at its own address, until it says that it goes."""
    key = ClientKey("shop", "till-1")
    client = gateway.clients.hear(key, "grpc")
    client.cluster, client.topics = user, {"orders": None}

    async def listed() -> list[tuple[object, ...]]:
        rows = (await admin.clients.all(kind="producer")).clients
        names = ("client_id", "user", "address", "door")
        return [tuple(row[name] for name in names) for row in rows if row.get("door")]

    async def is_gone() -> bool:
        return not await listed()

    found = await eventually(listed, what="brokers were told of the client")
    assert found == [("till-1", "shop", SOURCE, "grpc")]
    gateway.clients.gone(key)
    await eventually(is_gone, what="brokers were told that it has gone")


async def gateway_is_ready(gateway: Gateway) -> bool:
    return not gateway._why_not_ready()


async def check_revoked(admin: AdminClient, gateway: Gateway, found: Principal) -> None:
    """A key that is revoked signs no more, and what it has opened ends."""
    user = await gateway.clusters.of(found)
    await admin.users.remove_key("shop", found.access_key)

    async def is_refused() -> bool:
        try:
            gateway.authenticator.check_valid(found)
        except UnauthenticatedError:
            return True
        return False

    await eventually(is_refused, what="the gateway was told")
    with pytest.raises(UnauthenticatedError, match="was revoked"):
        await user.admin.security.whoami()
