"""What was made of records sent back: once for each source, forgotten with it (R28, R34, INV-9)."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.projections.fold import folded
from tests.support.projections.logs import START_MS, HandLog

from paceline.records.encode import encode_batch
from paceline.records.header import Cause, Kind, pack_source
from paceline.types import PhysicalOffset
from paceline_broker.projections.projections import Projections

RETRY, DEAD = 21, 22
KEY = 1 << 16


def a_log() -> HandLog:
    log = HandLog()
    log.begin_epoch(1)
    for topic_id in (1, RETRY, DEAD):
        log.topic(topic_id)
    return log


def send_back(log: HandLog, sources: list[int], *, is_dead: bool = False) -> int:
    """The batch that a master makes of records sent back; where it begins."""
    position = int(log.projections.position)
    topic_id = DEAD if is_dead else RETRY
    batch = encode_batch(
        [b"x"] * len(sources),
        born_unix_ms=START_MS,
        topic_id=topic_id,
        queue_id=0,
        kind=Kind.NORMAL if is_dead else Kind.DELAY,
        due_unix_ms=None if is_dead else [START_MS + 10_000] * len(sources),
        sources=sources,
        flags=Cause.DEAD if is_dead else Cause.RETRIED,
    )
    log.append(batch, base=log.projections.queue_end(topic_id << 16) if is_dead else 0)
    return position


def test_source_is_known_by_the_record_that_was_made_of_it() -> None:
    log = a_log()
    at = int(log.projections.position)
    log.send(3)
    sources = [pack_source(at, 2), pack_source(at, 0)]

    made = send_back(log, sources)

    state = log.projections.send_backs
    assert state.made(RETRY, sources[0]) == pack_source(made, 0)
    assert state.made(RETRY, sources[1]) == pack_source(made, 1)
    assert state.made(RETRY, pack_source(at, 1)) is None
    assert state.made(DEAD, sources[0]) is None
    assert log.projections.queue_end(RETRY << 16) == 0, "it waits, in no queue"


def test_dead_letter_is_in_its_queue_at_once() -> None:
    log = a_log()
    at = int(log.projections.position)
    log.send()

    made = send_back(log, [pack_source(at, 0)], is_dead=True)

    assert log.projections.send_backs.made(DEAD, pack_source(at, 0)) == pack_source(made, 0)
    assert log.projections.queue_end(DEAD << 16) == 1


def test_batches_of_other_causes_are_not_noted() -> None:
    log = a_log()
    batch = encode_batch(
        [b"x"],
        born_unix_ms=START_MS,
        topic_id=1,
        queue_id=0,
        sources=[pack_source(0, 0)],
        flags=Cause.COMMITTED,
    )
    log.append(batch)

    assert len(log.projections.send_backs) == 0


def test_reset_of_the_group_allows_the_source_anew() -> None:
    """A group that was set back is to consume everything again, failures included."""
    log = a_log()
    at = int(log.projections.position)
    log.send(2)
    log.commit(1)
    source = pack_source(at, 0)
    first = send_back(log, [source])
    state = log.projections.send_backs
    assert state.made_for(RETRY, source, group="g", key=KEY) == pack_source(first, 0)

    log.commit(0, is_reset=True)

    assert state.made_for(RETRY, source, group="g", key=KEY) is None
    assert state.made_for(RETRY, source, group="other", key=KEY) is not None
    again = send_back(log, [source])
    assert state.made_for(RETRY, source, group="g", key=KEY) == pack_source(again, 0)
    assert len(state) == 1


def test_pairs_go_with_the_sources_when_retention_has_them() -> None:
    log = a_log()
    old = int(log.projections.position)
    log.send()
    young = int(log.projections.position)
    log.send()
    log.commit(0, is_reset=True)
    send_back(log, [pack_source(old, 0), pack_source(young, 0)])

    log.retain(log_start=young)
    log.projections.retain(PhysicalOffset(log.end))

    state = log.projections.send_backs
    assert state.made(RETRY, pack_source(old, 0)) is None
    assert state.made(RETRY, pack_source(young, 0)) is not None
    log.retain(log_start=log.end)
    log.projections.retain(PhysicalOffset(log.end))
    assert len(state) == 0
    assert state.resets_json() == []


def test_deleted_topic_takes_its_pairs_along() -> None:
    """R35"""
    log = a_log()
    at = int(log.projections.position)
    log.send()
    send_back(log, [pack_source(at, 0)])
    assert RETRY in log.projections.topic_ids()

    log.topic(RETRY, is_deleted=True)

    assert len(log.projections.send_backs) == 0
    assert RETRY not in log.projections.topic_ids()


def test_pair_costs_sixteen_bytes() -> None:
    """What docs/features/retry.md says of the memory that a broker needs."""
    log = a_log()
    sources = [pack_source(64 * number, 0) for number in range(10_000)]
    random.Random("pairs").shuffle(sources)
    for at in range(0, len(sources), 500):
        send_back(log, sources[at : at + 500])

    assert len(log.projections.send_backs) == 10_000
    assert len(log.projections.send_backs.snapshot()) <= 16 * 10_000 + 64


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_fold_from_any_checkpoint_is_the_fold_from_the_start(seed: int) -> None:
    """INV-9: sources far apart, out of order, made again after resets, dropped by retention."""
    dice = random.Random(seed)
    log = a_log()
    states = [log.projections.snapshot()]
    places: list[int] = []
    for _ in range(dice.randrange(1, 25)):
        match dice.randrange(6):
            case 0 | 1:
                places.append(int(log.projections.position))
                log.send(3)
            case 2 | 3 if places:
                sources = {
                    pack_source(dice.choice(places) + (dice.randrange(3) << 23), dice.randrange(3))
                    for _ in range(dice.randrange(1, 6))
                }
                send_back(
                    log, dice.sample(sorted(sources), len(sources)), is_dead=dice.random() < 0.3
                )
            case 4:
                log.commit(0, is_reset=True, group=dice.choice("ab"))
            case 5 if dice.random() < 0.3 and places:
                log.retain(log_start=dice.choice(places))
                log.projections.retain(PhysicalOffset(log.end))
        states.append(log.projections.snapshot())

    for state in states:
        assert folded(log.batches, Projections.restore(state)).snapshot() == states[-1]
