"""What clients saw, counted in steps of time."""

import pytest
from tests.unit.chaos.report.histories import Maker

from paceline_chaos.history.model import Outcome
from paceline_chaos.report.rates import (
    Span,
    client_sends,
    natural,
    outcome_counts,
    percentile,
    rates_of,
    span_of,
    step_of,
)


def test_sends_count_in_the_step_of_their_answer() -> None:
    maker = Maker()
    for at_ms in (50, 99, 100, 350):
        maker.send("client-1", at_ms, latency_ms=20)
    maker.send("client-1", 360, outcome=Outcome.FAIL, error="NOT_MASTER")
    maker.send("client-1", 370, outcome=Outcome.UNKNOWN, error="PEER")
    history = maker.history()

    rates = rates_of(history, Span(start_us=0, end_us=400_000))

    assert rates.acknowledged == [2, 1, 0, 1, 0]
    assert rates.failed == [0, 0, 0, 1, 0]
    assert rates.unknown == [0, 0, 0, 1, 0]
    assert rates.p50_ms == [20, 20, None, 20, None]


def test_longest_silence_is_found_whatever_the_order_of_entries() -> None:
    maker = Maker()
    for at_ms in (900, 100, 140, 880):
        maker.send("client-1", at_ms)
    history = maker.history()

    rates = rates_of(history, Span(start_us=0, end_us=1_000_000))

    assert rates.gap == (140, 740)


def test_each_client_has_its_own_longest_gap() -> None:
    maker = Maker()
    for at_ms in (100, 200, 700):
        maker.send("client-2", at_ms)
    for at_ms in (150, 450):
        maker.send("client-10", at_ms)
    maker.send("client-10", 460, outcome=Outcome.UNKNOWN, error="PEER")
    history = maker.history()

    two, ten = client_sends(history, Span(start_us=0, end_us=1_000_000))

    assert (two.client, two.acknowledged, two.gap_at_ms, two.gap_ms) == ("client-2", 3, 200, 500)
    assert (ten.client, ten.unknown, ten.gap_at_ms, ten.gap_ms) == ("client-10", 1, 150, 300)


def test_client_with_one_acknowledgement_has_no_gap() -> None:
    maker = Maker()
    maker.send("client-1", 100)

    (row,) = client_sends(maker.history(), Span(start_us=0, end_us=1_000_000))

    assert row.gap_ms is None


@pytest.mark.parametrize(
    ("length_ms", "step_ms"), [(1, 100), (120_000, 100), (121_000, 200), (3_600_000, 5000)]
)
def test_steps_are_as_many_as_a_plot_can_show(length_ms: int, step_ms: int) -> None:
    assert step_of(Span(start_us=0, end_us=length_ms * 1000)) == step_ms


def test_span_covers_operations_and_events() -> None:
    maker = Maker()
    maker.send("client-1", 500, latency_ms=100)
    maker.fault("kill", "g1-b1", 200, 900)

    assert span_of(maker.entries) == Span(start_us=200_000, end_us=900_000)


def test_errors_are_counted_by_their_code() -> None:
    maker = Maker()
    maker.send("client-1", 100)
    maker.send("client-1", 200, outcome=Outcome.FAIL, error="NOT_MASTER")

    counts = outcome_counts(maker.history())

    assert counts == {"Send": {"ok": 1, "fail": 1, "NOT_MASTER": 1}}


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1), (0.5, 2), (0.51, 3), (0.99, 4), (1.0, 4)]
)
def test_percentile_is_a_value_that_was_seen(share: float, expected: float) -> None:
    assert percentile([1, 2, 3, 4], share) == expected


def test_names_are_ordered_as_people_do() -> None:
    names = ["g1-b10", "g1-b2", "c1", "g1-b1"]

    assert sorted(names, key=natural) == ["c1", "g1-b1", "g1-b2", "g1-b10"]
