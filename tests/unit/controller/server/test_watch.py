"""`/v1/watch`: views, and what changed in them, once there are news."""

import asyncio
from typing import Any

from tests.support.client.views import view_changes
from tests.support.controller.harness import DEADLINE_S, eventually
from tests.support.controller.sessions import a_cluster
from tests.support.service.fakes import a_view

from paceline.platform.runtime import ManualClock, spawn
from paceline.types import TopicName
from paceline.wire.cluster import ClusterView
from paceline.wire.views.changes import ViewChanges
from paceline.wire.views.scope import Scope
from paceline_controller.server.watches import Watches
from paceline_controller.state.changes import Changed


async def test_a_watch_answers_when_the_version_moves() -> None:
    async with a_cluster() as (cluster, _):
        version = cluster.leader.machine.version
        waiting = asyncio.ensure_future(  # noqa: TID251 - two requests at once, both awaited here
            cluster.ask("GET", f"/v1/watch?from={version}&wait_ms=30000")
        )
        await eventually(lambda: len(cluster.leader.http.watches) == 1, "it waits")

        await cluster.ask("POST", "/v1/topics", {"topic": "t"})

        async with asyncio.timeout(DEADLINE_S):
            status, view = await waiting
        assert (status, view["version"]) == (200, version + 1)


async def test_a_watch_tells_changes_to_who_asks_for_them() -> None:
    async with a_cluster() as (cluster, _):
        version = cluster.leader.machine.version
        _, before = await cluster.ask("GET", "/v1/routes")
        await cluster.ask("POST", "/v1/topics", {"topic": "t"})
        path = f"/v1/watch?from={version}"

        _, whole = await cluster.ask("GET", path)
        _, changes = await cluster.ask("GET", f"{path}&changes=true")
        _, nothing = await cluster.ask("GET", f"/v1/watch?from={version + 1}&changes=true")
        _, unknown = await cluster.ask("GET", "/v1/watch?from=-1&changes=true")

    assert (changes["since"], changes["version"]) == (version, version + 1)
    assert [row["topic"] for row in changes["topics"]] == ["t"]
    assert changes["groups"] == []
    led_to = ViewChanges.from_json(changes).applied_to(ClusterView.from_json(before))
    assert led_to == ClusterView.from_json(whole)
    assert (nothing["since"], nothing["topics"]) == (version + 1, [])
    assert unknown == whole


async def test_a_watch_without_news_answers_what_there_is() -> None:
    async with a_cluster() as (cluster, _):
        version = cluster.leader.machine.version

        status, view = await cluster.ask("GET", f"/v1/watch?from={version}&wait_ms=20")

        assert (status, view["version"]) == (200, version)


class _Views:
    """What changed is what the test says."""

    def __init__(self) -> None:
        self.version = 0
        self.shown = a_view(version=1)

    def changed(self, since: int) -> Changed:
        changes = view_changes(a_view(version=since), self.shown)
        return Changed(
            groups=set(changes.groups),
            topics=set(changes.topics),
            consumer_groups=set(changes.consumer_groups),
        )

    def concerns(self, since: int, scope: Scope) -> bool:
        changed = self.changed(since)
        return changed.concerns_all or bool(changed.topics & scope.topics)


class _Scene:
    """A controller's watches, with some who wait."""

    def __init__(self) -> None:
        self.views, self.clock = _Views(), ManualClock()
        self.watches = Watches(self.views, lambda: self.views.version, clock=self.clock)  # type: ignore[arg-type]
        self.publish()

    def publish(self, **changes: Any) -> int:
        """What those who wait are answered for."""
        self.views.version += 1
        self.views.shown = a_view(**changes)
        self.watches.published()
        return self.watches.version

    async def wait(self, count: int) -> None:
        for number in range(count):
            spawn(self.watches.wait(60_000), name=f"wait-{number}")
        await eventually(lambda: len(self.watches) == count, "they wait")


async def test_rare_news_of_topics_are_told_at_once() -> None:
    scene = _Scene()
    await scene.wait(10)
    scene.clock.advance(5)

    assert scene.publish(topics={"t": 1}) == 2


async def test_frequent_news_of_topics_are_told_together_and_those_of_masters_at_once() -> None:
    scene = _Scene()
    await scene.wait(10)

    assert scene.publish(topics={"t": 1}) == 1
    assert scene.publish(topics={"u": 1}) == 1
    assert scene.publish(master=2) == 4
    await eventually(lambda: not len(scene.watches), "all look again")

    await scene.wait(10)
    assert scene.publish(topics={"v": 1}) == 4
    await eventually(lambda: scene.watches.version == 5, "in the next round")


async def test_a_watch_of_some_topics_waits_for_news_of_them() -> None:
    async with a_cluster() as (cluster, _):
        await cluster.ask("POST", "/v1/topics", {"topic": "t"})
        version = cluster.leader.machine.version
        path = f"/v1/watch?from={version}&changes=true&topics=t,x&consumer_groups=c"
        waiting = asyncio.ensure_future(  # noqa: TID251 - two requests at once, both awaited here
            cluster.ask("GET", f"{path}&wait_ms=30000")
        )
        await eventually(lambda: len(cluster.leader.http.watches) == 1, "it waits")

        await cluster.ask("POST", "/v1/topics", {"topic": "other"})
        _, nothing = await cluster.ask("GET", f"{path}&wait_ms=1")
        assert len(cluster.leader.http.watches) == 1
        await cluster.ask("POST", "/v1/topics", {"topic": "x"})

        async with asyncio.timeout(DEADLINE_S):
            _, changes = await waiting
        _, whole = await cluster.ask("GET", "/v1/watch?topics=other")
        refused, problem = await cluster.ask("GET", f"/v1/watch?topics={'t' * 5000}")

    assert (nothing["since"], nothing["version"], nothing["topics"]) == (version, version + 1, [])
    assert [row["topic"] for row in changes["topics"]] == ["x"]
    assert [row["topic"] for row in whole["topics"]] == ["other"]
    assert whole["groups"]
    assert (refused, problem["code"]) == (400, "BAD_REQUEST")


async def test_a_topic_that_is_used_late_is_told_at_once() -> None:
    """It changed long before the version that the client has."""
    async with a_cluster() as (cluster, _):
        for topic in ("old", "a", "b", "c"):
            await cluster.ask("POST", "/v1/topics", {"topic": topic})
        version = cluster.leader.machine.version

        async with asyncio.timeout(DEADLINE_S):
            _, view = await cluster.ask(
                "GET", f"/v1/watch?from={version - 1}&wait_ms=30000&topics=old"
            )

    assert [row["topic"] for row in view["topics"]] == ["old"]


async def test_who_uses_other_topics_is_not_woken() -> None:
    scene = _Scene()
    used = Scope(topics=frozenset([TopicName("t")]))
    spawn(scene.watches.wait(60_000, used), name="scoped")
    await eventually(lambda: len(scene.watches) == 1, "it waits")

    scene.publish(topics={"u": 1})
    assert not scene.watches.has_news(1, used)
    assert scene.watches.has_news(1, None)
    await eventually(lambda: scene.watches.version == 2, "all others are told")
    assert len(scene.watches) == 1

    scene.publish(topics={"t": 1})
    await eventually(lambda: not len(scene.watches), "it looks again")
