"""Real processes: every connection by TLS; certificates change in use and no call fails."""

import asyncio
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.process.consuming import bodies_of
from tests.support.process.harness import (
    RunningCluster,
    eventually,
    paceline_command,
    running_cluster,
)

from paceline.admin.client import AdminClient
from paceline.errors import ForbiddenError, PeerError, UnauthenticatedError
from paceline.message import Message
from paceline.net.connect import ClientTls, ConnectSettings
from paceline.platform.runtime import SystemClock, spawn
from paceline.producer.producer import Producer
from paceline.security.authority import Authority

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]


def by_tls(cluster: RunningCluster) -> ConnectSettings:
    ca_file = str(cluster.data_dir / "tls" / "ca.pem")
    return ConnectSettings(cluster.bootstrap, tls=ClientTls(ca_file=ca_file))


async def test_a_cluster_by_tls_takes_new_certificates_in_use_and_survives_its_master(
    tmp_path: Path,
) -> None:
    with running_cluster(tmp_path, "--tls") as cluster:
        connect = by_tls(cluster)
        sent: list[bytes] = []
        is_done = asyncio.Event()

        async def send() -> None:
            async with Producer(connect) as producer:
                while not is_done.is_set():
                    body = b"%d" % len(sent)
                    await producer.send(Message("orders", body))
                    sent.append(body)

        async with AdminClient(connect) as admin:
            await admin.topics.create("orders", queues=1)
            sending = spawn(send(), name="sending")
            await grows(sent)
            authority = Authority(cluster.data_dir / "tls")
            for node in cluster.nodes():
                authority.renew(node["name"], now_unix_ms=SystemClock().unix_ms())
                cluster.send_signal(node["name"], signal.SIGHUP)
            await eventually(lambda: all_have_reloaded(cluster), what="new certificates")
            await grows(sent)
            cluster.send_signal(await master_of(cluster, admin), signal.SIGKILL)
            await grows(sent)
            is_done.set()
            await sending

        bodies = await bodies_of(connect, "orders", len(sent))
        assert bodies == sent, "in order, each once"


async def test_whoever_trusts_another_authority_or_none_is_told(tmp_path: Path) -> None:
    other = Authority(tmp_path / "other")
    other.init(common_name="other", now_unix_ms=SystemClock().unix_ms())
    with running_cluster(tmp_path / "data", "--tls") as cluster:
        wrong = ClientTls(ca_file=str(other.certificate))
        with pytest.raises(PeerError, match="certificate of .* is refused"):
            async with Producer(ConnectSettings(cluster.bootstrap, tls=wrong)):
                pass
        with pytest.raises(PeerError, match="takes TLS only"):
            async with Producer(cluster.bootstrap):
                pass


async def test_a_cluster_that_others_reach_is_closed_from_the_start(tmp_path: Path) -> None:
    beyond = ("--host", "0.0.0.0", "--advertise", "127.0.0.1")
    with running_cluster(tmp_path, "--tls", *beyond) as cluster:
        key = cluster.first_key
        assert key is not None
        nobody = by_tls(cluster)
        with pytest.raises(UnauthenticatedError):
            async with AdminClient(nobody) as admin:
                await admin.topics.create("orders", queues=1)
        connect = replace(nobody, credentials=key)
        async with AdminClient(connect) as admin:
            await admin.topics.create("orders", queues=1)
            with pytest.raises(ForbiddenError, match="rights stay on"):
                await admin.security.set("off")
        async with Producer(connect) as producer:
            await producer.send(Message("orders", b"one"))
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert key.access_key.encode() in written
    assert key.secret_key.encode() not in written, "its digest is kept, and nothing is logged"

    with running_cluster(tmp_path, "--tls", *beyond) as cluster:
        assert cluster.first_key is None, "it is shown once"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--host", "0.0.0.0", "--advertise", "localhost"), ("--tls", "--insecure")),
        (("--host", "0.0.0.0", "--tls"), ("--advertise",)),
        (("--host", "198.51.100.1", "--insecure"), ("an address of this machine",)),
    ],
)
def test_an_address_that_others_reach_is_not_opened_by_mistake(
    tmp_path: Path, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    command = paceline_command("up", "--data-dir", str(tmp_path / "data"), *arguments)

    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)

    assert ended.returncode == 2
    assert all(word in ended.stderr for word in words), ended.stderr


async def grows(sent: list[bytes]) -> None:
    count = len(sent)

    async def more() -> bool:
        return len(sent) > count + 100

    await eventually(more, within_ms=30_000, what="messages are sent")


async def all_have_reloaded(cluster: RunningCluster) -> bool:
    logs = cluster.data_dir / "logs"
    files = [logs / f"{node['name']}.log" for node in cluster.nodes()]
    return all("tls_reloaded" in file.read_text() for file in files)


async def master_of(cluster: RunningCluster, admin: AdminClient) -> str:
    [group] = (await admin.view()).groups.values()
    master = group.master_view()
    assert master is not None
    address = master.client_address
    [name] = [node["name"] for node in cluster.brokers() if node["address"] == address]
    return str(name)
