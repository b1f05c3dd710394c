"""RocketMQ's own gRPC clients by TLS, with an access key that signs, while rights are on."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio
from interop.java import run
from interop.jobs import Job
from tests.interop.examples import Language, go, java, node, python
from tests.interop.peers import PacelinePeer
from tests.interop.scene import Scene, came
from tests.support.process.harness import running_cluster

from interop import judge
from paceline.admin.client import AdminClient
from paceline.net.connect import ClientTls, ConnectSettings, Credentials

pytestmark = pytest.mark.asyncio(loop_scope="module")

PYTHON = pytest.param("python_grpc", marks=pytest.mark.python_client)
CLIENTS = (PYTHON, "java_grpc", "go_grpc", "node_grpc")
"""Rust's client has no TLS."""


class Secured(NamedTuple):
    """A cluster with rights, and the key of a user who may use topics `t-*` and groups `g-*`, and
    read the topic `secret`."""

    peer: PacelinePeer
    key: Credentials
    ca_file: str


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def secured(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Secured]:
    folder = tmp_path_factory.mktemp("secured") / "data"
    with running_cluster(
        folder, "--tls", "--controllers", "1", "--brokers", "1", "--doors", "grpc"
    ) as cluster:
        ca_file = str(folder / "tls" / "ca.pem")
        tls = ClientTls(ca_file=ca_file)
        async with AdminClient(ConnectSettings(cluster.bootstrap, tls=tls)) as admin:
            await admin.topics.create("secret", queues=1)
            await admin.users.create("root", is_super=True)
            root = await admin.users.add_key("root")
            await admin.users.create("shop")
            key = await admin.users.add_key("shop", signs=True)
            await admin.policies.set_entry("shop", "Topic:t-*", ["Pub", "Sub"])
            await admin.policies.set_entry("shop", "Topic:secret", ["Sub"])
            await admin.policies.set_entry("shop", "Group:g-*", ["Sub"])
            await admin.security.set("on")
        connect = ConnectSettings(cluster.bootstrap, root, tls=tls)
        yield Secured(PacelinePeer(cluster, connect), key, ca_file)


@pytest_asyncio.fixture(loop_scope="module")
async def scene(secured: Secured, tmp_path: Path) -> AsyncIterator[Scene]:
    scene = Scene(secured.peer, tmp_path)
    await scene.prepare()
    yield scene
    await scene.close()


def job(scene: Scene, secured: Secured, scenario: str, **fields: Any) -> Job:
    key = secured.key
    shown = {"access_key": key.access_key, "secret_key": key.secret_key, **fields}
    return scene.job(scenario, tls=True, tls_ca=secured.ca_file, **shown)


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_key_that_signs_sends_and_receives(
    scene: Scene, secured: Secured, client: str
) -> None:
    consumer = await scene.start(client, job(scene, secured, "push"))
    asked = job(scene, secured, "send", count=10)

    sent = await scene.send(client, asked)

    await came(consumer, sent)
    received = await consumer.stop()
    assert judge.failures(sent) + judge.failures(received) == []
    assert len(judge.of_kind(sent, "sent")) == 10
    assert judge.changed(asked, sent, received) == []


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_wrong_secret_is_refused(scene: Scene, secured: Secured, client: str) -> None:
    told = await scene.refused(
        client, job(scene, secured, "send", count=1, secret_key="guessed-0123456789")
    )

    # Most clients tell their user no more than that they found no route.
    words = ("40100", "UNAUTHORIZED", "signature")
    assert any(word in told for word in words) or (told and scene.logged(*words)), told


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_user_without_the_right_is_refused(
    scene: Scene, secured: Secured, client: str
) -> None:
    told = await scene.refused(client, job(scene, secured, "send", topic="secret", count=1))

    assert "40300" in told or "FORBIDDEN" in told or "may not" in told, told


@pytest.mark.parametrize(
    "language",
    [pytest.param(python, marks=pytest.mark.python_client), java, go, node],
    ids=lambda language: language.__name__,
)
async def test_the_example_takes_a_key_and_the_authority(
    scene: Scene, secured: Secured, tmp_path: Path, language: Language
) -> None:
    command = await language(tmp_path)
    shown = (
        f"PACELINE_ACCESS_KEY={secured.key.access_key}",
        f"PACELINE_SECRET_KEY={secured.key.secret_key}",
        f"PACELINE_TLS_CA={secured.ca_file}",
    )

    code, output = await run(
        *("env", f"HOME={tmp_path}", *shown, *command),
        *(scene.peer.grpc_endpoint, scene.topic, scene.group),
        timeout_s=300,
    )

    assert code == 0, output
    assert "received hello 2" in output
