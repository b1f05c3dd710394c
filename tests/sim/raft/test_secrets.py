"""A new cluster secret comes in three steps, each at one controller before the others."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.sim.raft.cluster import NAMES, Cluster, eventually

from paceline.platform.secret import ClusterSecrets
from paceline.types import ControllerId

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(60)]

OLD, NEW = b"the old secret of a cluster", b"the new secret of a cluster"
ROTATION = [(OLD,), (OLD, NEW), (NEW, OLD), (NEW,)]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(str(tmp_path))
    yield made
    await made.stop()


@pytest.mark.parametrize("before_count", [1, 2])
@pytest.mark.parametrize("step", [0, 1, 2])
async def test_controllers_in_two_steps_of_a_rotation_link(
    cluster: Cluster, step: int, before_count: int
) -> None:
    for number, name in enumerate(NAMES):
        secrets = ROTATION[step if number < before_count else step + 1]
        await cluster.make(name, secrets=ClusterSecrets(*secrets)).start()

    pairs = [(name, peer) for name in NAMES for peer in NAMES if name != peer]
    await eventually(lambda: all(is_linked(cluster, *pair) for pair in pairs))
    await cluster.settled()


async def test_controllers_two_steps_apart_refuse_each_other(cluster: Cluster) -> None:
    said: list[str] = []
    for name, secrets in zip(NAMES, ((OLD,), (NEW,), (NEW,)), strict=True):
        node = cluster.make(name, secrets=ClusterSecrets(*secrets))
        node.on_refused(lambda source, error: said.append(f"{source}: {error.message}"))
        await node.start()

    first, second, third = NAMES
    await eventually(lambda: is_linked(cluster, second, third))
    assert not is_linked(cluster, second, first)
    assert not is_linked(cluster, third, first)
    await eventually(lambda: bool(said))
    assert all(text.startswith("127.0.0.1: controller 'c") for text in said)
    assert all(text.endswith("has another cluster secret") for text in said)


async def test_what_strangers_say_to_the_raft_port_is_refused_and_not_repeated(
    cluster: Cluster,
) -> None:
    refused: list[str] = []
    node = cluster.make(NAMES[0], secrets=ClusterSecrets(OLD))
    node.on_refused(lambda source, error: refused.append(f"{source}: {error.message}"))
    await node.start()

    reader, writer = await asyncio.open_connection(*cluster.addresses[NAMES[0]])
    writer.write(b"GET / HTTP/1.1\r\nAuthorization: Bearer k.sk_secret\r\n\r\n")
    await eventually(lambda: bool(refused))
    writer.close()

    assert refused[0].startswith("127.0.0.1: handshake of ")
    assert "sk_" not in refused[0]


def is_linked(cluster: Cluster, name: ControllerId, peer: ControllerId) -> bool:
    links = cluster.nodes[name]._links
    return links is not None and links.is_linked(peer)
