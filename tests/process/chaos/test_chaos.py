"""`paceline chaos run`: short scenarios on real processes, judged by the checkers."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest
from tests.support.process.harness import end_with_parent, eventually, paceline_command

from paceline.errors import ConfigError
from paceline.platform.runtime import SeededRandom
from paceline_chaos.processes.scenario.file import load_scenarios
from paceline_chaos.processes.scenario.scenario import parse, plan

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

FORKED = """
import signal, sys
from pathlib import Path
from paceline_chaos.processes.node.fork_server import ForkServer

folder = Path(sys.argv[1])
server = ForkServer()
refused = server.start("refused", ["broker", "--config", "/nosuch", "--control", f"{folder}/r"],
                       folder / "refused.log")
assert refused.wait(20) == 2, refused.returncode

config = folder / "c1.toml"
(folder / "secret").write_text("0123456789abcdef" * 4)
(folder / "secret").chmod(0o600)
config.write_text(f'controller_id = "c1"\\ndata_dir = "{folder}/c1"\\n'
    f'secret_file = "{folder}/secret"\\nlisten = "127.0.0.77:7711"\\n'
    'peers = ["c1=127.0.0.77:7712"]\\ncontrollers = ["127.0.0.77:7711"]\\n')
for number in (signal.SIGTERM, signal.SIGKILL):
    node = server.start("c1", ["controller", "--config", str(config), "--control", f"{folder}/c"],
                        folder / "c1.log")
    assert node.wait(0.6) is None, (folder / "c1.log").read_text()
    node.send_signal(number)
    assert node.wait(20) == (0 if number is signal.SIGTERM else -9), node.returncode
    node.send_signal(number)
server.close()
"""

SCENARIOS = [scenario for scenario, _ in load_scenarios("all")]
QUICK = [scenario.name for scenario in SCENARIOS if scenario.is_quick]


def run_chaos(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        paceline_command("chaos", *arguments), capture_output=True, check=False, timeout=170
    )


@pytest.mark.alone
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


@pytest.mark.alone
def test_scenario_is_judged_in_a_secure_cluster_too(tmp_path: Path) -> None:
    finished = run_chaos("run", "kill-master", "--secure", "--keep", "--output", str(tmp_path))

    folder = tmp_path / "kill-master-1"
    verdict = orjson.loads((folder / "verdict.json").read_bytes())
    assert finished.returncode == 0, verdict["violations"]
    assert verdict["counters"]["acknowledged"] > 0
    config = (folder / "data" / "g1-b1.toml").read_text()
    assert 'tls_mode = "enforcing"' in config
    assert b'"access_key":"key-of-client-1"' in (folder / "history.jsonl").read_bytes()


MINE = """
title = "a replica sleeps"
family = "pause"
proves = "Nothing."
[load]
seconds = 1
[[fault]]
at_ms = 100
kind = "pause"
target = "replica:g1"
for_ms = 100
[expect]
acknowledged_min = 1000000
"""


@pytest.mark.alone
def test_rounds_go_on_where_the_ledger_stopped_and_bad_ones_keep_everything(tmp_path: Path) -> None:
    mine, ledger = tmp_path / "mine.toml", tmp_path / "ledger.jsonl"
    mine.write_text(MINE)
    arguments = ["--scenario", str(mine), "--rounds", "1", "--ledger", str(ledger)]

    first = run_chaos("rounds", *arguments, "--output", str(tmp_path))
    mine.write_text(MINE.replace("1000000", "10"))
    second = run_chaos("rounds", *arguments, "--output", str(tmp_path))

    said = first.stdout.decode()
    assert first.returncode == 1, first.stderr
    assert f"again: .venv/bin/paceline chaos run {mine} --seed 1" in said
    assert {entry.name for entry in (tmp_path / "mine-1").iterdir()} >= {
        "history.jsonl",
        "report.html",
        "verdict.json",
        "data",
    }
    assert second.returncode == 1, "its source has failed before"
    assert "mine: EXPECT was violated before, by the same source: seeds [1]" in str(second.stdout)
    assert "mine 1: mine seed 2: good" in str(second.stdout).replace("pause", "mine")
    assert not (tmp_path / "mine-2").exists()
    lines = [orjson.loads(line) for line in ledger.read_bytes().splitlines()]
    assert [(line["seed"], line.get("violations")) for line in lines] == [
        (1, {"EXPECT": [1]}),
        (2, None),
    ]


def test_bound_of_a_scenario_fails_a_cluster_that_notices_too_late(tmp_path: Path) -> None:
    ((_, path),) = load_scenarios("isolate-master")
    late = tmp_path / "late.toml"
    setting = "[cluster]\ncontroller = { heartbeat_timeout_ms = 8000 }\n\n[[fault]]"
    late.write_text(path.read_text().replace("[[fault]]", setting, 1))

    finished = run_chaos("run", str(late), "--output", str(tmp_path), "--json")

    verdict = orjson.loads(finished.stdout.splitlines()[-1])
    sentences = " ".join(found["sentence"] for found in verdict["violations"])
    assert finished.returncode == 1, finished.stderr
    assert "over 2500" in sentences
    assert "0 elections, expected at least 1" in sentences
    again = run_chaos("report", str(tmp_path / "late-1"))
    assert again.returncode == 1, "the history has the bounds of its scenario"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_run_that_is_ended_leaves_no_process(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    command = paceline_command("chaos", "run", "kill-master", "--json", "--output", str(tmp_path))
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=end_with_parent,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        while orjson.loads(process.stdout.readline())["event"] != "load":
            pass
        started = psutil.Process(process.pid).children(recursive=True)
        os.kill(process.pid, number)
        process.stdout.read()
        said = process.stderr.read().decode()

    assert len(started) >= 8, "six nodes, the harness and the process that forks"
    assert process.returncode == code
    assert not psutil.wait_procs(started, timeout=10)[1]
    folder = tmp_path / "kill-master-1"
    assert said == (f"stopped; what there is stands in {folder}\n" if code == 130 else "")


def test_rounds_that_are_stopped_say_so_and_leave_nothing_that_they_said(
    tmp_path: Path,
) -> None:
    async def has_begun() -> bool:
        return bool(list(tmp_path.glob("runs/*/history.jsonl")))

    ledger = tmp_path / "ledger.jsonl"
    command = paceline_command("chaos", "rounds", "--rounds", "1", "--family", "kill")
    with subprocess.Popen(
        [*command, "--output", str(tmp_path / "runs"), "--ledger", str(ledger)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=end_with_parent,
    ) as process:
        asyncio.run(eventually(has_begun, within_ms=60_000))
        os.kill(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)

    assert process.returncode == 130
    assert said.decode().startswith(f"stopped; what there is stands in {tmp_path / 'runs'};")
    assert not list(tmp_path.glob("runs/*.said"))


def test_forked_node_has_log_exit_code_and_signals_of_its_own(tmp_path: Path) -> None:
    finished = subprocess.run(
        [sys.executable, "-c", FORKED, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert finished.returncode == 0, finished.stderr
    assert (finished.stdout, finished.stderr) == ("", "")
    assert "paceline-chaos-node: " in (tmp_path / "refused.log").read_text()


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
    assert not scenario.draw or len(first) == scenario.draw
    assert (first != other) == is_drawn


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('title = 1\nfamily = "kill"\nproves = "p"\nfault = []', "title must be str"),
        ('title = "t"\nfamily = "cats"\nproves = "p"\nfault = []', "no family is called 'cats'"),
        ('title = "t"', "proves is missing"),
        ("tilte = 1", "tilte is unknown"),
        ("[load]\nclients = { fly = 1 }", "no client does 'fly'"),
        ('draw = 1\ntitle = "t"\nfamily = "kill"\nproves = "p"\nfault = []', "draw must be"),
        ('[[fault]]\nat_ms = 1\nkind = "sing"\ntarget = "all"', "no fault is called 'sing'"),
        ('[[fault]]\nat_ms = 1\nkind = "kill"', "give target, or choose"),
        ('[[fault]]\nat_ms = 1\nkind = "kill"\ntarget = "all"\ntimes = 2', "needs every_ms"),
        ('[[fault]]\nat_ms = 1\nkind = "slow_link"\ntarget = "all"', "simulated world only"),
        ('[[fault]]\nat_ms = 1\nkind = "exit"\ntarget = "all"', "is never planned"),
        ('[[fault]]\nat_ms = -1\nkind = "kill"\ntarget = "all"', "at_ms is -1"),
        ('[[fault]]\nat_ms = 1\nkind = "kill"\ntarget = "g9-b1"', "'g9-b1' is nobody in this"),
        ('[[fault]]\nat_ms = 1\nkind = "kill"\ntarget = "master:g2"', "'master:g2' is nobody"),
        ('[[fault]]\nat_ms = 1\nkind = "kill"\ntarget = "master"', "'master' is nobody"),
        ('[[fault]]\nat_ms = 1\nkind = "kill"\ntarget = "client-1"', "'client-1' is nobody"),
        ('[[fault]]\nat_ms = 1\nkind = "kill"\nchoose = ["all", "x"]', "'x' is nobody"),
        (
            '[[fault]]\nat_ms = 1\nkind = "cut"\ntarget = "clients"\nother = "client-8"',
            "other 'client-8' is nobody in this cluster; cut may hit: .*client-7",
        ),
        ('[[fault]]\nat_ms = 1\nkind = "kill"\ntarget = "all"\nother = "c1"', "other means"),
        ('[[fault]]\nat_ms = 1\nkind = "clock_rate"\ntarget = "all"', "needs details"),
        (
            '[[fault]]\nat_ms = 1\nkind = "kill"\ntarget = "all"\n\n'
            '[[fault]] # two\nat_ms = "1"\nkind = "kill"\ntarget = "all"',
            r"^scenario mine, fault 2 \(line 9\): at_ms must be int, not '1'",
        ),
        (
            'title = "t"\nfamily = "kill"\nproves = "p"\n'
            'fault = [{ at_ms = 1, kind = "kill", target = "you" }]',
            "^scenario mine, fault 1: target 'you' is nobody",
        ),
        ("[load]\nqueues = 0", "load: queues is 0, must be from 1 to 1000"),
        ("[load]\nclients = { send = 400 }", "all clients is 400, must be from 1 to 150"),
    ],
)
def test_wrong_scenario_file_is_refused_with_its_fault(text: str, sentence: str) -> None:
    whole = (
        'title = "t"\nfamily = "kill"\nproves = "p"\nfault = []\n'
        if text.startswith("[load]")
        else ""
    )
    whole = (
        'title = "t"\nfamily = "kill"\nproves = "p"\n' if text.startswith("[[fault]]") else whole
    )
    with pytest.raises(ConfigError, match=sentence):
        parse("mine", whole + text)
