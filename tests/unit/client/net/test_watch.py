"""The cluster watch: newest view, any node may hang."""

import asyncio
from dataclasses import replace

import pytest
from aiohttp import web
from tests.support.client.fake_cluster import FakeCluster

from paceline.errors import PeerError
from paceline.net import watch
from paceline.net.cluster import Cluster
from paceline.types import GroupName
from paceline.wire.cluster import ClusterView


async def test_only_newer_views_of_the_same_cluster_count() -> None:
    """R38."""
    cluster = Cluster("127.0.0.1:1")
    seen: list[int] = []
    cluster.watch.listen(lambda view: seen.append(view.version))

    taken = [
        cluster.watch.apply(ClusterView(cluster_id=cluster_id, version=version))
        for cluster_id, version in (("a", 3), ("a", 2), ("b", 9), ("a", 3), ("a", 4))
    ]

    assert taken == [True, False, False, False, True]
    assert seen == [3, 4]


async def test_a_cluster_that_replaces_ours_counts_whatever_its_version() -> None:
    """R18: its operator has recovered our groups there; what is left of the old one is foreign."""
    cluster = Cluster("127.0.0.1:1")
    views = [
        ClusterView(cluster_id="old", version=9),
        ClusterView(cluster_id="other", version=99, replaces=("older",)),
        ClusterView(cluster_id="new", version=3, replaces=("older", "old")),
        ClusterView(cluster_id="old", version=10),
        ClusterView(cluster_id="new", version=3, replaces=("older", "old")),
        ClusterView(cluster_id="new", version=4, replaces=("older", "old")),
    ]

    taken = [cluster.watch.apply(view) for view in views]

    assert taken == [True, False, True, False, False, True]
    assert ClusterView.from_json(views[2].to_json()) == views[2]


async def test_news_arrive_at_once_also_when_one_controller_hangs() -> None:
    async with FakeCluster() as fake, _Hanging() as hanging:
        fake.publish(controllers=(hanging.address, fake.controller))
        cluster = Cluster(f"{fake.controller},{hanging.address}")
        cluster.start()
        loop = asyncio.get_running_loop()
        try:
            await cluster.watch.wait_for(lambda view: True, timeout_ms=5_000)
            await hanging.asked.wait()
            began = loop.time()
            fake.elect("g1", 2)
            view = await cluster.watch.wait_for(
                lambda view: view.groups[GroupName("g1")].master == 2, timeout_ms=5_000
            )
        finally:
            await cluster.close()

    assert view.groups[GroupName("g1")].master_epoch == 2
    assert loop.time() - began < 1


async def test_doubt_ends_polls_of_nodes_that_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node without power closes nothing: without this, news of a failover come 12 s later."""
    monkeypatch.setattr(watch, "_DOUBT_MS", 0)
    async with FakeCluster() as fake, _Hanging() as one, _Hanging() as other:
        cluster = Cluster(fake.controller)
        cluster.watch.apply(replace(fake.view, controllers=(one.address, other.address)))
        cluster.start()
        try:
            await asyncio.gather(one.asked.wait(), other.asked.wait())
            fake.elect("g1", 2)
            cluster.watch.doubt()
            await cluster.watch.wait_for(
                lambda view: view.groups[GroupName("g1")].master == 2, timeout_ms=5_000
            )
        finally:
            await cluster.close()


async def test_doubt_leaves_young_polls_alone() -> None:
    async with FakeCluster() as fake, _Hanging() as one, _Hanging() as other:
        cluster = Cluster(fake.controller)
        cluster.watch.apply(replace(fake.view, controllers=(one.address, other.address)))
        cluster.start()
        try:
            await asyncio.gather(one.asked.wait(), other.asked.wait())
            cluster.watch.doubt()
            ends = [limit.when() for _, limit in cluster.watch._polls.values()]
        finally:
            await cluster.close()

    assert ends == [None, None]


async def test_a_broker_alone_is_enough_to_begin() -> None:
    async with FakeCluster() as fake:
        cluster = Cluster(fake.brokers[("g1", 2)].address)
        cluster.start()
        try:
            view = await cluster.watch.wait_for(lambda view: True, timeout_ms=5_000)
        finally:
            await cluster.close()

    assert view.controllers == (fake.controller,)


async def test_silence_everywhere_says_who_was_asked() -> None:
    cluster = Cluster("127.0.0.1:1,127.0.0.1:2")
    cluster.start()
    try:
        with pytest.raises(PeerError, match=r"127\.0\.0\.1:1, 127\.0\.0\.1:2"):
            await cluster.watch.wait_for(lambda view: True, timeout_ms=100)
    finally:
        await cluster.close()


class _Hanging:
    """A node that takes requests and never answers."""

    def __init__(self) -> None:
        self.address = ""
        self.asked = asyncio.Event()
        app = web.Application()
        app.router.add_get("/v1/{any}", self._hang)
        self._runner = web.AppRunner(app, shutdown_timeout=0, handler_cancellation=True)

    async def __aenter__(self) -> "_Hanging":
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.address = "127.0.0.1:" + str(self._runner.addresses[0][1])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _hang(self, _: web.Request) -> web.Response:
        self.asked.set()
        await asyncio.Event().wait()
        return web.Response()
