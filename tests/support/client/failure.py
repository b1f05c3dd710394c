"""What tests of failure share with others."""

from typing import Any

from tests.support.client.consumers import fill
from tests.support.client.fake_cluster import FakeCluster

from paceline.consumer.push import PushConsumer, PushSettings

SETTINGS = PushSettings(start="first", commit_interval_ms=10)


def consumer(cluster: FakeCluster, listener: Any, **more: Any) -> PushConsumer:
    fields = {"settings": SETTINGS, "listener": listener, **more}
    return PushConsumer(cluster.controller, group="audit", topics=["orders"], **fields)


async def a_cluster(cluster: FakeCluster, count: int) -> None:
    cluster.add_topic("orders", 1)
    cluster.add_topic("%RETRY%audit", 1)
    await fill(cluster, count)


def send_backs(cluster: FakeCluster) -> list[dict[str, Any]]:
    return [call for call in cluster.calls if call["call"] == "send_back"]
