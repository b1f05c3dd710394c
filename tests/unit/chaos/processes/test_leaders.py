"""How long nobody led is counted from the death of whoever led then."""

from paceline_chaos.history.model import FaultEvent
from paceline_chaos.processes.leaders import Leadership, leaderless_ms

SECOND = 1_000_000
FIRST = Leadership(1 * SECOND, "c1", 1)
NEXT = Leadership(5 * SECOND + 400_000, "c2", 3)


def killed(node: str, at_us: int, *, kind: str = "kill", is_begin: bool = True) -> FaultEvent:
    return FaultEvent(
        number=at_us, at_us=at_us, kind=kind, target=node, is_begin=is_begin, detail=""
    )


def test_time_runs_from_the_death_of_the_leader_to_the_next_ones_first_command() -> None:
    entries = [killed("c1", 5 * SECOND), killed("c1", 6 * SECOND, is_begin=False)]

    assert leaderless_ms([NEXT, FIRST], entries) == 400


def test_deaths_of_followers_and_of_brokers_do_not_count() -> None:
    entries = [killed("c2", 4 * SECOND), killed("g1-b1", 5 * SECOND)]

    assert leaderless_ms([FIRST], entries) is None


def test_leader_that_nobody_follows_counts_to_the_last_fault_told() -> None:
    entries = [killed("c1", 5 * SECOND), killed("c1", 9 * SECOND, is_begin=False)]

    assert leaderless_ms([FIRST], entries) == 4_000


def test_leader_that_sleeps_is_not_dead() -> None:
    assert leaderless_ms([FIRST, NEXT], [killed("c1", 5 * SECOND, kind="pause")]) is None
