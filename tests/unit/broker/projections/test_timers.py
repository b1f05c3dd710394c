"""Timers: the compact state against a plain one, and what records do to it (INV-9, R26, R34)."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.projections.logs import START_MS, HandLog

from paceline.records.decode import BatchView
from paceline.records.encode import encode_batch
from paceline.records.header import Cause, Kind, pack_source
from paceline_broker.projections import timers as timers_module
from paceline_broker.projections.projections import Projections
from paceline_broker.projections.timers import Due, Timers

FAR = 2**42


class DelayLog(HandLog):
    """A log with delayed messages, and the plain picture of what is pending."""

    def __init__(self) -> None:
        super().__init__()
        self.begin_epoch(1)
        self.topic(1)
        self.pending: dict[int, Due] = {}

    def delay(
        self,
        dues: Sequence[int],
        *,
        queue_id: int = 0,
        cause: Cause = Cause.CLIENT,
        sources: Sequence[int] | None = None,
    ) -> list[int]:
        """Append a DELAY batch; its sources."""
        position = self.end
        batch = encode_batch(
            [b"x"] * len(dues),
            born_unix_ms=self.now_ms,
            topic_id=1,
            queue_id=queue_id,
            kind=Kind.DELAY,
            due_unix_ms=dues,
            sources=sources,
            flags=cause,
        )
        self.append(batch)
        made = [pack_source(position, index) for index in range(len(dues))]
        for source, due in zip(made, dues, strict=True):
            self.pending[source] = Due(source, due, 1 << 16 | queue_id)
        return made

    def move(self, moved: Sequence[int]) -> list[int]:
        """Store entries of queue 0 anew, as retention has it done."""
        dues = [self.pending[source].due_unix_ms for source in moved]
        made = self.delay(dues, cause=Cause.AGAIN, sources=moved)
        for source, old in zip(made, moved, strict=True):
            self.pending[source] = self.pending.pop(old)._replace(source=source)
        return made

    def deliver(self, sources: Sequence[int], *, cause: Cause = Cause.DELAYED) -> None:
        batch = encode_batch(
            [b"x"] * len(sources),
            born_unix_ms=self.now_ms,
            topic_id=1,
            queue_id=0,
            sources=sources,
            flags=cause,
        )
        self.append(batch, base=self.projections.queue_end(1 << 16))
        for source in sources:
            self.pending.pop(source, None)

    def recall(self, sources: Sequence[int]) -> None:
        self.internal(Kind.OPERATION, {"timers": {"recalled": list(sources)}})
        for source in sources:
            self.pending.pop(source, None)

    @property
    def timers(self) -> Timers:
        return self.projections.timers

    def due(self, now_ms: int) -> list[Due]:
        return self.timers.due(now_ms, below=FAR, max_count=10**6)


def plain_due(log: DelayLog, now_ms: int) -> list[Due]:
    due = [entry for entry in log.pending.values() if entry.due_unix_ms <= now_ms]
    return sorted(due, key=lambda entry: (entry.due_unix_ms, entry.source))


def test_nothing_is_due_before_its_time_and_then_in_order_of_it() -> None:
    log = DelayLog()
    late, early, past = log.delay([START_MS + 1500, START_MS + 700, 0])

    assert [entry.source for entry in log.due(START_MS - 1)] == [past], "at once"
    assert [entry.source for entry in log.due(START_MS + 699)] == [past]
    assert [entry.source for entry in log.due(START_MS + 700)] == [past, early]
    assert [entry.source for entry in log.due(START_MS + 1499)] == [past, early]
    assert [entry.source for entry in log.due(START_MS + 1500)] == [past, early, late]


def test_what_is_not_confirmed_or_set_aside_does_not_hold_back_the_rest() -> None:
    log = DelayLog()
    [first] = log.delay([START_MS])
    below = log.end
    [second] = log.delay([START_MS])

    at = START_MS + 10
    assert [entry.source for entry in log.timers.due(at, below=below, max_count=9)] == [first]
    found = log.timers.due(at, below=log.end, max_count=9, skip={first})
    assert [entry.source for entry in found] == [second]
    assert len(log.timers.due(at, below=log.end, max_count=1)) == 1


def test_what_was_set_aside_hides_nothing_that_comes_before_it_or_is_to_be_looked_at_again() -> (
    None
):
    log = DelayLog()
    aside = set(log.delay([START_MS + 10, START_MS + 20]))
    at = START_MS + 500
    assert log.timers.due(at, below=FAR, max_count=9, skip=aside) == []
    assert log.timers.next_due_ms() is None, "none but those"

    [before] = log.delay([START_MS + 15])
    [after] = log.delay([START_MS + 30])
    assert log.timers.next_due_ms() == START_MS + 15
    found = log.timers.due(at, below=FAR, max_count=9, skip=aside)
    assert [entry.source for entry in found] == [before, after]
    log.deliver([before, after])
    assert log.timers.due(at, below=FAR, max_count=9, skip=aside) == []
    assert len(log.timers.first_due(9)) == 2, "they are still pending"

    log.timers.look_again()
    assert log.timers.next_due_ms() == START_MS + 10
    assert [entry.source for entry in log.due(at)] == sorted(aside)


def test_delivery_closes_its_sources_and_a_second_one_changes_nothing() -> None:
    log = DelayLog()
    sources = log.delay([START_MS + 10] * 3)

    log.deliver(sources[:2])
    log.deliver(sources[:2])

    assert len(log.timers) == 1
    assert [entry.source for entry in log.due(START_MS + 10)] == sources[2:]
    assert log.timers.by_topic == {1: 1}
    log.deliver(sources[2:], cause=Cause.DEAD)
    assert (len(log.timers), log.timers.by_topic, log.timers.next_due_ms()) == (0, {}, None)


def test_recall_closes_and_an_unknown_source_is_nothing() -> None:
    log = DelayLog()
    sources = log.delay([START_MS + 10, START_MS + 20])

    log.recall([sources[0], pack_source(0, 0), sources[0] + 7])

    assert [entry.source for entry in log.due(FAR)] == sources[1:]


def test_entry_that_is_stored_anew_is_found_by_what_it_was_first() -> None:
    """R26: retention moves it, also twice; the handle given out names the first place."""
    log = DelayLog()
    first, other = log.delay([START_MS + 10, START_MS + 20])

    [moved] = log.move([first])
    [again] = log.move([moved])

    assert log.timers.find(first) is log.timers.find(moved) is None
    found = log.timers.find_origin(first)
    assert found is not None
    assert found.source == again
    assert log.timers.origin(again) == first
    assert log.timers.find_origin(pack_source(1, 0)) is None
    assert log.timers.oldest() == other
    log.deliver([again])
    assert log.timers.find_origin(first) is None


def test_entry_that_moved_is_found_without_looking_at_all_others() -> None:
    """A recall is answered in the loop, among as many moved entries as there may be."""

    class Counted(dict[int, int]):
        passed_over = 0

        def items(self) -> Any:
            self.passed_over += len(self)
            return super().items()

    log = DelayLog()
    first = log.delay([START_MS + 10] * 100)
    moved = log.move(first)
    for timers in (
        log.timers,
        Timers.restore(memoryview(b"".join(log.timers.snapshot(log.now_ms)))),
    ):
        timers._origins = counted = Counted(timers._origins)
        found = [timers.find_origin(origin) for origin in first]
        assert [entry and entry.source for entry in found] == moved
        assert counted.passed_over == 0
        timers.close(moved[0])
        assert [timers.find_origin(origin) for origin in (*first[:1], *moved[:1])] == [None, None]


def test_entry_that_is_done_is_not_moved() -> None:
    log = DelayLog()
    [source] = log.delay([START_MS + 10])
    log.deliver([source])
    batch_end = log.end

    log.delay([START_MS + 10], cause=Cause.AGAIN, sources=[source])
    log.pending.clear()

    assert len(log.timers) == 0
    assert log.end > batch_end


def test_deleting_the_topic_leaves_what_waits_for_the_dead_letters() -> None:
    """R35: a due message without a target becomes a dead letter, so it stays until it is due."""
    log = DelayLog()
    sources = log.delay([START_MS + 10])

    log.topic(1, is_deleted=True)

    assert [entry.source for entry in log.due(FAR)] == sources
    assert log.projections.topic_ids() == []


def test_pending_messages_are_in_no_queue() -> None:
    log = DelayLog()
    log.delay([START_MS])
    assert log.projections.queue_end(1 << 16) == 0


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers_module, "CHUNK_ENTRIES", 8)
    monkeypatch.setattr(timers_module, "_GAPS_MIN", 2)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("delay"), st.lists(st.integers(-500, 4000), min_size=1, max_size=20)),
        st.tuples(st.just("deliver"), st.lists(st.integers(0, 10**6), min_size=1, max_size=12)),
        st.tuples(st.just("recall"), st.lists(st.integers(0, 10**6), min_size=1, max_size=12)),
        st.tuples(st.just("move"), st.lists(st.integers(0, 10**6), min_size=1, max_size=4)),
        st.tuples(st.just("look"), st.lists(st.integers(0, 3000), min_size=1, max_size=1)),
        st.tuples(st.just("wait"), st.lists(st.integers(0, 900), min_size=1, max_size=1)),
    ),
    max_size=40,
)


@pytest.mark.usefixtures("small_chunks")
@settings(deadline=None, max_examples=150)
@given(steps=STEPS)
def test_compact_state_is_the_plain_one_and_folds_from_any_checkpoint(
    steps: list[tuple[str, list[int]]],
) -> None:
    """INV-9: whatever came before, and from whichever checkpoint it was folded."""
    log = DelayLog()
    snapshots = [log.projections.snapshot()]
    for name, numbers in steps:
        chosen = sorted({_chosen(log, number) for number in numbers if log.pending})
        match name:
            case "delay":
                log.delay([log.now_ms + number for number in numbers])
            case "deliver" if chosen:
                log.deliver(chosen)
            case "recall" if chosen:
                log.recall(chosen)
            case "move" if chosen:
                log.move(chosen)
            case "look":  # opens buckets, which is no state
                assert log.due(log.now_ms + numbers[0]) == plain_due(log, log.now_ms + numbers[0])
            case "wait":
                log.now_ms += numbers[0]
        _assert_like_plain(log)
        snapshots.append(log.projections.snapshot())
    whole = snapshots[-1]
    for snapshot in snapshots[:: max(1, len(snapshots) // 5)]:
        projections = Projections.restore(snapshot)
        assert projections.snapshot() == snapshot
        at = 0
        for batch in log.batches:
            if at >= projections.position:
                view = BatchView(batch)
                projections.apply(view.header, view)
            at += len(batch)
        assert projections.snapshot() == whole
        assert projections.timers.by_queue == log.timers.by_queue
        assert projections.timers.due(FAR * 2, below=FAR, max_count=10**6) == plain_due(
            log, FAR * 2
        )


def _chosen(log: DelayLog, number: int) -> int:
    sources = list(log.pending)
    return sources[number % len(sources)]


def _assert_like_plain(log: DelayLog) -> None:
    timers, pending = log.timers, log.pending
    assert len(timers) == len(pending) == sum(timers.by_topic.values())
    assert timers.by_queue == Counter(entry.key for entry in plain_due(log, FAR * 2))
    in_order = plain_due(log, FAR * 2)
    assert timers.first_due(5) == in_order[:5]
    assert timers.oldest() == min(pending, default=None)
    middle = log.end // 2
    below = sorted(source for source in pending if source >> 16 < middle)
    assert [entry.source for entry in timers.below(middle, 10**6)] == below
    next_due = timers.next_due_ms()
    if in_order:
        assert next_due is not None
        assert next_due <= in_order[0].due_unix_ms < next_due + 1000
    else:
        assert next_due is None
