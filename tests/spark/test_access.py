"""A secured cluster: a tenant's program reads and writes its namespace; Spark shows no secret."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from tests.support.process.harness import running_cluster

from paceline.admin.client import AdminClient
from paceline.consumer.pull import PullConsumer
from paceline.message import Message
from paceline.net.connect import ConnectSettings, Credentials
from paceline.producer.producer import Producer

PROGRAM = Path(__file__).with_name("tenant.py")
COUNT = 100


async def prepare(bootstrap: list[str]) -> ConnectSettings:
    """Rights are on; user `shop` has the namespace `shop` and a topic in it."""
    async with AdminClient(bootstrap) as admin:
        await admin.topics.create("orders", queues=1)
        await admin.users.create("root", is_super=True)
        root = ConnectSettings(bootstrap, await admin.users.add_key("root"))
        await admin.users.create("shop", namespace="shop")
        await admin.policies.set_entry("shop", "Namespace:shop", ["All"])
        shop = ConnectSettings(bootstrap, await admin.users.add_key("shop"))
    async with AdminClient(root) as admin:
        await admin.security.set("on")
    async with AdminClient(shop) as admin, Producer(shop) as producer:
        await admin.topics.create("orders", queues=2)
        await admin.topics.create("copies", queues=1)
        await producer.send_many([Message("orders", b"%d" % number) for number in range(COUNT)])
    return shop


async def copied(connect: ConnectSettings) -> set[bytes]:
    async with PullConsumer(connect) as consumer:
        await consumer.subscribe("copies")
        found: set[bytes] = set()
        while len(found) < COUNT:
            messages = await consumer.poll(timeout_ms=10_000)
            assert messages, f"{len(found)} of {COUNT}"
            found |= {message.body for message in messages}
    return found


def test_a_tenant_reads_and_writes_its_own_and_spark_shows_no_secret(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "data", "--brokers", "1") as cluster:
        shop = asyncio.run(prepare(cluster.bootstrap))
        key = shop.credentials
        assert isinstance(key, Credentials)
        token = f"{key.access_key}.{key.secret_key}"
        events = tmp_path / "events"
        events.mkdir()
        done = subprocess.run(
            [sys.executable, str(PROGRAM), ",".join(cluster.bootstrap), str(events), token],
            env={**os.environ, **key.environment()},
            capture_output=True,
            text=True,
            check=False,
        )

        assert done.returncode == 0, done.stderr[-3000:]
        assert asyncio.run(copied(shop)) == {b"%d" % number for number in range(COUNT)}
        assert "topics: copies,orders" in done.stdout
        told = [path.read_text(errors="replace") for path in events.rglob("*") if path.is_file()]
        assert any("paceline" in text for text in told), "the plans are in it"
        assert key.secret_key not in done.stdout + done.stderr
        assert not any(key.secret_key in text for text in told)
