"""Rounds of scenarios on real processes: which come next, and what is counted of them."""

from itertools import islice
from pathlib import Path

import pytest
from tests.support.chaos.hand import SECOND, acknowledged

from paceline.errors import ConfigError
from paceline_chaos.checkers.expectations import availability, longest_gap
from paceline_chaos.history.model import Entry, History, Phase
from paceline_chaos.ledger import Line, summary
from paceline_chaos.processes.rounds import Round, planned
from paceline_chaos.processes.scenario.file import load_scenarios
from paceline_chaos.processes.scenario.scenario import FAMILIES, Scenario, parse


def scenario(name: str, family: str) -> tuple[Scenario, Path]:
    return Scenario(name=name, title="t", proves="p", fault=(), family=family), Path(f"{name}.toml")


SCENARIOS = [scenario("a", "kill"), scenario("b", "kill"), scenario("c", "disk")]


def names(rounds: list[Round]) -> list[str]:
    return [f"{one.scenario.name} {one.seed}" for one in rounds]


def test_families_take_turns_and_so_do_the_scenarios_of_a_family() -> None:
    rounds = list(planned(SCENARIOS, [], source="s", count=3))

    assert names(rounds) == ["a 1", "c 1", "b 2", "c 2", "a 3", "c 3"]


def test_rounds_go_on_behind_what_this_source_has_done() -> None:
    lines = [
        Line(source="s", bed="processes", family="kill", start=2, end=3),
        Line(source="s", bed="processes", family="kill", start=0, end=1),
        Line(source="other", bed="processes", family="disk", start=7, end=8),
    ]

    rounds = list(islice(planned(SCENARIOS, lines, source="s", count=None), 2))

    assert names(rounds) == ["b 4", "c 1"]


def test_every_family_has_scenarios_and_every_scenario_a_family() -> None:
    assert {spec.family for spec, _ in load_scenarios("all")} == set(FAMILIES)


def test_bad_round_names_the_command_that_runs_it_again() -> None:
    ours, mine = load_scenarios("reset")[0], scenario("mine", "link")

    commands = [
        Round(family="link", number=6, scenario=spec, path=path, seed=7).replay
        for spec, path in (ours, mine)
    ]

    assert "paceline chaos run reset --seed 7" in commands[0]
    assert "paceline chaos run mine.toml --seed 7" in commands[1]


def test_some_rounds_are_secure_by_their_seed_and_none_with_a_flood() -> None:
    [(spec, path)] = load_scenarios("reset")
    [(hostile, other)] = load_scenarios("hostile-client")
    rounds = [
        Round(family="link", number=seed, scenario=spec, path=path, seed=seed) for seed in range(40)
    ]

    secure = [one for one in rounds if one.is_secure]

    assert 4 < len(secure) < 30
    assert all(one.replay.endswith(f"--seed {one.seed} --secure") for one in secure)
    assert spec.secured().cluster.secure
    floods = [
        Round(family="hostile", number=seed, scenario=hostile, path=other, seed=seed)
        for seed in range(40)
    ]
    assert not any(one.is_secure for one in floods)
    with pytest.raises(ConfigError, match="hostile-client cannot be secure"):
        hostile.secured()


def test_certificates_are_renewed_in_secure_clusters_only() -> None:
    path = load_scenarios("certificates-renewed")[0][1]
    text = path.read_text()

    assert parse("mine", text).cluster.secure
    with pytest.raises(ConfigError, match="secure = true"):
        parse("mine", text.replace("secure = true", "secure = false"))


def test_ledger_sums_rounds_up_by_family() -> None:
    lines = [
        Line(source="s", bed="processes", family="kill", scenario="a", seed=1, gap_ms=300),
        Line(
            source="s",
            bed="processes",
            family="kill",
            scenario="b",
            seed=2,
            gap_ms=900,
            violations={"S1": [2]},
        ),
    ]

    said = "\n".join(summary(lines))

    assert "processes, kill: 2 rounds" in said
    assert "longest gap 900 ms; violations: b 2" in said


def test_availability_is_the_share_of_seconds_with_an_acknowledgement() -> None:
    entries: list[Entry] = [
        Phase(number=0, at_us=5 * SECOND, name="load"),
        acknowledged(1, 5 * SECOND + 100_000),
        acknowledged(2, 7 * SECOND + 900_000),
        acknowledged(3, 8 * SECOND + 100_000),
        Phase(number=4, at_us=9 * SECOND + 500_000, name="heal"),
    ]
    history = History(world={}, entries=entries)

    assert availability(history) == 0.75


def test_longest_gap_ends_with_the_load() -> None:
    """Clients may take seconds to end, and nobody sends meanwhile."""
    entries: list[Entry] = [
        Phase(number=0, at_us=SECOND, name="load"),
        acknowledged(1, SECOND + 100_000),
        acknowledged(2, 3 * SECOND + 900_000),
        Phase(number=3, at_us=4 * SECOND, name="heal"),
        acknowledged(4, 4 * SECOND + 300_000),
        Phase(number=5, at_us=9 * SECOND, name="drain"),
    ]

    gap = longest_gap(History(world={}, entries=entries))

    assert (gap.own_ms, gap.proof) == (2_800, (1, 2))
