"""Cursors beside the group's own state, and beside each other: who ends them, what they cost."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.support.service.fakes import Bench, a_view, replayed, until
from tests.support.service.receipts import handles, offset_row, receive
from tests.support.service.send_back import KEY, TOPICS, a_bench, send

from paceline.errors import NotMasterError, OverloadedError
from paceline.types import ConsumerGroupName
from paceline.wire.consumer_groups import ConsumerGroupSettings, ConsumerGroupView
from paceline_broker.projections.projections import Projections
from paceline_broker.service.counters import _lag
from paceline_broker.service.groups.unread import _unread
from paceline_broker.service.pop import cursors as cursors_module
from paceline_broker.service.pop.cursors import IDLE_LOOKS, SILENT_LOOKS

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


# -- whose cursor ends -----------------------------------------------------------------------------


async def look(bench: Bench, times: int) -> None:
    for _ in range(times):
        await bench.service.cursors.look()


async def test_a_client_that_comes_back_while_others_are_ended_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cursors_module, "_AT_ONCE", 1)
    bench = broadcasting()
    for client in ("c1", "c2"):
        await receive(bench, client_id=client)
    send(bench, 3)
    given = await receive(bench, client_id="c2", invisible_ms=10_000)
    bench.clock.advance(10_000)
    await look(bench, IDLE_LOOKS - 1)
    bench.log.is_automatic = False
    looking = asyncio.get_running_loop().create_task(look(bench, 1))
    await until(lambda: stands(bench) == ["g@c2"])

    acknowledging = asyncio.get_running_loop().create_task(
        bench.call("ack", group="g", client_id="c2", handles=handles(given))
    )
    await until(lambda: bench.role.projections.offsets.of_group("g@c2")[KEY].offset == 4)
    bench.log.is_automatic = True
    bench.writer.confirm_all()
    await asyncio.gather(looking, acknowledging)

    assert stands(bench) == ["g@c2"]
    await bench.service.close()


async def test_a_client_whose_receipts_count_is_not_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It works on them, and nobody else is given these messages if it fails."""
    monkeypatch.setattr(cursors_module, "CURSORS_MAX", 1)
    bench = broadcasting()
    await receive(bench)
    send(bench)
    given = await receive(bench, invisible_ms=7_200_000)
    await look(bench, IDLE_LOOKS)
    with pytest.raises(OverloadedError):
        await receive(bench, client_id="c2")

    await bench.call("ack", group="g", client_id="c1", handles=handles(given))
    await look(bench, IDLE_LOOKS)

    assert stands(bench) == []
    await bench.service.close()


async def test_a_client_that_says_that_it_is_there_is_not_silent() -> None:
    bench = broadcasting()
    for client in ("c1", "c2"):
        await receive(bench, client_id=client)
    about = {"version": "1", "language": "python", "topics": ["orders"]}
    for _ in range(IDLE_LOOKS):
        await look(bench, 1)
        for kind, client in (("consumer", "c1"), ("producer", "c2"), ("consumer", "stranger")):
            await bench.call("client", kind=kind, group="g", client_id=client, **about)

    assert stands(bench) == ["g@c1"]
    await bench.service.close()


async def test_no_group_takes_room_from_a_smaller_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursors_module, "CURSORS_MAX", 3)
    bench = broadcasting()
    groups = map(ConsumerGroupName, ("g", "h"))
    views = {group: ConsumerGroupView(group=group, settings=BROADCASTING) for group in groups}
    bench.service.view_changed(replace(a_view(version=9, topics=TOPICS), consumer_groups=views))
    await receive(bench, group="h", client_id="small")
    for client in ("c1", "c2"):
        await receive(bench, client_id=client)
    await look(bench, SILENT_LOOKS)

    await receive(bench, client_id="c3")
    assert stands(bench) == ["g@c2", "g@c3", "h@small"]
    await receive(bench, client_id="c4")
    with pytest.raises(OverloadedError):
        await receive(bench, client_id="c5")
    assert stands(bench) == ["g@c3", "g@c4", "h@small"]
    await look(bench, SILENT_LOOKS)
    await receive(bench, group="h", client_id="another")
    assert stands(bench) == ["g@c4", "h@another", "h@small"]
    await bench.service.close()


async def test_clients_that_come_at_once_take_no_more_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursors_module, "CURSORS_MAX", 4)
    bench = broadcasting()
    for number in range(4):
        await receive(bench, client_id=f"c{number}")
    await look(bench, SILENT_LOOKS)

    await asyncio.gather(*(receive(bench, client_id=f"d{number}") for number in range(4)))

    assert stands(bench) == [f"g@d{number}" for number in range(4)]
    await bench.service.close()


async def test_queues_are_room_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic may have a thousand: 5,000 cursors of it would take gigabytes."""
    monkeypatch.setattr(cursors_module, "QUEUES_MAX", 10)
    bench = broadcasting()
    for client in ("c1", "c2"):
        await receive(bench, client_id=client)
    assert bench.role.projections.receipts.cursor_queues == 8

    with pytest.raises(OverloadedError, match="8 queues together"):
        await receive(bench, client_id="c3")
    assert rows(await receive(bench, client_id="c1")) == []
    await look(bench, SILENT_LOOKS)
    await receive(bench, client_id="c3")

    assert stands(bench) == ["g@c1", "g@c3"]
    assert len(bench.service.cursors._heard) == 2
    await bench.service.close()


async def test_what_cannot_be_ended_leaves_the_longest_silent_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cursors_module, "CURSORS_MAX", 3)
    bench = broadcasting()
    for client in ("c1", "c2", "c3"):
        await receive(bench, client_id=client)
    await look(bench, IDLE_LOOKS - 1)
    await receive(bench, client_id="c3")
    bench.writer.refusal = NotMasterError("not now", master=None)
    with pytest.raises(NotMasterError):
        await look(bench, 1)
    bench.writer.refusal = None
    await receive(bench, client_id="c2")

    await receive(bench, client_id="c4")

    assert stands(bench) == ["g@c2", "g@c3", "g@c4"]
    await bench.service.close()


async def test_a_broker_that_is_no_master_remembers_nobody() -> None:
    bench = broadcasting()
    await receive(bench)
    bench.role.become_replica()
    bench.service.role_changed()

    for client in ("c1", "c2"):
        with pytest.raises(NotMasterError):
            await receive(bench, client_id=client)
    with pytest.raises(NotMasterError):
        await bench.call("end_receive", group="g", client_id="c1", has_gone=True)

    assert len(bench.service.cursors._heard) == 0
    await bench.service.close()


def rows(answer: dict[str, Any]) -> list[list[int]]:
    return [row[2:] for row in answer["messages"]]


async def test_a_topic_that_came_here_later_is_read_from_its_first_message() -> None:
    """What was sent before the first receive at this broker group is the client's too."""
    bench = broadcasting()
    send(bench, 3)
    later = {"topic": "orders", "type": "TAG", "expression": "*", "is_later": True}

    assert rows(await receive(bench, topics=[later])) == [[0, 4, 1]]
    assert rows(await receive(bench, client_id="c2")) == []
    assert rows(await receive(bench, group="h", topics=[later], start="last")) == []
    await bench.service.close()
