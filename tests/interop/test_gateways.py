"""Two gateways of one cluster: the clients of one that is killed go on at the other."""

import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from interop.programs import Program
from msgspec import structs
from tests.interop.peers import PacelinePeer
from tests.interop.scene import Scene, came
from tests.support.gateway.grpc_client import RawClient
from tests.support.process.harness import (
    RunningCluster,
    eventually,
    http_session,
    running_cluster,
)

from interop import judge
from paceline_gateway.grpc.stubs import admin_pb2
from paceline_gateway.grpc.stubs.resources_pb2 import Code, Resource

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(400)]

PYTHON = pytest.param("python_grpc", marks=pytest.mark.python_client)
CLIENTS = (PYTHON, "java_grpc", "go_grpc", "node_grpc", "rust_grpc")
ONE_ENDPOINT = ("node_grpc", "rust_grpc")
"""They take several addresses for one name: such a client waits until its gateway is back."""
TELL_NO_STACKS = ("python_grpc", "rust_grpc")
"""They pass over the question."""
GATEWAYS = ("gw1", "gw2")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningCluster]:
    folder = tmp_path_factory.mktemp("gateways") / "data"
    small = ("--controllers", "1", "--brokers", "1")
    with running_cluster(
        folder, *small, "--doors", "grpc", "--gateways", "2", restart=True
    ) as cluster:
        yield cluster


@pytest_asyncio.fixture(loop_scope="module")
async def scene(cluster: RunningCluster, tmp_path: Path) -> AsyncIterator[Scene]:
    scene = Scene(PacelinePeer(cluster), tmp_path)
    yield scene
    await scene.close()


async def kill(cluster: RunningCluster, name: str) -> None:
    """Until it has been started again, and is ready."""
    killed = cluster.node(name)["pid"]
    cluster.send_signal(name, signal.SIGKILL)

    async def is_back() -> bool:
        node = cluster.node(name)
        if node["pid"] == killed:
            return False
        try:
            async with http_session() as http, http.get(f"http://{node['address']}/readyz") as told:
                return told.status == 200
        except OSError:
            return False

    await eventually(is_back, within_ms=60_000, what=f"{name} is back")


def endpoint_of(client: str, cluster: RunningCluster) -> str:
    """The gateways that a client is told."""
    names = GATEWAYS[:1] if client in ONE_ENDPOINT else GATEWAYS
    return ";".join(cluster.node(name)["doors"]["grpc"] for name in names)


async def acknowledges(sender: Program, count: int) -> None:
    """Wait until so many more messages were sent."""
    wanted = len(judge.of_kind(sender.events, "sent")) + count
    await sender.until(
        lambda events: len(judge.of_kind(events, "sent")) >= wanted,
        what=f"{count} more messages were sent",
    )


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_client_is_asked_where_its_threads_are(
    cluster: RunningCluster, scene: Scene, client: str
) -> None:
    await scene.prepare()
    job = scene.job("simple" if client == "rust_grpc" else "push")
    job = structs.replace(job, endpoint=cluster.node("gw1")["doors"]["grpc"])
    consumer = await scene.start(client, job)
    group = Resource(name=scene.group)
    ports = [cluster.node(name)["doors"]["grpc"].rpartition(":")[2] for name in GATEWAYS]
    async with RawClient(int(ports[0])) as here, RawClient(int(ports[1])) as elsewhere:

        async def listed() -> Any:
            request = admin_pb2.ListConsumerConnectionRequest(group=group)
            return list((await here.call("ListConsumerConnection", request)).client_info)

        [row] = await eventually(listed, within_ms=30_000, what="the consumer is listed")
        asked = admin_pb2.PrintThreadStackTraceRequest(client_id=row.client_id, group=group)

        told = await here.call("PrintThreadStackTrace", asked)
        refused = await elsewhere.call("PrintThreadStackTrace", asked)

    assert refused.status.code == Code.NOT_FOUND
    assert "is connected by grpc to another gateway" in refused.status.message
    if client in TELL_NO_STACKS:
        assert told.status.code == Code.PROXY_TIMEOUT
        assert "the client did not answer" in told.status.message
    else:
        assert told.status.code == Code.OK
        assert told.thread_stack_trace
    sent = await scene.send("java_grpc", scene.job("send", count=5))
    await came(consumer, sent)
    assert judge.failures(await consumer.stop()) == []


@pytest.mark.parametrize("client", CLIENTS)
async def test_nothing_is_lost_and_order_is_kept_when_gateways_are_killed(
    scene: Scene, cluster: RunningCluster, client: str
) -> None:
    await scene.prepare("FIFO", is_ordered=True)
    taker = "java_grpc" if client == "rust_grpc" else client
    scene.peer.grpc_endpoint = endpoint_of(taker, cluster)
    consumer = await scene.start(taker, scene.job("push-fifo"))
    scene.peer.grpc_endpoint = endpoint_of(client, cluster)
    job = scene.job("send-fifo", count=900, rate=30, groups=["one", "two", "three"])
    sender = await scene.start(client, job)

    for name in GATEWAYS:
        await acknowledges(sender, 40)
        await kill(cluster, name)
    await acknowledges(sender, 40)

    sent = await sender.finish(within_s=180)
    await came(consumer, sent, within_s=120)
    received = await consumer.stop()
    assert judge.lost(sent, received) + judge.strangers(job, received) == []
    assert judge.out_of_order(job, received) == []
