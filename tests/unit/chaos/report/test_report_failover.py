"""Failover figures: which gaps count, whose time it was, and the page that shows them."""

import re
from collections.abc import Sequence

import pytest
from tests.unit.chaos.report.histories import Maker

from paceline_chaos.history.model import Outcome
from paceline_chaos.report.failover_figures import (
    FailoverFigures,
    Kill,
    Sample,
    figures_of,
    longest_gap,
    spread,
)
from paceline_chaos.report.failover_page import failover_page

KILL = Kill(number=0, node="g1-b1", at_us=1_000_000, restarted_us=2_500_000, in_sync_us=4_000_000)


def outage(maker: Maker, client: str, *, until_ms: int, epoch_after: int = 2) -> None:
    """Acknowledged every 10 ms but from 1000 ms to `until_ms`."""
    for at_ms in [*range(10, 1000, 10), *range(until_ms, 4000, 10)]:
        epoch = 1 if at_ms < 1000 else epoch_after
        maker.send(client, at_ms, epoch=epoch, latency_ms=1)


def measured(maker: Maker, stalls: Sequence[tuple[int, int]] = ()) -> FailoverFigures:
    return figures_of(maker.history(), [KILL], stalls, {"clients": 2})


def test_gap_begins_with_the_last_acknowledgement_before_the_kill() -> None:
    maker = Maker()
    outage(maker, "client-1", until_ms=1200)

    (sample,) = measured(maker).samples

    assert sample.gap_ms == 210
    assert sample.return_gap_ms == 10


def test_each_client_of_each_kill_is_a_sample() -> None:
    maker = Maker()
    outage(maker, "client-1", until_ms=1200)
    outage(maker, "client-2", until_ms=1300)

    figures = measured(maker)

    assert [sample.gap_ms for sample in figures.samples] == [210, 310]
    assert (figures.gaps.median, figures.gaps.max) == (210, 310)


def test_sample_during_a_stall_of_the_harness_is_discarded_and_counted() -> None:
    maker = Maker()
    outage(maker, "client-1", until_ms=1200)
    outage(maker, "client-2", until_ms=1400)

    figures = measured(maker, stalls=[(1_250_000, 60_000)])

    assert [sample.client for sample in figures.kept] == ["client-1"]
    assert figures.to_json()["discarded"] == 1
    assert (figures.gaps.max, figures.all_gaps.max) == (210, 410)


def test_stall_while_the_dead_one_returns_says_nothing_against_the_failover() -> None:
    maker = Maker()
    outage(maker, "client-1", until_ms=1200)

    figures = measured(maker, stalls=[(2_000_000, 1_990_000)])

    assert figures.gaps.count == 1
    assert figures.return_gaps.count == 0


def test_client_that_is_never_served_again_has_waited_for_all_of_the_window() -> None:
    maker = Maker()
    outage(maker, "client-1", until_ms=4000)

    (sample,) = measured(maker).samples

    assert sample.gap_ms == 1510


def test_refused_and_unknown_sends_are_no_acknowledgements() -> None:
    maker = Maker()
    outage(maker, "client-1", until_ms=1200)
    maker.send("client-1", 1100, outcome=Outcome.FAIL, error="NOT_MASTER")
    maker.send("client-1", 1150, outcome=Outcome.UNKNOWN, error="PEER")

    figures = measured(maker)

    assert figures.gaps.max == 210
    assert figures.operations["fail"] == figures.operations["unknown"] == 1


def test_stages_tell_where_the_time_went() -> None:
    maker = Maker()
    outage(maker, "client-1", until_ms=1200)
    outage(maker, "client-2", until_ms=1300)
    maker.decide(1050, "master_elected", 7, group="g1", master=2, master_epoch=2)
    maker.decide(1120, "epoch_opened", 8, group="g1", master_epoch=2)

    (stages,) = measured(maker).stages

    assert (stages.elected_ms, stages.opened_ms) == (50, 120)
    assert (stages.first_ms, stages.all_ms) == (200, 300)


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        ((150, 250), (100, 200)),
        ((0, 50), (0, 100)),
        ((350, 900), (300, 700)),
        ((750, 900), (700, 900)),
        ((720, 730), (700, 730)),
    ],
)
def test_longest_gap_touches_the_window(window: tuple[int, int], expected: tuple[int, int]) -> None:
    assert longest_gap([100, 200, 300, 700], *window) == expected


def test_nobody_at_all_is_a_gap_of_the_whole_window() -> None:
    assert longest_gap([], 100, 400) == (100, 400)


def test_spread_of_nothing_meets_no_goal() -> None:
    figures = FailoverFigures(settings={}, samples=(), stages=(), stalls=(), operations={})

    assert spread([]).count == 0
    assert not figures.is_met


@pytest.mark.parametrize(
    ("gaps_ms", "is_met"),
    [
        ([290] * 197 + [790, 1_400, 1_400], True),
        ([310] * 101 + [10] * 99, False),  # the median
        ([10] * 197 + [810, 810, 810], False),  # the p99
        ([10] * 199 + [1_501], False),
    ],
)
def test_goals_are_for_the_median_the_p99_and_the_longest(
    gaps_ms: Sequence[int], is_met: bool
) -> None:
    samples = [
        Sample(
            kill=number,
            client="client-1",
            gap_ms=gap_ms,
            return_gap_ms=0,
            is_disturbed=False,
            is_return_disturbed=False,
        )
        for number, gap_ms in enumerate(gaps_ms)
    ]

    figures = FailoverFigures(settings={}, samples=samples, stages=(), stalls=(), operations={})

    assert figures.is_met == is_met


def test_page_shows_the_distribution_and_needs_nothing_from_anywhere() -> None:
    maker = Maker()
    outage(maker, "<b>client", until_ms=1200)
    maker.decide(1050, "master_elected", 7, group="g1", master=2, master_epoch=2)

    page = failover_page(measured(maker, stalls=[(5_000_000, 90_000)]))

    assert "210 ms" in page
    assert "Goals met" in page
    assert "<b>client" not in page
    assert not re.search(r"https?:|//[a-z]|@import|src=|<link|url\((?!#)", page)


def test_page_without_samples_says_so() -> None:
    figures = FailoverFigures(settings={}, samples=(), stages=(), stalls=(), operations={})

    assert "No sample" in failover_page(figures)
