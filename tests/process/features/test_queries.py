"""Real processes: ids, unique keys and tracks say the same on the next master."""

import signal
from pathlib import Path
from typing import Any

import pytest
from tests.support.process.harness import RunningCluster, running_cluster, the_master

from paceline.admin.client import AdminClient
from paceline.consumer.pull import PullConsumer
from paceline.message import Message
from paceline.producer.producer import Producer

pytestmark = [pytest.mark.process, pytest.mark.timeout(90)]


async def test_what_was_found_is_found_again_on_the_next_master(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "data") as cluster:
        async with AdminClient(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
            await admin.topics.create("invoices", queues=3)
            messages = [
                Message("invoices", b"%d" % number, key=f"k{number % 5}") for number in range(100)
            ]
            sent = list(await producer.send_many(messages))

            async def of_key(key: str) -> list[dict[str, Any]]:
                return [row async for row in admin.messages.find("invoices", key=key)]

            before = await of_key("k3")
            tracked = await track_of(before, admin, cluster)
            cluster.send_signal(await the_master(cluster), signal.SIGKILL)
            await producer.send(Message("invoices", b"100", key="k3"))
            after = await of_key("k3")
            tracked_after = [await admin.messages.track(row["message_id"]) for row in before]
            by_id = [await admin.messages.get(row["message_id"]) for row in after]
            by_unique_key = [
                row
                for wanted in after
                async for row in admin.messages.find("invoices", unique_key=wanted["unique_key"])
            ]

    assert sorted(int(row["body"]) for row in before) == list(range(3, 100, 5))
    assert after[: len(before)] == before
    told = {(row["message_id"], row["unique_key"]) for row in before}
    assert told == {(sent[at].message_id, sent[at].unique_key) for at in range(3, 100, 5)}
    assert [row["body"] for row in after[len(before) :]] == ["100"]
    assert by_id == after
    assert by_unique_key == after
    assert tracked_after == tracked
    statuses = [row["status"] for rows in tracked for row in rows]
    assert statuses == ["CONSUMED"] * 10 + ["NOT_ONLINE"] * 10


async def track_of(
    rows: list[dict[str, Any]], admin: AdminClient, cluster: RunningCluster
) -> list[list[dict[str, Any]]]:
    """Of each message, once a group has come to the eleventh of the queue they are in."""
    async with PullConsumer(cluster.bootstrap) as reader:
        [queue] = {row["queue"] for row in rows}
        names = [name for name in await reader.queues("invoices") if name.queue_id == queue]
        await reader.commit("audit", dict.fromkeys(names, rows[10]["offset"]))
    return [await admin.messages.track(row["message_id"]) for row in rows]
