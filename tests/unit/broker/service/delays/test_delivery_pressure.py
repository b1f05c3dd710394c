"""Delayed messages under pressure: what is kept, a full disk, batches too large (R26, R35)."""

import weakref

import pytest
from tests.support.http.door import a_batch
from tests.support.service.delivery import DelayBench
from tests.support.service.fakes import until

from paceline.errors import DiskFullError
from paceline.platform.runtime import cancel_and_wait, spawn
from paceline.records import encode
from paceline.records.dues import due_of_delay
from paceline.records.header import Cause
from paceline_broker.projections.timers import Due, Timers
from paceline_broker.service.delays import delivery as delivery_module
from paceline_broker.service.delays import sources
from paceline_broker.service.delays.delivery import HELD_MS, TURN_MESSAGES


async def test_what_is_kept_is_what_was_verified_and_no_part_of_the_file() -> None:
    """R24: a byte may change after the check. R26: a file that is gone must give its room back."""
    bench = DelayBench()
    bench.delay([0, due_of_delay(1000)], b"first", b"second")
    mapping = bytearray(b"".join(bench.log.batches))
    read = bench.log.read
    bench.log.read = (  # type: ignore[method-assign]
        lambda start, max_bytes: memoryview(mapping)[start : start + max_bytes]
    )
    assert bench.turn() == 0
    bench.log.read = read  # type: ignore[method-assign]

    mapping[mapping.index(b"second")] ^= 1
    mapping.clear()  # BufferError while anybody holds a view of it
    bench.clock.advance(1000)
    assert bench.turn() == 0
    assert bench.bodies() == [b"first", b"second"]


async def test_bound_of_what_is_kept_counts_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a small message that is more than its payload."""
    monkeypatch.setattr(sources, "KEPT_BYTES_MAX", 8192)
    bench = DelayBench()
    for _ in range(20):
        bench.delay([0, due_of_delay(1000)])
    assert bench.turn() == 0
    reads = bench.log.reads

    bench.clock.advance(1000)
    assert bench.turn() == 0

    assert len(bench.bodies()) == 40
    assert bench.log.reads - reads == 2 * 20, "header and batch, each of them once more"


async def test_who_is_no_master_any_more_keeps_no_messages() -> None:
    bench = DelayBench()
    answer = bench.delay([0])
    bench.turn()
    delivery = bench.service.delivery
    found = delivery.sources.get(bench.log, answer.base_queue_offset)
    assert found is not None
    batch = weakref.ref(found)
    del found

    bench.role.become_replica()
    running = spawn(delivery.run(), name="delivery")
    await until(lambda: batch() is None)
    await cancel_and_wait(running)


async def test_what_is_due_does_not_keep_a_full_disk_full() -> None:
    """R26: what is in the way of cutting the log is delivered or moves, whatever else is due."""
    bench = DelayBench()
    hour = due_of_delay(3_600_000)
    bench.delay([0, hour, 0], b"old due", b"old later", b"old due")
    below = bench.log.end
    bench.delay([0], b"new due")
    needs = bench.service.delivery.needs
    bench.writer.refusal = DiskFullError("full")
    assert bench.turn() > 0
    assert bench.delivered() == []

    needs.append_again(below)
    while bench.turn() == 0:
        pass

    assert not needs.has_work
    assert (needs.oldest() or 0) >= below
    assert bench.bodies() == [b"old due", b"old due"]
    [moved] = [view for view in bench.log.views() if view.header.cause == Cause.AGAIN]
    assert moved.bodies() == [b"old later"]
    bench.writer.refusal = None
    assert bench.turn() == 0
    assert bench.bodies()[2:] == [b"new due"]


async def test_what_was_cold_moves_at_once_when_it_is_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """R26: else each old batch costs retention half a second."""
    monkeypatch.setattr(delivery_module, "IDLE_MS", 3_600_000)
    bench = DelayBench()
    delivery = bench.service.delivery
    bench.delay([due_of_delay(5_000_000)], b"cold")
    bench.service.sender.send(a_batch(b"y" * 2_000_000), bench.sink, 9)
    bench.writer.confirm_all()
    bench.log.cold.add(1)
    assert delivery.turn() > 0
    delivery.needs.append_again(bench.log.end)

    running = spawn(delivery.run(), name="delivery")
    await until(lambda: not delivery.needs.has_work)

    await cancel_and_wait(running)
    assert bench.log.warmed == 1
    assert bench.log.views()[-1].header.cause == Cause.AGAIN


def delay_much_beside_bodies(bench: DelayBench, due: int) -> None:
    """A turn's messages by their bodies, but with keys, tags and properties too much for a batch:
    the most of each that there may be, and one large body at the end."""
    texts = [f"{number:03}" * 10_900 for number in range(TURN_MESSAGES - 1)]
    for few in (texts[:64], texts[64:]):
        bench.delay(
            [due] * len(few),
            *[b"x" * 2000] * len(few),
            keys=few,
            tags=few,
            properties=[{"a": text} for text in few],
        )
    bench.delay([due], b"x" * 2**22)


async def test_keys_tags_and_properties_count_in_a_turn() -> None:
    """R35: a batch that is too large would be tried again for ever, and stop all others."""
    bench = DelayBench()
    delay_much_beside_bodies(bench, due_of_delay(1000))
    needs = bench.service.delivery.needs
    assert bench.turn() > 0

    needs.append_again(bench.log.end)
    assert bench.turn() == 0
    while bench.turn() == 0:
        pass
    assert not needs.has_work
    bench.clock.advance(1000)
    while bench.turn() == 0:
        pass

    assert len(bench.bodies()) == TURN_MESSAGES
    assert max(view.header.size_bytes for view in bench.delivered()) < 5 * 2**20


async def test_a_message_that_makes_no_batch_holds_back_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """R35; nor those that have to move (R26). What it is, the log says; it stays."""
    bench = DelayBench()
    poison = {"poison": "x" * 300}
    bench.delay([due_of_delay(10)] * 3, b"0", b"1", b"2", properties=[{}, poison, {}])
    below = bench.log.end
    needs = bench.service.delivery.needs
    assert bench.turn() > 0
    monkeypatch.setattr(encode, "DERIVED_PROPERTIES_BYTES_MAX", 300)

    needs.append_again(below)
    assert [bench.turn(), bench.turn() > 0] == [0, True]
    assert len(bench.role.projections.timers.below(below, 9)) == 1
    bench.clock.advance(HELD_MS)
    assert [bench.turn(), bench.turn() > 0] == [0, True]

    assert bench.bodies() == [b"0", b"2"]
    assert {record.message for record in caplog.records} == {"message_held"}
    monkeypatch.undo()
    bench.clock.advance(HELD_MS)
    assert bench.turn() == 0
    assert bench.bodies() == [b"0", b"2", b"1"]


async def test_what_is_held_back_is_passed_over_once_and_not_in_every_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = DelayBench()
    bench.delay([0] * 2000, *[b"broken"] * 2000)
    place = len(bench.log.batches) - 1
    good = bench.log.batches[place]
    bench.log.batches[place] = good.replace(b"broken", b"brokeN", 1)
    while bench.turn() == 0:
        pass
    assert bench.bodies() == []
    looked_at: list[int] = []
    find = Timers.find

    def counted(timers: Timers, source: int) -> Due | None:
        looked_at.append(source)
        return find(timers, source)

    monkeypatch.setattr(Timers, "find", counted)
    for number in range(10):
        bench.delay([0], b"%d" % number)
        bench.turn()
    assert bench.bodies() == [b"%d" % number for number in range(10)]
    assert len(looked_at) <= 100

    monkeypatch.undo()
    bench.log.batches[place] = good
    bench.log.bad.clear()
    bench.clock.advance(HELD_MS)
    while bench.turn() == 0:
        bench.writer.confirm_all()
    assert len(bench.bodies()) == 2010
