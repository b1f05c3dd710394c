"""A client in a namespace: where it learns it, and what it sends to nodes."""

from dataclasses import replace
from typing import Any

import pytest
from tests.support.client.fake_cluster import FakeCluster

from paceline.errors import BadNameError, TopicNotFoundError
from paceline.message import Message
from paceline.net.cluster import Cluster
from paceline.net.connect import ConnectSettings
from paceline.net.http import HttpClient
from paceline.producer.producer import Producer


def in_namespace(cluster: FakeCluster, namespace: str | None) -> ConnectSettings:
    return ConnectSettings(cluster.controller, namespace=namespace)


@pytest.mark.parametrize(
    ("given", "told", "sees"),
    [(None, "", 1), (None, "shop", 2), ("farm", "shop", 3), ("", "shop", 1)],
)
async def test_the_namespace_is_the_one_given_or_that_of_the_user(
    given: str | None, told: str, sees: int
) -> None:
    async with FakeCluster() as fake:
        for name in ("orders", "shop%orders", "farm%orders"):
            fake.add_topic(name, 1)
        fake.view = replace(fake.view, namespace=told)
        cluster = Cluster(in_namespace(fake, given))
        try:
            cluster.start()
            topic = await cluster.wait_topic("orders", timeout_ms=5_000)
            assert (topic.topic, topic.topic_id) == ("orders", sees)
            assert cluster.topic_name(sees) == "orders"

            # It is for good: what the user is given later is for programs that start later.
            fake.publish(namespace="other")
            version = fake.view.version
            await cluster.watch.wait_for(lambda view: view.version >= version, timeout_ms=5_000)
            found = cluster.topic("orders")
            assert found is not None
            assert found.topic_id == sees
        finally:
            await cluster.close()


async def test_a_namespace_that_is_none_is_refused_at_once() -> None:
    with pytest.raises(BadNameError, match="namespace must be"):
        Producer(ConnectSettings("127.0.0.1:1", namespace="a%b"))


@pytest.mark.parametrize("name", ["orders", "shop%orders"])
async def test_a_topic_is_made_and_sent_to_by_its_full_name(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a proxy lets no streams pass: the name stands in a path then."""
    paths: list[str] = []
    post = HttpClient.post_bytes

    async def note(self: HttpClient, address: str, path: str, *rest: Any, **more: Any) -> Any:
        paths.append(path)
        return await post(self, address, path, *rest, **more)

    monkeypatch.setattr(HttpClient, "post_bytes", note)
    async with FakeCluster(brokers=1) as fake:
        fake.makes_topics = True
        fake.brokers[("g1", 1)].serves_streams = False
        async with Producer(in_namespace(fake, "shop")) as producer:
            result = await producer.send(Message(name, b"tea"))

        assert list(fake.view.topics) == ["shop%orders"]
        assert result.topic == name
        assert paths == [f"/v1/topics/shop%25orders/queues/{result.queue_id}/batches"]


async def test_a_topic_in_no_namespace_is_not_there() -> None:
    async with FakeCluster() as fake:
        fake.add_topic("orders", 1)
        cluster = Cluster(in_namespace(fake, "shop"))
        try:
            cluster.start()
            with pytest.raises(TopicNotFoundError):
                await cluster.wait_topic("orders", timeout_ms=100)
        finally:
            await cluster.close()


async def test_changes_of_a_topic_reach_who_sends_by_its_full_name() -> None:
    async with FakeCluster() as fake:
        fake.add_topic("shop%orders", 1)
        async with Producer(in_namespace(fake, "shop")) as producer:
            for number in range(3):
                for name in ("orders", "shop%orders"):
                    await producer.send(Message(name, b"%d" % number))
                fake.alter_topic("shop%orders", queues={"g1": 2 + number})
                version = fake.view.version
                await producer._cluster.watch.wait_for(
                    lambda view, version=version: view.version >= version,  # type: ignore[misc]
                    timeout_ms=5_000,
                )
