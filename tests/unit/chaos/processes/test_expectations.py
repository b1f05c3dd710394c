"""What a scenario expects is judged from the history alone, and bounds can fail."""

import orjson
import pytest
from tests.support.chaos.hand import SECOND, Hand, acknowledged

from paceline.errors import ConfigError
from paceline_chaos.checkers.expectations import (
    EXPECT,
    Expectation,
    as_table,
    judged,
    longest_gap,
    parse_expectation,
    unmet,
)
from paceline_chaos.history.model import (
    Decision,
    Entry,
    History,
    Outcome,
    Phase,
    Stall,
)
from paceline_chaos.processes.scenario.file import load_scenarios
from paceline_chaos.verdict import Violation


def history(*entries: Entry, expect: Expectation | None = None) -> History:
    world = {} if expect is None else {EXPECT: as_table(expect)}
    return History(world=world, entries=list(entries))


QUIET = (
    Phase(number=0, at_us=0, name="load"),
    acknowledged(1, SECOND),
    acknowledged(2, 3 * SECOND),
    Phase(number=3, at_us=3 * SECOND + 1, name="heal"),
)


def test_gap_above_the_bound_is_told_with_the_entries_around_it() -> None:
    expect = Expectation(gap_ms_max=1_999, acknowledged_min=0)

    (found,) = unmet(expect, history(*QUIET))

    assert found.sentence == "nothing was acknowledged for 2000 ms, over 1999"
    assert found.proof == (1, 2)
    assert not unmet(Expectation(gap_ms_max=2_000, acknowledged_min=0), history(*QUIET))


def test_time_in_which_the_harness_stood_still_is_not_the_clusters() -> None:
    stalls = [
        Stall(number=4, at_us=SECOND - 50_000, for_us=100_000),
        Stall(number=5, at_us=2 * SECOND, for_us=70_000),
    ]

    gap = longest_gap(history(*QUIET, *stalls))

    assert (gap.whole_ms, gap.stalled_ms, gap.own_ms) == (2_000, 120, 1_880)


def test_group_that_stands_still_shows_though_another_goes_on() -> None:
    others = [acknowledged(4 + at, at * SECOND // 10, "g2") for at in range(1, 31)]

    assert longest_gap(history(*QUIET, *others)).own_ms == 2_000


def test_elections_above_the_bound_are_told_and_those_for_new_settings_do_not_count() -> None:
    elected = [
        Decision(
            number=4 + index,
            at_us=index,
            node="c1",
            index=index,
            kind="master_elected",
            members={"group": "g1", "reason": reason},
        )
        for index, reason in enumerate(("first", "settings", "silent"))
    ]
    expect = Expectation(elections_max=0, acknowledged_min=0)

    (found,) = unmet(expect, history(*QUIET, *elected))

    assert found.sentence == "1 elections, expected at most 0"


def test_history_is_judged_again_with_the_bounds_of_its_scenario() -> None:
    expect = Expectation(gap_ms_max=1_000, acknowledged_min=0, counters_min={"acknowledged": 9})
    observed = Violation(property="CODE", sentence="g1-b1 told of a bug", proof=())

    verdict, _ = judged(history(*QUIET, expect=expect), [observed])
    alone, _ = judged(history(*QUIET))

    assert [one.sentence for one in verdict.violations if one.property in ("EXPECT", "CODE")] == [
        "g1-b1 told of a bug",
        "nothing was acknowledged for 2000 ms, over 1000",
        "acknowledged is 2, expected at least 9",
    ]
    assert not [one for one in alone.violations if one.property == "EXPECT"]


def test_bounds_survive_being_written_down() -> None:
    expect = Expectation(gap_ms_max=7, may_break=("S1",), counters_min={"elections": 1})

    table = orjson.loads(orjson.dumps(as_table(expect)))

    assert parse_expectation(table) == expect
    with pytest.raises(ConfigError, match="gap_ms_maxx is unknown"):
        parse_expectation({"gap_ms_maxx": 1})


def test_errors_that_reach_the_application_are_counted_where_they_have_a_bound() -> None:
    hand = Hand()
    hand.send("a", 0)
    hand.failed("b")
    hand.unknown("c")
    hand.committed(None, outcome=Outcome.FAIL, error="NOT_YET_AVAILABLE")
    free = Expectation(acknowledged_min=0)
    strict = Expectation(acknowledged_min=0, failed_sends_max=0, failed_calls_max=0)

    sentences = [found.sentence for found in unmet(strict, hand.history)]

    assert sentences == [
        "2 sends failed, at most 0 may (NOT_MASTER, OUTCOME_UNKNOWN)",
        "1 calls of consumers failed, at most 0 may (NOT_YET_AVAILABLE)",
    ]
    assert not unmet(free, hand.history)


def test_every_scenario_bounds_how_long_nothing_is_acknowledged() -> None:
    """All but the one that lets faults fall together as they will: there nothing is promised."""
    unbounded = {spec.name for spec, _ in load_scenarios("all") if spec.expect.gap_ms_max is None}

    assert unbounded == {"mixed"}


@pytest.mark.parametrize(
    "name",
    ["flap", "one-way-back", "one-way-cut", "one-way-clients", "client-cut", "controller-cut"],
)
def test_links_that_fail_elect_nobody_while_the_master_is_heard(name: str) -> None:
    ((spec, _),) = load_scenarios(name)

    assert spec.expect.elections_max == 0
