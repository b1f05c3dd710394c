"""Cursors beside the group's own state, and beside each other: who ends them, what they cost."""

from dataclasses import replace
from typing import Any

from tests.support.service.fakes import Bench, a_view, replayed
from tests.support.service.receipts import offset_row, receive
from tests.support.service.send_back import KEY, TOPICS, a_bench, send

from paceline.types import ConsumerGroupName
from paceline.wire.consumer_groups import ConsumerGroupSettings, ConsumerGroupView
from paceline_broker.projections.projections import Projections
from paceline_broker.service.counters import _lag
from paceline_broker.service.groups.unread import _unread

BROADCASTING = ConsumerGroupSettings(message_model="broadcasting")


def broadcasting(**settings: Any) -> Bench:
    return a_bench(settings=replace(BROADCASTING, **settings))


def stands(bench: Bench) -> list[str]:
    """Cursors of which anything is left."""
    projections = bench.role.projections
    assert set(projections.receipts.cursors()) <= set(projections.offsets.groups())
    assert projections.receipts.cursor_queues == sum(
        len(projections.receipts.of_group(cursor)) for cursor in projections.receipts.cursors()
    )
    return sorted(projections.receipts.cursors())


# -- members of the same group that share its messages ---------------------------------------------


async def own_offset(bench: Bench, queue: int = 0) -> int | None:
    answer = await bench.call("offsets", group="g", queues=[{"topic": "orders", "queue": queue}])
    offset: int | None = answer["offsets"][0]["offset"]
    return offset


async def test_members_that_share_begin_where_they_stood_not_where_cursors_are() -> None:  # R33
    """Else what is between is lost, or consumed again."""
    bench = broadcasting()
    send(bench, 3)
    await bench.call("commit", group="g", offsets=[offset_row(1)])
    await receive(bench)

    assert await own_offset(bench) == 1
    assert await own_offset(bench, queue=1) is None


async def test_a_group_that_shares_again_goes_on_where_it_did_so() -> None:
    bench = broadcasting()
    send(bench, 3)
    await bench.call("commit", group="g", offsets=[offset_row(1)])
    await receive(bench)
    shares_again(bench)

    lag = await bench.call("lag", group="g")
    tracked = await bench.call("track", topic="orders", queue=0, offset=1)

    assert await own_offset(bench) == 1
    assert [row["offset"] for row in lag["queues"]] == [1]
    assert [row["is_done"] for row in tracked["groups"]] == [False]
    assert _lag(bench.role, bench.service.routes) == {("orders", "g", "false", "false"): 3}


def shares_again(bench: Bench) -> None:
    view = a_view(version=9, topics=TOPICS)
    group = ConsumerGroupName("g")
    usual = ConsumerGroupView(group=group, settings=ConsumerGroupSettings())
    bench.service.view_changed(replace(view, consumer_groups={group: usual}))


async def test_queues_are_not_taken_from_those_who_share_while_cursors_have_read_them() -> None:
    bench = broadcasting()
    send(bench, 3)
    await bench.call("commit", group="g", offsets=[offset_row(1)])
    await receive(bench)

    rows = _unread(bench.role.projections, 1, 0)

    assert [(row.group, row.messages) for row in rows if row.queue == 0] == [("g", 3)]


async def test_cursors_are_found_by_their_group_after_replay_and_restore() -> None:
    bench = broadcasting()
    for client in ("c1", "c2", "g@x"):
        await receive(bench, client_id=client)
    await bench.call("end_receive", group="g", client_id="c2", has_gone=True)
    send(bench, 3)
    await receive(bench)

    restored = Projections.restore(replayed(bench))

    assert stands(bench) == ["g@c1", "g@g@x"]
    for projections in (bench.role.projections, restored):
        assert sorted(projections.receipts.cursors()) == ["g@c1", "g@g@x"]
        assert projections.receipts.cursor_queues == 8
        assert projections.receipts.open_count("g", KEY) == 4
        assert projections.offsets.of_cursors("g")[KEY].offset == 0
        projections.offsets.drop_group("g")
        projections.receipts.drop_group("g")
        assert not projections.receipts.has_cursors
        assert projections.receipts.cursor_queues == 0
        assert projections.offsets.of_cursors("g") == {}
