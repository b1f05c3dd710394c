"""Delayed messages: what a master takes, and when it delivers them (R29, R34, R35)."""

from dataclasses import replace
from typing import Any

import pytest
from tests.support.http.door import a_batch
from tests.support.http.turns import turn
from tests.support.service.delivery import DelayBench
from tests.support.service.fakes import a_view

from paceline.errors import (
    BadRequestError,
    InSyncReplicasNotEnoughError,
    NotMasterError,
)
from paceline.platform.runtime import cancel_and_wait, spawn
from paceline.records.dues import due_of_delay, due_of_level
from paceline.records.header import Cause, Codec, Kind, pack_source
from paceline.wire.cluster import ClusterView
from paceline.wire.message_ids import OffsetMessageId
from paceline.wire.names import DELAY_DLQ_TOPIC
from paceline_broker.controllers.clock_skew import ClockTrust
from paceline_broker.service.delays.delivery import HELD_MS, IDLE_MS, TURN_MESSAGES
from paceline_broker.service.produce import send
from paceline_broker.service.routes import Routes

# -- taking ---------------------------------------------------------------------------------------


async def test_delay_counts_from_when_it_is_stored_and_the_log_has_the_time() -> None:
    """A client's clock has no say in a delay; what is in the log is a time (R29)."""
    bench = DelayBench()
    now = bench.clock.unix_ms()

    answer = bench.delay([due_of_delay(700), due_of_level(3), due_of_level(99), 0, now + 5])

    [batch] = [view for view in bench.log.views() if view.header.kind == Kind.DELAY]
    assert batch.due() == [now + 700, now + 10_000, now + 7_200_000, 0, now + 5]
    batch.verify()
    assert answer.base_queue_offset == batch.header.physical_offset
    assert bench.role.projections.queue_end(1 << 16) == 0


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
async def test_compressed_batch_gets_its_times(codec: Codec) -> None:
    bench = DelayBench()
    bodies = [b"x" * 2000] * 3

    bench.delay([due_of_delay(10)] * 3, *bodies, codec=codec)

    [batch] = [view for view in bench.log.views() if view.header.kind == Kind.DELAY]
    assert (batch.header.codec, batch.bodies()) == (codec, bodies)
    bench.clock.advance(10)
    bench.turn()
    assert bench.bodies() == bodies


@pytest.mark.parametrize("due", [-(2**53) - 1, -(2**62), -(2**63), -(2**62) - 2**17])
async def test_due_time_that_means_nothing_is_refused(due: int) -> None:
    bench = DelayBench()
    assert isinstance(bench.delay([due]), BadRequestError)
    assert len(bench.log.batches) == 1


async def test_repeated_delayed_batch_is_stored_once_and_named_by_its_first_place() -> None:
    """R30, R31: sequences are shared with other messages of the queue."""
    bench = DelayBench()
    arguments: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}

    first = bench.delay([due_of_delay(10)], **arguments)
    bench.clock.advance(20)
    bench.turn()
    again = bench.delay([due_of_delay(10)], **arguments)

    assert again.base_queue_offset == first.base_queue_offset
    assert len(bench.bodies()) == 1
    assert bench.turn() == IDLE_MS


# -- delivering -----------------------------------------------------------------------------------


async def test_message_arrives_when_it_is_due_not_before_with_all_it_had() -> None:
    bench = DelayBench()
    bench.delay(
        [due_of_delay(500)],
        b"later",
        queue_id=2,
        keys=["k"],
        tags=["t"],
        properties=[{"a": "b"}],
        producer_id=7,
        base_sequence=0,
    )
    due = bench.clock.unix_ms() + 500
    waits_ms = bench.turn()
    assert 0 < waits_ms <= 500
    bench.clock.advance(499)
    assert (bench.turn(), bench.delivered()) == (1, [])

    bench.clock.advance(1)
    assert bench.turn() == 0

    [batch] = bench.delivered()
    [record] = batch.records()
    header = batch.header
    assert (header.kind, header.cause) == (Kind.NORMAL, Cause.DELAYED)
    assert (header.topic_id, header.queue_id, header.producer_id) == (1, 2, 0)
    assert (record.body, record.key, record.tag) == (b"later", "k", "t")
    assert record.born_unix_ms == 1_700_000_000_000
    assert record.properties == {
        "a": "b",
        "UNIQ_KEY": "0000000000000007:0:1:2:0",
        "TIMER_OUT_MS": str(due),
    }
    assert bench.role.projections.queue_end(1 << 16 | 2) == 1
    assert bench.turn() == IDLE_MS
    assert len(bench.role.projections.timers) == 0


@pytest.mark.parametrize("is_confirmed", [True, False])
async def test_it_waits_for_the_next_one_and_not_longer(is_confirmed: bool) -> None:
    """Whether the one before was delivered, or has to wait for something else."""
    bench = DelayBench()
    bench.delay([due_of_delay(15)], b"second")
    bench.delay([due_of_delay(10)], b"first", is_confirmed=is_confirmed)
    bench.clock.advance(10)
    while bench.service.delivery.turn() == 0:
        pass

    assert bench.service.delivery.turn() == 5
    bench.clock.advance(5)
    assert bench.service.delivery.turn() == 0
    assert b"second" in bench.bodies()


async def test_one_batch_for_each_queue_and_turn() -> None:
    bench = DelayBench()
    for number in range(TURN_MESSAGES):
        bench.delay([0], b"%d" % number, queue_id=number % 2)

    assert bench.turn() == 0

    assert [view.header.record_count for view in bench.delivered()] == [TURN_MESSAGES // 2] * 2
    assert sorted(map(int, bench.bodies())) == list(range(TURN_MESSAGES))


async def test_new_master_goes_on_where_the_log_says_and_delivers_nothing_twice() -> None:
    """R28, R34: delivery and completion are one record, also when it was not confirmed yet."""
    bench = DelayBench()
    bench.delay([due_of_delay(10)] * 3, b"0", b"1", b"2")
    bench.delay([due_of_delay(20)], b"3")
    bench.clock.advance(10)
    bench.service.delivery.turn()

    bench.role.become_replica()
    with pytest.raises(NotMasterError):
        bench.service.delivery.turn()
    bench.role.begin_epoch(2)
    bench.clock.advance(50)
    while bench.turn() == 0:
        pass

    assert bench.bodies() == [b"0", b"1", b"2", b"3"]


async def test_who_is_no_master_delivers_nothing_and_does_not_complain(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A replica, and an acting master (R36), whose log takes nothing."""
    bench = DelayBench()
    bench.delay([0])
    delivery = bench.service.delivery
    for leave in (bench.role.become_replica, lambda: bench.role.become_acting(2)):
        leave()
        running = spawn(delivery.run(), name="delivery")
        delivery.poke()
        for _ in range(5):
            await turn()
        assert not running.done()
        await cancel_and_wait(running)
    assert bench.delivered() == []
    assert not caplog.records


async def test_a_master_whose_epoch_is_not_open_delivers_nothing() -> None:
    bench = DelayBench()
    bench.delay([0])
    bench.writer.is_open = False

    assert (bench.turn(), bench.delivered()) == (IDLE_MS, [])
    bench.writer.is_open = True
    assert (bench.turn(), bench.bodies()) == (0, [b"x"])


async def test_nothing_fires_by_a_clock_that_is_known_to_be_wrong() -> None:
    """R29: a clock that ran ahead would deliver early."""
    bench = DelayBench()
    bench.delay([due_of_delay(3_600_000)])
    bench.turn()

    bench.clock.step_wall(7_200_000)
    bench.trust = ClockTrust.DIFFERS
    assert (bench.turn(), bench.delivered()) == (IDLE_MS, [])
    bench.trust = ClockTrust.UNKNOWN
    bench.turn()
    assert bench.delivered() == [], "the controllers' silence does not make it right"

    bench.clock.advance(3_600_000)
    assert bench.turn() == 0, "an hour of running time after they agreed"
    assert bench.bodies() == [b"x"]


async def test_delay_counts_from_the_right_time_while_the_clock_is_wrong() -> None:
    """R29: neither early, if the clock is behind, nor an hour late, if it once ran ahead."""
    bench = DelayBench()
    bench.turn()
    now = bench.clock.unix_ms()
    for step_ms in (-3_600_000, 7_200_000):
        bench.clock.step_wall(step_ms)
        bench.trust = ClockTrust.DIFFERS
        bench.delay([due_of_delay(500)])
    bench.clock.step_wall(-3_600_000)
    bench.trust = ClockTrust.AGREES
    assert bench.role.projections.log_time_ms > now, "the clock that was ahead has left its mark"
    bench.delay([due_of_delay(500)])

    assert [view.due() for view in bench.log.views() if view.header.kind == Kind.DELAY] == [
        [now + 500]
    ] * 3
    bench.clock.advance(500)
    assert bench.turn() == 0
    assert len(bench.bodies()) == 3


async def test_a_clock_nobody_ever_agreed_with_fires_nothing() -> None:
    bench = DelayBench()
    bench.trust = ClockTrust.UNKNOWN
    bench.delay([0])

    assert (bench.turn(), bench.delivered()) == (IDLE_MS, [])


async def test_what_is_not_confirmed_is_not_read() -> None:
    bench = DelayBench()
    bench.delay([0], is_confirmed=False)

    assert bench.service.delivery.turn() > 0
    assert bench.delivered() == []
    bench.writer.confirm_all()
    assert (bench.turn(), bench.bodies()) == (0, [b"x"])


async def test_log_that_takes_nothing_delays_but_loses_nothing() -> None:
    bench = DelayBench()
    bench.delay([0])
    bench.writer.refusal = InSyncReplicasNotEnoughError("too few")

    assert 0 < bench.turn() < 100
    bench.writer.refusal = None
    assert (bench.turn(), bench.bodies()) == (0, [b"x"])


async def test_cold_source_is_warmed_off_the_loop_and_then_delivered() -> None:
    bench = DelayBench()
    bench.delay([0], b"cold")
    bench.service.sender.send(a_batch(b"y" * 2_000_000), bench.sink, 9)
    bench.writer.confirm_all()
    bench.log.cold.add(1)

    assert (bench.turn(), bench.delivered()) == (0, [])
    [view] = bench.service.delivery.sources.take_cold()
    await bench.log.warm(view)

    assert (bench.turn(), bench.bodies()) == (0, [b"cold"])


async def test_damaged_source_waits_for_its_repair_and_holds_back_nobody() -> None:
    """R24: what is derived gets a new CRC, so the disk's mistake would become the message."""
    bench = DelayBench()
    bench.delay([0], b"broken")
    place = len(bench.log.batches) - 1
    good = bench.log.batches[place]
    bench.log.batches[place] = good.replace(b"broken", b"brokeN")
    bench.delay([0], b"whole")

    bench.turn()
    assert bench.bodies() == [b"whole"]
    assert bench.turn() > 0

    bench.log.batches[place] = good
    bench.log.bad.clear()
    bench.clock.advance(HELD_MS)
    bench.turn()
    assert bench.bodies() == [b"whole", b"broken"]


@pytest.mark.parametrize("is_moved", [False, True])
@pytest.mark.parametrize("is_gone", ["topic", "queue"])
async def test_message_without_a_target_becomes_a_dead_letter(is_gone: str, is_moved: bool) -> None:
    """R35: never a loop; the letter says where it came from, which the producer was told."""
    bench = DelayBench()
    answer = bench.delay([due_of_delay(10)], b"lost", queue_id=3)
    assert bench.turn() > 0
    if is_moved:
        bench.service.delivery.needs.append_again(bench.log.end)
        assert bench.turn() == 0
    bench.clock.advance(10)
    place = OffsetMessageId("g1", answer.base_queue_offset, 0)
    view = a_view(version=3, topics={"orders": 1, DELAY_DLQ_TOPIC: 1})
    if is_gone == "topic":
        del view.topics["orders"]  # type: ignore[attr-defined]
    bench.service.view_changed(view)

    assert bench.turn() == 0

    [batch] = bench.delivered()
    [record] = batch.records()
    assert (batch.header.topic_id, batch.header.cause) == (2, Cause.DEAD)
    assert record.body == b"lost"
    topic = "orders" if is_gone == "queue" else "id 1"
    assert record.properties["DLQ_ORIGIN_TOPIC"] == topic
    assert record.properties["DLQ_ORIGIN_MESSAGE_ID"] == str(place)
    assert (batch.sources() == [pack_source(place.position, 0)]) is not is_moved
    assert bench.turn() == IDLE_MS
    assert len(bench.role.projections.timers) == 0


@pytest.mark.parametrize("is_moved", [False, True])
async def test_no_client_says_where_a_message_was_first_stored(
    is_moved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is derived is believed to say that, when the message is sent back. It is refused by
    now, and may stand in the log of an earlier version."""
    bench = DelayBench()
    monkeypatch.setattr(send, "rows_check", lambda header, rights: None)
    bench.delay([due_of_delay(10)], properties=[{"ORIGIN_MESSAGE_ID": "g1:7:7", "a": "b"}])
    assert bench.turn() > 0
    if is_moved:
        bench.service.delivery.needs.append_again(bench.log.end)
        assert bench.turn() == 0
    bench.clock.advance(10)
    assert bench.turn() == 0

    [batch] = bench.delivered()
    [properties] = batch.properties()
    assert properties["a"] == "b"
    assert "ORIGIN_MESSAGE_ID" not in properties


async def test_the_newest_topic_is_deleted_also_for_a_broker_that_never_saw_it() -> None:
    """R35: no view that it has seen had the topic."""
    bench = DelayBench()
    newest = a_view(version=3, topics={"orders": 1, DELAY_DLQ_TOPIC: 1, "newest": 4})
    bench.service.view_changed(newest)
    bench.delay([0], b"lost", topic_id=3)
    later = replace(a_view(version=4, topics=bench.topics), topic_id_max=3)
    restarted = Routes(bench.role.identity.group)
    restarted.apply(ClusterView.from_json(later.to_json()))
    bench.service.delivery._routes = restarted

    assert bench.turn() == 0

    [batch] = bench.delivered()
    assert (batch.header.topic_id, batch.header.cause) == (2, Cause.DEAD)
    assert not restarted.is_deleted(4), "one that is newer than the view is not known"


async def test_without_a_topic_for_dead_letters_the_message_waits() -> None:
    bench = DelayBench()
    bench.delay([0], queue_id=3)
    bench.service.view_changed(a_view(version=3, topics={"orders": 1}))

    assert bench.turn() >= 0
    assert bench.turn() > 0
    assert bench.delivered() == []
    assert len(bench.role.projections.timers) == 1


async def test_what_waits_in_an_old_part_is_stored_again_and_delivered_once() -> None:
    """R26: the entry moves with its due time, its unique key and its handle."""
    bench = DelayBench()
    answer = bench.delay(
        [due_of_delay(500)] * 3, b"0", b"1", b"2", producer_id=7, base_sequence=0, queue_id=2
    )
    needs = bench.service.delivery.needs
    assert needs.oldest() == answer.base_queue_offset
    below = bench.log.end
    bench.turn()

    needs.append_again(below)
    while bench.turn() == 0:
        pass

    assert (needs.oldest() or 0) >= below
    assert not needs.has_work
    [moved] = [view for view in bench.log.views() if view.header.cause == Cause.AGAIN]
    assert (moved.header.kind, moved.header.queue_id) == (Kind.DELAY, 2)
    origin = pack_source(answer.base_queue_offset, 1)
    assert bench.role.projections.timers.find_origin(origin) is not None
    bench.clock.advance(499)
    assert (bench.turn(), bench.bodies()) == (1, [])
    bench.clock.advance(1)
    assert bench.turn() == 0
    assert bench.bodies() == [b"0", b"1", b"2"]
    assert bench.delivered()[0].properties()[1]["UNIQ_KEY"] == "0000000000000007:0:1:2:1"
    assert len(bench.role.projections.timers) == 0


async def test_properties_at_their_limit_do_not_stop_the_message() -> None:
    bench = DelayBench()
    full = {"a": "b" * (32_767 - len('{"a":""}'))}
    bench.delay([0], properties=[full])

    assert bench.turn() == 0

    [batch] = bench.delivered()
    [properties] = batch.properties()
    assert properties["a"] == full["a"]
    assert "UNIQ_KEY" in properties
