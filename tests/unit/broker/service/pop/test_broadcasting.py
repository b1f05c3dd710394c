"""Broadcasting groups: each simple consumer is given every message, by its client id."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.support.service.fakes import Bench, a_view, replayed, until
from tests.support.service.receipts import handles, offset_row, receive
from tests.support.service.send_back import DEAD, KEY, TOPICS, a_bench, send

from paceline.errors import (
    BadRequestError,
    InvalidReceiptHandleError,
    NoPermissionError,
    NotMasterError,
    OverloadedError,
    StorageError,
)
from paceline.records.header import Cause
from paceline.types import TopicId
from paceline.wire.consumer_groups import ConsumerGroupSettings
from paceline_broker.metrics.reading import _in_flight
from paceline_broker.projections.cursors import cursor_of
from paceline_broker.projections.projections import Projections
from paceline_broker.service.counters import _lag
from paceline_broker.service.pop import cursors as cursors_module
from paceline_broker.service.pop import dead_letters as burying
from paceline_broker.service.pop.cursors import IDLE_LOOKS, SILENT_LOOKS
from paceline_broker.service.pop.grant import PopRequest

BROADCASTING = ConsumerGroupSettings(message_model="broadcasting")
CLIENTS = ("c1", "c2")


def broadcasting(**settings: Any) -> Bench:
    return a_bench(settings=replace(BROADCASTING, **settings))


async def join(bench: Bench, *clients: str) -> None:
    for client in clients:
        await receive(bench, client_id=client)


def waits(bench: Bench, client: str) -> "asyncio.Task[dict[str, Any]]":
    """A receive that waits for messages."""
    asked = receive(bench, client_id=client, wait_ms=20_000)
    return asyncio.get_running_loop().create_task(asked)


async def ack(bench: Bench, client: str, answer: dict[str, Any]) -> None:
    await bench.call("ack", group="g", client_id=client, handles=handles(answer))


def rows(answer: dict[str, Any]) -> list[list[int]]:
    """First, end, attempt of what came of queue 0."""
    return [row[2:] for row in answer["messages"]]


def cursors(bench: Bench) -> list[str]:
    """Of which anything is left."""
    projections = bench.role.projections
    assert set(projections.offsets.groups()) == set(projections.receipts.groups())
    return sorted(projections.receipts.cursors())


async def test_each_client_is_given_every_message_once() -> None:
    bench = broadcasting()
    await join(bench, *CLIENTS)
    send(bench, 3)

    answers = {client: await receive(bench, client_id=client) for client in CLIENTS}
    for client, answer in answers.items():
        await ack(bench, client, answer)
    bench.clock.advance(60_000)

    assert [rows(answer) for answer in answers.values()] == [[[0, 4, 1]], [[0, 4, 1]]]
    assert [rows(await receive(bench, client_id=client)) for client in CLIENTS] == [[], []]
    assert replayed(bench) == bench.role.projections.snapshot()


async def test_retries_are_the_clients_own() -> None:
    bench = broadcasting()
    await join(bench, *CLIENTS)
    send(bench)
    await ack(bench, "c1", await receive(bench, client_id="c1"))
    await receive(bench, client_id="c2")
    bench.clock.advance(60_000)

    assert rows(await receive(bench, client_id="c1")) == []
    assert rows(await receive(bench, client_id="c2")) == [[0, 2, 2]]


async def test_a_client_that_is_new_begins_at_the_end_or_as_the_record_says() -> None:
    bench, other = broadcasting(), broadcasting(consume_from_where="first")
    send(bench)
    send(other)

    assert rows(await receive(bench)) == []
    assert rows(await receive(other)) == [[0, 2, 1]]


async def test_an_ordered_group_keeps_the_order_of_each_client() -> None:
    bench = broadcasting(consume_message_orderly=True)
    await join(bench, *CLIENTS)
    send(bench, 2)
    first = await receive(bench, client_id="c1", max_messages=1)

    assert rows(await receive(bench, client_id="c1", max_messages=1)) == []
    assert rows(await receive(bench, client_id="c2", max_messages=1)) == [[0, 1, 1]]
    await ack(bench, "c1", first)
    assert rows(await receive(bench, client_id="c1", max_messages=1)) == [[1, 2, 1]]


async def test_receipts_are_of_the_client_that_it_names() -> None:
    bench = broadcasting()
    await join(bench, *CLIENTS)
    send(bench)
    given = handles(await receive(bench, client_id="c1"))

    with pytest.raises(BadRequestError, match="name the one that received"):
        await bench.call("ack", group="g", handles=given)
    with pytest.raises(InvalidReceiptHandleError):
        await bench.call("ack", group="g", client_id="c2", handles=given)
    changed = await bench.call(
        "invisible", group="g", client_id="c1", handles=given, invisible_ms=0
    )
    assert changed["receipts"][0]["handle"]
    assert rows(await receive(bench, client_id="c2")) == [[0, 2, 1]]


async def test_retries_of_native_members_are_not_broadcast() -> None:
    bench = broadcasting()
    await receive(bench)

    found = bench.role.projections.receipts.of_group(cursor_of("g", "c1"))

    assert {key >> 16 for key in found} == {1}


async def test_a_group_that_may_not_broadcast_is_refused() -> None:
    bench = broadcasting(consume_broadcast_enable=False)

    with pytest.raises(NoPermissionError, match="may not broadcast"):
        await receive(bench)


# -- dead letters ----------------------------------------------------------------------------------


def dead_count(bench: Bench) -> int:
    headers = [view.header for view in bench.log.views() if view.header.cause == Cause.DEAD]
    return sum(header.record_count for header in headers if header.topic_id == DEAD)


def standing(bench: Bench, client: str) -> int:
    committed = bench.role.projections.offsets.get(cursor_of("g", client), KEY)
    assert committed is not None
    return committed.offset


async def test_what_one_client_fails_on_is_a_dead_letter_and_the_other_goes_on() -> None:
    bench = broadcasting(retry_max_times=0)
    await join(bench, *CLIENTS)
    send(bench)
    await receive(bench, client_id="c1", invisible_ms=10_000)
    other = await receive(bench, client_id="c2")
    bench.clock.advance(10_000)

    assert rows(await receive(bench, client_id="c1")) == []
    await until(lambda: standing(bench, "c1") == 2)
    await ack(bench, "c2", other)

    assert dead_count(bench) == 2
    assert standing(bench, "c2") == 2
    await bench.service.close()


async def test_what_all_clients_fail_on_is_one_dead_letter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R34: the log ends between the records of the first client's; the second fails meanwhile."""
    monkeypatch.setattr(burying, "_AGAIN_MS", 1)
    bench = broadcasting(retry_max_times=0)
    await join(bench, *CLIENTS)
    send(bench)
    for client in CLIENTS:
        await receive(bench, client_id=client, invisible_ms=10_000)
    bench.clock.advance(10_000)

    def fails(*_: Any, **__: Any) -> None:
        raise StorageError("the disk has gone")

    with monkeypatch.context() as patched:
        patched.setattr(bench.service.send_back, "dead_letter", fails)
        await receive(bench, client_id="c1")
        await until(lambda: bool(bench.role.projections.receipts.dying))
        await bench.service.dead_letters.close()
        found = bench.service.dead_letters
        monkeypatch.setattr(found, "_finish", _later(found._finish))
    await receive(bench, client_id="c2")
    async with asyncio.timeout(5):
        while [standing(bench, client) for client in CLIENTS] != [2, 2]:
            await receive(bench, client_id="c2")

    assert dead_count(bench) == 2
    assert bench.role.projections.receipts.dying == {}
    await bench.service.close()


def _later(finish: Any) -> Any:
    """What was begun is finished after others have begun."""
    waits = 3

    async def work(group: str, dying: list[Any]) -> None:
        nonlocal waits
        waits -= 1
        if waits < 0:
            await finish(group, dying)

    return work


# -- what is told of the group ---------------------------------------------------------------------


async def test_lag_is_that_of_the_slowest_client() -> None:
    bench = broadcasting()
    await join(bench, *CLIENTS)
    send(bench, 3)
    await ack(bench, "c1", await receive(bench, client_id="c1"))
    await receive(bench, client_id="c2", max_messages=1)

    lag = await bench.call("lag", group="g")
    tracked = await bench.call("track", topic="orders", queue=0, offset=0)

    [row] = [row for row in lag["queues"] if row["queue"] == 0]
    assert (row["offset"], row["lag"], row["in_flight"]) == (0, 4, 1)
    assert tracked["groups"] == [{"group": "g", "offset": 0, "is_done": False}]
    assert {at[1] for at in _in_flight(bench.service)} == {"g"}
    assert {at[1]: lag for at, lag in _lag(bench.role, bench.service.routes).items()} == {"g": 4}


async def test_there_is_nothing_to_reset() -> None:
    bench = broadcasting()

    with pytest.raises(BadRequestError, match="consume_from_where"):
        await bench.call("reset", group="g", topic="orders", to="first")
    with pytest.raises(BadRequestError, match="broadcasts"):
        await bench.call("clone_offsets", group="g", source="h", topic="orders")


# -- when a cursor ends ----------------------------------------------------------------------------


async def test_a_client_that_has_gone_leaves_nothing() -> None:
    bench = broadcasting()
    await join(bench, *CLIENTS)
    send(bench)
    given = await receive(bench, client_id="c1")
    waiting = waits(bench, "c2")
    await bench.call("ack", group="g", client_id="c2", handles=handles(await waiting))
    waiting = waits(bench, "c2")
    await until(lambda: bench.service.receipts.waiting_count == 1)

    ended = await bench.call("end_receive", group="g", client_id="c2", has_gone=True)
    await waiting
    await bench.call("end_receive", group="g", client_id="c1", has_gone=True)
    await bench.call("end_receive", group="g", client_id="stranger", has_gone=True)

    assert ended["ended"] == 1
    assert cursors(bench) == []
    assert Projections.restore(replayed(bench)).groups() == set()
    with pytest.raises(InvalidReceiptHandleError):
        await ack(bench, "c1", given)
    assert rows(await receive(bench, client_id="c1")) == []
    await bench.service.close()


async def look(bench: Bench, times: int) -> None:
    for _ in range(times):
        await bench.service.cursors.look()


async def test_clients_that_are_silent_for_long_leave_nothing() -> None:
    bench = broadcasting()
    await join(bench, *CLIENTS)
    await look(bench, IDLE_LOOKS - 1)
    send(bench)
    given = await receive(bench, client_id="c2")

    await look(bench, 1)
    assert cursors(bench) == ["g@c2"]
    await look(bench, IDLE_LOOKS - 2)
    await ack(bench, "c2", given)
    await look(bench, IDLE_LOOKS - 1)
    assert cursors(bench) == ["g@c2"]
    await look(bench, 1)
    assert cursors(bench) == []
    await bench.service.close()


async def test_it_looks_for_as_long_as_there_are_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursors_module, "LOOK_MS", 1)
    bench = broadcasting()
    await join(bench, *CLIENTS)

    await until(lambda: bench.service.cursors._task is None)

    assert cursors(bench) == []
    await bench.service.close()


async def test_a_process_that_stood_still_finds_nobody_silent() -> None:  # R12
    bench = broadcasting()
    await join(bench, *CLIENTS)
    bench.clock.advance(10 * 3600 * 1000)

    await look(bench, 1)

    assert cursors(bench) == ["g@c1", "g@c2"]
    await bench.service.close()


async def test_a_client_that_received_while_the_role_changed_is_not_forgotten() -> None:
    """Else its cursor would stay for ever."""
    bench = broadcasting()
    name = await bench.service.cursors.admit("g", "c1", [KEY])
    bench.service.role_changed()
    await bench.service.cursors.admit("g", "c2", [KEY])
    asked = PopRequest(group=name, client_id="c1", keys=(KEY,), messages_max=1, invisible_ms=10_000)
    await bench.service.receipts.receive(asked, wait_ms=0)

    await look(bench, IDLE_LOOKS + 1)

    assert cursors(bench) == []
    await bench.service.close()


async def test_ten_thousand_clients_that_came_and_went_leave_nothing() -> None:
    bench = broadcasting()
    for number in range(10_000):
        await receive(bench, client_id=f"c{number}")
        await bench.call("end_receive", group="g", client_id=f"c{number}", has_gone=True)

    assert cursors(bench) == []
    assert len(bench.service.cursors._heard) == 0
    assert bench.role.projections.offsets._joined == {}
    await bench.service.close()


async def test_when_there_is_no_room_the_longest_silent_client_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cursors_module, "CURSORS_MAX", 2)
    bench = broadcasting()
    await join(bench, *CLIENTS)

    with pytest.raises(OverloadedError, match="no room for more"):
        await receive(bench, client_id="c3")
    await receive(bench, client_id="c1")
    await look(bench, SILENT_LOOKS - 1)
    await receive(bench, client_id="c1")
    await look(bench, 1)
    await receive(bench, client_id="c3")

    assert cursors(bench) == ["g@c1", "g@c3"]
    await bench.service.close()


async def test_clients_that_come_at_once_find_no_more_room_than_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cursors_module, "CURSORS_MAX", 2)
    bench = broadcasting()
    await join(bench, *CLIENTS)
    await look(bench, SILENT_LOOKS)

    coming = (receive(bench, client_id=f"new{number}") for number in range(3))
    answers = await asyncio.gather(*coming, return_exceptions=True)

    assert [type(answer) for answer in answers].count(OverloadedError) == 1
    assert len(cursors(bench)) == 2
    await bench.service.close()


async def test_what_could_not_be_ended_is_ended_later() -> None:
    bench = broadcasting()
    await receive(bench)
    bench.writer.refusal = NotMasterError("not now", master=None)
    await look(bench, IDLE_LOOKS - 1)
    with pytest.raises(NotMasterError):
        await look(bench, 1)
    assert cursors(bench) == ["g@c1"]

    bench.writer.refusal = None
    await look(bench, 1)

    assert cursors(bench) == []
    await bench.service.close()


async def test_the_next_master_goes_on_and_ends_what_it_finds() -> None:
    bench = broadcasting()
    await join(bench, *CLIENTS)
    send(bench)
    given = await receive(bench, client_id="c1")
    bench.role.become_replica()
    bench.service.role_changed()
    restored = Projections()
    for view in bench.log.views():
        restored.apply(view.header, view)
    bench.role.projections = restored
    bench.role.begin_epoch(2)
    bench.service.role_changed()

    await ack(bench, "c1", given)
    assert rows(await receive(bench, client_id="c2")) == [[0, 2, 1]]
    bench.clock.advance(60_000)
    await look(bench, IDLE_LOOKS)

    assert cursors(bench) == []
    await bench.service.close()


async def test_cursors_go_with_their_group() -> None:
    bench = broadcasting()
    await join(bench, *CLIENTS)
    send(bench)
    await bench.call("commit", group="h", offsets=[offset_row(1)])
    topics = {name: count for name, count in TOPICS.items() if "g" not in name.rpartition("%")[2]}
    view = a_view(version=9, topics=topics)
    numbers = list(TOPICS)
    topics_by_number = {
        name: replace(topic, topic_id=TopicId(numbers.index(name) + 1))
        for name, topic in view.topics.items()
    }
    bench.service.view_changed(replace(view, topics=topics_by_number, topic_id_max=9))

    await bench.call("commit", group="g", offsets=[offset_row(1)])

    assert bench.role.projections.receipts.cursors() == []
    assert set(bench.role.projections.offsets.groups()) == {"g", "h"}
    assert {group for group, _ in bench.role.projections.offsets._joined} == {"g", "h"}
    await bench.service.close()
