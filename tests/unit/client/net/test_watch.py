"""The cluster watch: newest view, any node may hang."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from tests.support.app_server import AppServer
from tests.support.client.fake_cluster import FakeCluster
from tests.support.client.views import view_changes

from paceline.errors import PeerError
from paceline.net import watch
from paceline.net.cluster import Cluster
from paceline.types import GroupName, TopicId, TopicName
from paceline.wire.cluster import ClusterView, TopicView
from paceline.wire.views.changes import ViewChanges


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
            ends = [poll.limit.when() for poll in cluster.watch._polls.values()]
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
        self._server = AppServer(app)

    async def __aenter__(self) -> "_Hanging":
        await self._server.start()
        self.address = self._server.address
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop()

    async def _hang(self, _: web.Request) -> web.Response:
        self.asked.set()
        await asyncio.Event().wait()
        return web.Response()


class _Telling:
    """A controller that answers what the test tells it to, and notes what it is asked."""

    def __init__(self, *answers: ClusterView | ViewChanges) -> None:
        self.asked: list[tuple[str, str]] = []
        self._answers = [answer.to_json() for answer in answers]

    async def get(
        self, address: str, path: str, *, params: dict[str, str] | None = None, timeout_ms: int
    ) -> dict[str, Any]:
        wanted = params or {}
        self.asked.append((wanted.get("from", ""), wanted.get("changes", "")))
        return self._answers.pop(0)


def a_topic(name: str, number: int) -> TopicView:
    return TopicView(
        topic=TopicName(name), topic_id=TopicId(number), queues={GroupName("g1"): number}
    )


def _versions(*names: str) -> list[ClusterView]:
    """Views that follow one another: each has one more topic."""
    topics = [a_topic(name, number) for number, name in enumerate(names, 1)]
    return [
        ClusterView(
            cluster_id="a",
            version=version,
            topics={topic.topic: topic for topic in topics[:version]},
            controllers=("c",),
        )
        for version in range(1, len(names) + 1)
    ]


async def _polled(*answers: ClusterView | ViewChanges) -> tuple[_Telling, ClusterView | None]:
    telling = _Telling(*answers)
    cluster = Cluster("127.0.0.1:1")
    cluster.watch._http = telling  # type: ignore[assignment]
    for _ in answers:
        await cluster.watch._poll("c", cluster.watch._received.ask())
    return telling, cluster.view


async def test_changes_lead_from_any_version_that_they_begin_at_or_after() -> None:
    one, two, three, four = _versions("t", "u", "v", "w")

    telling, view = await _polled(
        one, view_changes(one, two), view_changes(one, three), view_changes(three, four)
    )

    assert view == four
    assert telling.asked == [("", ""), ("1", "true"), ("2", "true"), ("3", "true")]


async def test_after_a_gap_the_whole_view_is_asked_for() -> None:
    """R38: what came between is not guessed."""
    one, two, three, four = _versions("t", "u", "v", "w")

    telling, view = await _polled(one, view_changes(two, three), four, view_changes(four, four))

    assert view == four
    assert telling.asked == [("", ""), ("1", "true"), ("1", ""), ("4", "true")]


async def test_changes_that_are_older_than_the_view_are_no_gap() -> None:
    one, two, three, _ = _versions("t", "u", "v", "w")

    telling, view = await _polled(
        one, view_changes(one, three), view_changes(one, two), view_changes(three, three)
    )

    assert view == three
    assert [changes for _, changes in telling.asked] == ["", "true", "true", "true"]


async def test_changes_of_another_cluster_are_none_of_ours() -> None:
    one, two, *_ = _versions("t", "u")
    other = [replace(view, cluster_id="b") for view in (one, two)]

    telling, view = await _polled(one, view_changes(*other), two)

    assert view == two
    assert telling.asked[-1] == ("1", "")


async def test_brokers_are_not_asked_for_changes() -> None:
    """They repeat whole views, and refuse parameters that they do not know."""
    one, two = (replace(view, controllers=("other",)) for view in _versions("t", "u"))

    telling, view = await _polled(one, two)

    assert view == two
    assert telling.asked == [("", ""), ("1", "")]


async def test_a_client_has_what_it_uses_and_hears_of_nothing_else() -> None:
    async with FakeCluster() as fake:
        fake.add_topic("t", 1)
        fake.add_topic("u", 1)
        cluster = Cluster(fake.controller, sees_all=False)
        heard: list[ClusterView] = []
        cluster.watch.listen(heard.append)
        cluster.start()
        try:
            await cluster.watch.wait_for(lambda view: True, timeout_ms=5_000)
            assert cluster.topic("t") is None
            assert not cluster.lacks("t")  # nobody knows yet
            one = await cluster.wait_topic("t", timeout_ms=5_000)
            await cluster.watch.wait_for(lambda view: True, timeout_ms=5_000)
            shown = [sorted(view.topics) for view in heard]
            assert cluster.lacks("nowhere") is False
            await cluster.watch.wait_for(lambda view: True, timeout_ms=5_000)
            assert cluster.lacks("nowhere")
            cluster.see_all()
            await cluster.watch.wait_for(lambda view: len(view.topics) == 2, timeout_ms=5_000)
        finally:
            await cluster.close()

    assert one.topic == "t"
    assert shown == [[], ["t"]]


async def test_a_client_of_very_many_topics_is_told_of_all() -> None:
    async with FakeCluster() as fake:
        fake.add_topic("other", 1)
        cluster = Cluster(fake.controller, sees_all=False)
        cluster.start()
        try:
            for number in range(200):
                cluster.use(topics=[f"a-topic-with-a-long-name-{number}"])
            await cluster.watch.wait_for(lambda view: "other" in view.topics, timeout_ms=5_000)
        finally:
            await cluster.close()


async def test_using_more_does_not_wait_for_the_end_of_a_long_poll() -> None:
    async with FakeCluster() as fake:
        cluster = Cluster(fake.controller, sees_all=False)
        cluster.start()
        loop = asyncio.get_running_loop()
        try:
            await cluster.watch.wait_for(lambda view: True, timeout_ms=5_000)
            for name in "abcdefgh":
                fake.add_topic(name, 1)
            began = loop.time()
            for name in "abcdefgh":
                await cluster.wait_topic(name, timeout_ms=5_000)
            fake.elect("g1", 2)
            view = await cluster.watch.wait_for(
                lambda view: view.groups[GroupName("g1")].master == 2, timeout_ms=5_000
            )
        finally:
            await cluster.close()

    assert loop.time() - began < 2
    assert sorted(view.topics) == list("abcdefgh")
    assert cluster.watch.last_error is None


async def test_topics_are_used_by_their_names_in_the_namespace_that_the_first_view_tells() -> None:
    async with FakeCluster() as fake:
        fake.publish(namespace="shop")
        fake.add_topic("shop%orders", 1)
        fake.add_topic("orders", 1)
        cluster = Cluster(fake.controller, sees_all=False)
        cluster.use(topics=["orders"])
        cluster.start()
        try:
            topic = await cluster.wait_topic("orders", timeout_ms=5_000)
        finally:
            await cluster.close()

    assert cluster.namespace.name == "shop"
    assert topic.topic_id == 1


async def test_a_broker_that_knows_no_scopes_tells_all_and_is_cut() -> None:
    async with FakeCluster() as fake:
        fake.add_topic("t", 1)
        fake.add_topic("u", 1)
        cluster = Cluster(fake.brokers[("g1", 2)].address, sees_all=False)
        fake.publish(controllers=())
        cluster.use(topics=["u"])
        cluster.start()
        try:
            view = await cluster.watch.wait_for(lambda view: True, timeout_ms=5_000)
        finally:
            await cluster.close()

    assert list(view.topics) == ["u"]
