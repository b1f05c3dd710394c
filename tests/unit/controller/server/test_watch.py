"""`/v1/watch`: views, and what changed in them, once there are news."""

import asyncio

from tests.support.controller.harness import DEADLINE_S, eventually
from tests.support.controller.sessions import a_cluster

from paceline.wire.cluster import ClusterView
from paceline.wire.views.changes import ViewChanges


async def test_a_watch_answers_when_the_version_moves() -> None:
    async with a_cluster() as (cluster, _):
        version = cluster.leader.machine.version
        waiting = asyncio.ensure_future(  # noqa: TID251 - two requests at once, both awaited here
            cluster.ask("GET", f"/v1/watch?from={version}&wait_ms=30000")
        )
        await eventually(lambda: cluster.leader.http.watches_count == 1, "it waits")

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
