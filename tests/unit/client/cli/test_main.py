"""The command line as a whole: its help, its errors, and what it imports."""

import importlib.util
import subprocess
import sys

import orjson
import pytest
from tests.unit.client.cli.conftest import Runner, run_command

from paceline.cli.main import COMMANDS, load

NOBODY = "127.0.0.1:1"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_names_every_command_as_it_names_itself(name: str) -> None:
    target = COMMANDS[name].target
    assert importlib.util.find_spec(target.partition(":")[0]) is not None

    command = load(target)

    assert command.name == name
    assert command.get_short_help_str(200).rstrip(".") == COMMANDS[name].summary.rstrip(".")
    assert f"  {name} " in run_command("--help").stdout


def test_version_is_the_installed_one() -> None:
    outcome = run_command("--version")

    assert outcome.exit_code == 0
    assert outcome.stdout.startswith("paceline 0.")


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        (["--help"], ["asyncio", "aiohttp", "rich", "psutil", "paceline.net.cluster"]),
        (["topic", "--help"], ["asyncio", "aiohttp", "rich", "psutil"]),
        (
            ["topic", "list", "--connect-timeout-ms", "50"],
            ["rich", "psutil", "uvloop", "paceline.cli.local.up", "paceline.producer.producer"],
        ),
        (["send", "--help"], ["aiohttp", "rich", "psutil"]),
    ],
)
def test_a_command_imports_only_what_it_needs(arguments: list[str], absent: list[str]) -> None:
    code = (
        "import sys; from paceline.cli.main import main; main(sys.argv[2:]);"
        "print('loaded:', *(name for name in sys.argv[1].split(',') if name in sys.modules))"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code, ",".join(absent), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"PACELINE_BOOTSTRAP": NOBODY},
    )

    assert finished.stdout.splitlines()[-1] == "loaded:", finished.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "list"],
        ["topic", "create", "orders"],
        ["send", "orders", "hello"],
        ["pull", "orders"],
        ["consume", "orders", "--group", "g"],
        ["cluster", "status"],
    ],
)
def test_without_a_cluster_one_sentence_says_what_to_do(arguments: list[str]) -> None:
    outcome = run_command(*arguments, "--connect-timeout-ms", "50", bootstrap=NOBODY)

    assert outcome.exit_code == 1
    assert outcome.stdout == ""
    assert outcome.stderr == (
        f"paceline: no controller answers at {NOBODY}: start a cluster with `paceline up`, or name"
        " another with --bootstrap\n"
    )


def test_with_json_an_error_is_a_problem_document() -> None:
    outcome = run_command(
        "topic", "list", "--json", "--connect-timeout-ms", "50", "--bootstrap", NOBODY
    )

    assert outcome.exit_code == 1
    problem = orjson.loads(outcome.stderr)
    assert problem["code"] == "PEER"
    assert problem["bootstrap"] == NOBODY


def test_with_json_wrong_usage_is_a_problem_document_too() -> None:
    outcome = run_command("topic", "create", "--json")

    assert outcome.exit_code == 2
    assert orjson.loads(outcome.stderr)["code"] == "BAD_REQUEST"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nosuch"], "No such command 'nosuch'"),
        (["topic", "create", "a b"], "topic must be 1 to 127 of A-Z a-z 0-9"),
        (["topic", "create", "t", "--queues", "0"], "0 is not in the range"),
        (["topic", "delete", "t"], "say --yes"),
        (["topic", "list", "--bootstrap", "nowhere"], "write host:port"),
        (["send", "../etc", "x"], "topic must be 1 to 127"),
        (["send", "t", "x", "--property", "novalue"], "is not NAME=VALUE"),
        (["send", "t", "x", "--property", "a=1", "--property", "a=2"], "a is there twice"),
        (["send", "t", "x", "--key-column", "c"], "--key-column needs --csv or --jsonl"),
        (["send", "t", "--csv", "/nosuch/file.csv"], "No such file or directory"),
        (["send", "t", "x", "--csv", "-"], "give one of TEXT, --csv and --jsonl"),
        (["pull", "t", "--offset", "-1"], "is no number, first or last"),
        (["pull", "t", "--queue", "a/b"], "is not like 3 or g1/3"),
        (["pull", "t", "--max", "0"], "0 is not in the range"),
        (["consume", "t"], "Missing option '--group'"),
        (["consume", "t", "--group", "no/name"], "group must be 1 to 127"),
        (["consume", "t", "--group", "g", "--from", "middle"], "--from 'middle' is neither"),
    ],
)
def test_wrong_usage_is_refused_before_any_connection(arguments: list[str], sentence: str) -> None:
    outcome = run_command(*arguments, bootstrap=NOBODY)

    assert outcome.exit_code == 2
    assert sentence in outcome.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["send", "nosuch", "x"],
        ["send", "nosuch", "-"],
        ["pull", "nosuch"],
        ["consume", "nosuch", "--group", "g"],
        ["topic", "describe", "nosuch"],
    ],
)
def test_an_unknown_topic_is_named_with_the_way_to_make_it(
    paceline: Runner, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.cli.options.TOPIC_WAIT_MS", 20)
    outcome = paceline(*arguments)

    assert outcome.exit_code == 1
    assert outcome.stderr == (
        "paceline: topic nosuch does not exist; create it with `paceline topic create nosuch`\n"
    )


def test_it_runs_as_a_module() -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "paceline.cli.main", "--help"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert finished.returncode == 0
    assert finished.stdout.startswith("Usage: paceline ")
