"""Groups that are well are not looked at by each tick, and nothing is decided otherwise by that."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.controller.builders import G1, SETTINGS
from tests.support.controller.liveness_bed import TIMEOUT_MS, Bed, a_running_group

from paceline.types import GroupName
from paceline_controller.election.liveness import TICK_MS, Liveness
from paceline_controller.election.liveness_events import Ready, StateChanged, Tick
from paceline_controller.state.commands import SetGroupSettings
from paceline_controller.state.model import Group

CALM_MS = TIMEOUT_MS // 2
OTHER_SETTINGS = replace(SETTINGS, min_in_sync_replicas=1)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[GroupName]:
    """The groups that were looked at."""
    found: list[GroupName] = []
    look = Liveness._look

    def noted(self: Liveness, group: Group, ready: Ready, now_ms: int) -> None:
        found.append(group.group)
        look(self, group, ready, now_ms)

    monkeypatch.setattr(Liveness, "_look", noted)
    return found


def ticks(bed: Bed, milliseconds: int) -> None:
    for _ in range(milliseconds // TICK_MS):
        bed.now += TICK_MS
        bed.step(Tick())


def test_ticks_do_not_look_at_a_group_that_is_well(looks: list[GroupName]) -> None:
    bed = a_running_group()
    looks.clear()

    ticks(bed, CALM_MS - 4 * TICK_MS)

    assert looks == []


def test_ticks_look_at_it_once_a_heartbeat_is_late(looks: list[GroupName]) -> None:
    bed = a_running_group()
    bed.run(600, 1, 3)  # not 2
    looks.clear()

    ticks(bed, 4 * TICK_MS)

    assert looks
    assert set(looks) == {G1}


def test_a_heartbeat_looks_at_its_group(looks: list[GroupName]) -> None:
    bed = a_running_group()
    looks.clear()

    bed.beat(2)

    assert looks == [G1]


def test_a_change_looks_at_the_groups_that_changed(looks: list[GroupName]) -> None:
    bed = a_running_group()
    looks.clear()

    bed.step(StateChanged(groups=frozenset()))
    bed.step(StateChanged(groups=frozenset([GroupName("g9")])))
    assert looks == []

    bed.step(StateChanged(groups=frozenset([G1])))
    bed.step(StateChanged())
    assert looks == [G1, G1]


@pytest.mark.parametrize(
    "trouble",
    [
        lambda bed: bed.close(2),
        lambda bed: bed.beat(1, is_healthy=False),
        lambda bed: bed.beat(1, waiting=1),
        lambda bed: bed.driver.do(SetGroupSettings(group=G1, settings=OTHER_SETTINGS)),
    ],
    ids=["no session", "unhealthy", "work waits", "other settings"],
)
def test_a_group_in_trouble_is_looked_at_by_each_tick(trouble: Any, looks: list[GroupName]) -> None:
    bed = a_running_group()
    trouble(bed)
    bed.step(StateChanged())
    looks.clear()

    ticks(bed, 3 * TICK_MS)

    assert looks == [G1] * 3


def kill(bed: Bed, number: int) -> None:
    """Its session closes, and its port refuses."""
    bed.close(number)
    if any(probe.key.replica_id == number for probe in bed.probes):
        bed.probe(number, is_refused=True)


def test_a_group_whose_replicas_all_die_at_once_is_looked_at(looks: list[GroupName]) -> None:
    bed = a_running_group()
    bed.beat(1)
    for number in (2, 3, 1):
        kill(bed, number)
    looks.clear()

    ticks(bed, 3 * TICK_MS)

    assert looks == [G1] * 3


NUMBERS = st.integers(1, 3)
ACTIONS = st.one_of(
    st.tuples(st.just("run"), st.integers(1, 60), st.sets(NUMBERS)),
    st.tuples(st.just("run"), st.integers(1, 10), st.just({1, 2, 3})),
    st.tuples(
        st.just("beat"),
        NUMBERS,
        st.fixed_dictionaries(
            {},
            optional={
                "is_healthy": st.booleans(),
                "is_stalled": st.booleans(),
                "sync_ms": st.integers(0, 100),
                "waiting": st.integers(0, 1),
                "confirm": st.integers(100, 102),
            },
        ),
    ),
    st.tuples(st.just("close"), NUMBERS),
    st.tuples(st.just("kill"), NUMBERS),
    st.tuples(st.just("probe"), NUMBERS, st.booleans()),
    st.tuples(st.just("apply")),
    st.tuples(st.just("away"), st.integers(50, 3_000)),
)


def act(bed: Bed, action: tuple[Any, ...]) -> None:
    match action:
        case ("run", count, beating):
            bed.run(count * TICK_MS, *sorted(beating))
        case ("beat", number, changes):
            bed.beat(number, **changes)
        case ("close", number):
            bed.close(number)
        case ("kill", number):
            kill(bed, number)
        case ("probe", number, is_refused):
            if any(probe.key.replica_id == number for probe in bed.probes):
                bed.probe(number, is_refused=is_refused)
        case ("apply",):
            if bed.elections:
                bed.driver.do(bed.elections[-1])
                bed.step(StateChanged())
        case ("away", milliseconds):
            bed.now += milliseconds


@given(st.lists(ACTIONS, max_size=25))
def test_nothing_is_decided_otherwise_than_if_each_tick_looked_at_all(
    actions: list[tuple[Any, ...]],
) -> None:
    bed, other = a_running_group(), a_running_group()
    other.liveness.is_calm = lambda group, now_ms: False  # type: ignore[method-assign]

    for action in actions:
        act(bed, action)
        act(other, action)

        assert bed.elections == other.elections
        assert bed.probes == other.probes
        assert bed.inquiries == other.inquiries
        assert (bed.asked, bed.transfers) == (other.asked, other.transfers)
