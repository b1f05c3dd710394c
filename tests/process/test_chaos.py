"""`paceline chaos run`: short scenarios on real processes, judged by the checkers."""

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest
from tests.process.harness import end_with_parent, paceline_command

from paceline.errors import ConfigError
from paceline.runtime import SeededRandom
from paceline_chaos.cli import load_scenarios
from paceline_chaos.processes.scenario import parse, plan

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

SCENARIOS = [scenario for scenario, _ in load_scenarios("all")]
QUICK = [scenario.name for scenario in SCENARIOS if scenario.is_quick]


def run_chaos(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        paceline_command("chaos", *arguments), capture_output=True, check=False, timeout=170
    )


@pytest.mark.parametrize("name", QUICK)
def test_scenario_ends_with_a_good_verdict(name: str, tmp_path: Path) -> None:
    finished = run_chaos("run", name, "--output", str(tmp_path), "--json")

    said: list[dict[str, Any]] = [orjson.loads(line) for line in finished.stdout.splitlines()]
    assert said, finished.stderr
    verdict = said[-1]
    assert verdict["event"] == "verdict", said
    assert verdict["violations"] == []
    assert verdict["counters"]["acknowledged"] > 0
    assert finished.returncode == 0, finished.stderr
    folder = tmp_path / f"{name}-1"
    assert (folder / "report.html").stat().st_size > 10_000
    assert (folder / "history.jsonl").exists()


def test_interrupted_run_leaves_no_process(tmp_path: Path) -> None:
    command = paceline_command("chaos", "run", "kill-master", "--json", "--output", str(tmp_path))
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, start_new_session=True, preexec_fn=end_with_parent
    ) as process:
        assert process.stdout is not None
        while orjson.loads(process.stdout.readline())["event"] != "load":
            pass
        started = psutil.Process(process.pid).children(recursive=True)
        os.kill(process.pid, signal.SIGINT)
        process.stdout.read()

    assert len(started) >= 7
    assert process.returncode == 130
    assert not [one for one in started if one.is_running()]


def test_unknown_scenario_is_refused_in_one_sentence() -> None:
    finished = run_chaos("run", "nosuch")

    assert finished.returncode == 2
    assert finished.stderr.startswith(b"paceline: there is no scenario 'nosuch'; known: ")


def test_list_names_every_scenario() -> None:
    finished = run_chaos("run", "--list", "--json")

    rows = [orjson.loads(line) for line in finished.stdout.splitlines()]
    assert [row["scenario"] for row in rows] == [scenario.name for scenario in SCENARIOS]
    assert all(row["proves"] for row in rows)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_plan_is_the_same_for_the_same_seed_and_another_for_another(scenario: Any) -> None:
    first, again, other = (plan(scenario, SeededRandom(seed)) for seed in ("1", "1", "2"))

    assert first == again
    is_drawn = any(spec.jitter_ms or spec.choose for spec in scenario.fault)
    assert (first != other) == is_drawn


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('title = 1\nproves = "p"\nfault = []', "title must be str"),
        ('title = "t"', "proves is missing"),
        ("tilte = 1", "tilte is unknown"),
        ("[load]\nclients = { fly = 1 }", "no client does 'fly'"),
        ('[[fault]]\nat_ms = 1\nkind = "sing"\ntarget = "all"', "no fault is called 'sing'"),
        ('[[fault]]\nat_ms = 1\nkind = "kill"', "give target, or choose"),
        ('[[fault]]\nat_ms = 1\nkind = "kill"\ntarget = "all"\ntimes = 2', "needs every_ms"),
        ('[[fault]]\nat_ms = 1\nkind = "slow_link"\ntarget = "all"', "simulated world only"),
    ],
)
def test_wrong_scenario_file_is_refused_with_its_fault(text: str, sentence: str) -> None:
    whole = 'title = "t"\nproves = "p"\nfault = []\n' if text.startswith("[load]") else ""
    whole = 'title = "t"\nproves = "p"\n' if text.startswith("[[fault]]") else whole
    with pytest.raises(ConfigError, match=sentence):
        parse("mine", whole + text)
