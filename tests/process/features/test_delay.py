"""Delayed messages on real processes: each is delivered once and never early, whoever dies.

Times are this machine's, as are the brokers': a due time is compared with when the delivery was
stored, and with when a consumer had it.
"""

import asyncio
import signal
from pathlib import Path

import pytest
from tests.support.process.harness import (
    BUSY_MS_MAX,
    RunningCluster,
    broker_status,
    eventually,
    http_session,
    running_cluster,
    the_master,
)
from tests.support.process.load import SEGMENT_BYTES

from paceline.admin.client import AdminClient
from paceline.consumer.pull import PullConsumer
from paceline.errors import ConflictError
from paceline.message import Message, ReceivedMessage
from paceline.platform.runtime import SystemClock
from paceline.producer.producer import Producer
from paceline.producer.settings import ProducerSettings
from paceline.records.header import Codec
from paceline.wire.message_ids import parse_handle
from paceline.wire.names import DELAY_DLQ_TOPIC

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

RETURNED_WITHIN_MS = 30_000
"""All nodes start again after a kill, side by side with others' nodes."""


async def read(
    cluster: RunningCluster, topic: str, count: int, *, patience_ms: int = 2_000
) -> list[tuple[ReceivedMessage, int]]:
    """Messages of the topic with the time at which each was read: `count`, and then no more."""
    found: list[tuple[ReceivedMessage, int]] = []
    clock = SystemClock()
    async with PullConsumer(cluster.bootstrap) as consumer:
        await consumer.assign(dict.fromkeys(await consumer.queues(topic), "first"))
        async with asyncio.timeout(60):
            while len(found) < count:
                got = await consumer.poll(timeout_ms=1_000)
                found += [(message, clock.unix_ms()) for message in got]
        # Whoever comes twice comes soon after: nothing is left to wait for.
        more = await consumer.poll(timeout_ms=patience_ms)
        assert not more, [message.body for message in more]
    return found


def lateness_ms(found: list[tuple[ReceivedMessage, int]]) -> int:
    """Of the latest, as it was stored; none is early."""
    for message, read_unix_ms in found:
        due = int(message.properties["TIMER_OUT_MS"])
        assert message.store_unix_ms >= due, (message, "stored early")
        assert read_unix_ms >= due, (message, "read early")
    return max(m.store_unix_ms - int(m.properties["TIMER_OUT_MS"]) for m, _ in found)


async def test_master_killed_around_the_due_time_delivers_each_message_once(
    tmp_path: Path,
) -> None:
    """S25, R34: some are delivered by the first master, the rest by the next, none by both."""
    with running_cluster(tmp_path / "data", restart=True) as cluster:
        async with AdminClient(cluster.bootstrap) as admin:
            await admin.topics.create("later", queues=2, message_type="DELAY")
        async with Producer(cluster.bootstrap) as producer:
            sent = [
                producer.send(Message("later", b"%d" % n, delay_ms=1_500 + 3 * n))
                for n in range(500)
            ]
            for sending in sent:
                await sending

            async def some_delivered() -> bool:
                async with PullConsumer(cluster.bootstrap) as consumer:
                    ranges = await consumer.ranges(await consumer.queues("later"))
                    return any(found.end for found in ranges.values())

            await eventually(some_delivered, what="a first delivery")
            cluster.send_signal(await the_master(cluster), signal.SIGKILL)
            found = await read(cluster, "later", 500)
    bodies = [message.body for message, _ in found]
    assert sorted(map(int, bodies)) == list(range(500))
    assert len({message.properties["UNIQ_KEY"] for message, _ in found}) == 500
    assert lateness_ms(found) <= BUSY_MS_MAX


async def test_whole_cluster_down_at_the_due_time_delivers_after_it_is_back(
    tmp_path: Path,
) -> None:
    """What waits is in the log: also a kill -9 of every node takes none of it."""
    with running_cluster(tmp_path / "data", restart=True) as cluster:
        async with AdminClient(cluster.bootstrap) as admin:
            await admin.topics.create("later", queues=1, message_type="DELAY")
        async with Producer(cluster.bootstrap) as producer:
            for n in range(20):
                await producer.send(Message("later", b"%d" % n, delay_level=1))
            for node in cluster.brokers():
                cluster.send_signal(node["name"], signal.SIGKILL)
            found = await read(cluster, "later", 20)
    assert sorted(int(message.body) for message, _ in found) == list(range(20))
    assert lateness_ms(found) <= RETURNED_WITHIN_MS


async def test_what_waits_longer_than_the_log_is_kept_is_delivered_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R26: it is stored again before its file goes, and its first handle still recalls it."""
    for name, value in (
        ("LOG_SIZE_BYTES_MAX", 2 * SEGMENT_BYTES),
        ("CLEAN_RESOURCE_INTERVAL_MS", 200),
        ("CHECKPOINT_INTERVAL_MS", 200),
    ):
        monkeypatch.setenv(f"PACELINE_BROKER_{name}", str(value))
    segments = ("--segment-size", str(SEGMENT_BYTES))
    with running_cluster(tmp_path / "data", *segments) as cluster:
        async with AdminClient(cluster.bootstrap) as admin:
            await admin.topics.create("later", queues=2, message_type="MIXED")
            await admin.topics.create("noise", queues=1)
        settings = ProducerSettings(codec=Codec.NONE)  # the noise is to be large
        async with Producer(cluster.bootstrap, settings=settings) as producer:
            sent = [
                await producer.send(Message("later", b"%d" % n, delay_ms=20_000)) for n in range(20)
            ]
            places = [parse_handle("recall", result.recall_handle or "") for result in sent]
            beyond = max(place.position for place in places)
            async with http_session() as session:

                async def has_gone() -> bool:
                    await producer.send_bodies("noise", [b"x" * 100_000] * 10)
                    statuses = [
                        await broker_status(session, node["address"]) for node in cluster.brokers()
                    ]
                    return all(status and status["start"] > beyond for status in statuses)

                await eventually(has_gone, within_ms=17_000, what="their first places are deleted")
            await producer.recall("later", sent[0].recall_handle or "")
            found = await read(cluster, "later", 19)
    assert sorted(int(message.body) for message, _ in found) == list(range(1, 20))
    assert lateness_ms(found) <= BUSY_MS_MAX


async def test_recall_holds_across_a_failover_and_a_deleted_topic_buries(tmp_path: Path) -> None:
    """R28, R35."""
    with running_cluster(tmp_path / "data", restart=True) as cluster:
        async with AdminClient(cluster.bootstrap) as admin:
            await admin.topics.create("later", queues=1, message_type="DELAY")
            await admin.topics.create("doomed", queues=1, message_type="DELAY")
            async with Producer(cluster.bootstrap) as producer:
                kept = await producer.send(Message("later", b"kept", delay_ms=4_000))
                gone = await producer.send(Message("later", b"gone", delay_ms=4_000))
                await producer.send(Message("doomed", b"homeless", delay_ms=4_000))
                assert kept.recall_handle is not None
                assert gone.recall_handle is not None
                await producer.recall("later", gone.recall_handle)
                await admin.topics.delete("doomed")
                cluster.send_signal(await the_master(cluster), signal.SIGKILL)
                found = await read(cluster, "later", 1)
                with pytest.raises(ConflictError):
                    await producer.recall("later", kept.recall_handle)
        [(message, _)] = found
        assert message.body == b"kept"
        [(letter, _)] = await read(cluster, DELAY_DLQ_TOPIC, 1)
        assert letter.body == b"homeless"
        assert letter.properties["DLQ_ORIGIN_MESSAGE_ID"].startswith("g1:")
