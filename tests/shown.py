"""Commands that README and docs show: found in the text, and where each of them is run.

A block marked "```sh runnable" or "```python runnable" is run as it stands, and so is every program
of a feature page (tests/process/documents/). Each line of another block, and each other program,
is in `WAYS`: the test that runs it, or why nothing does.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
_FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"(?:\.venv/bin/)?(?:paceline|make|python|curl|openssl|pip)(?: |$)")
_COMMENT = re.compile(r"\s+# .*$")


@dataclass(frozen=True)
class Way:
    """What becomes of a shown command."""

    test: str = ""
    """The file of the test that runs it."""
    by: str = ""
    """How that file says so; empty: it has the shown line in quotes."""
    not_run: str = ""
    """Or the reason why no test does."""


@dataclass(frozen=True)
class Shown:
    """One line of a block of commands, or the first line of a block of Python."""

    document: str
    text: str
    language: str
    is_runnable: bool


def documents() -> list[Path]:
    """README, CONTRIBUTING and all of docs."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("**/*.md"))]


def shown() -> Iterator[Shown]:
    """All that the documents show, in their order."""
    for path in documents():
        document = str(path.relative_to(ROOT))
        for heading, text in _FENCE.findall(path.read_text()):
            language, _, mark = heading.partition(" ")
            is_runnable = mark == "runnable"
            if language in ("python", "py"):
                yield Shown(document, text.partition("\n")[0], language, is_runnable)
            elif language == "sh" or (language == "" and _COMMAND.match(text)):
                for line in lines(text):
                    yield Shown(document, line, "sh", is_runnable)


def lines(text: str) -> list[str]:
    """The commands of a block, each in one line and without its comment."""
    joined = text.replace("\\\n", " ").splitlines()
    found = (_COMMENT.sub("", line).strip() for line in joined)
    return [" ".join(line.split()) for line in found if line and not line.startswith("#")]


def unmarked() -> list[Shown]:
    """What is not run as it stands: `WAYS` must have it."""
    return [
        one
        for one in shown()
        if not one.is_runnable
        and not (one.language == "python" and one.document.startswith("docs/features/"))
    ]


_OWN = "tests/process/documents/test_shown_commands.py"
_SIM = "tests/sim/cluster_sim/test_shown_commands.py"
_SECURITY = "tests/unit/client/cli/security/test_security.py"
_SPARK = "tests/spark/test_examples.py"
_CHAOS = "tests/process/chaos/test_chaos.py"
_LEDGER_ALONE = "takes minutes and writes docs/verification.jsonl; "

WAYS: dict[str, Way] = {
    # -- clusters of their own --
    "make up": Way(_OWN),
    "paceline up --data-dir data --brokers 3 --controllers 3": Way(_OWN),
    "make demo": Way(_OWN),
    "paceline demo": Way(_OWN, by='"make demo"'),
    "paceline bench --replicas 3 --seconds 1 --case produce": Way(_OWN),
    ".venv/bin/paceline chaos run kill-master": Way(_OWN),
    "paceline chaos run --list": Way(_OWN),
    "paceline chaos run kill-master --seed 7": Way(_OWN, by="chaos run kill-master"),
    "paceline chaos run kill-master --secure": Way(_CHAOS, by='"--secure"'),
    "paceline chaos run my-own.toml --json": Way(_OWN),
    "paceline chaos report chaos-runs/kill-master-7/history.jsonl": Way(_OWN),
    "from paceline_chaos.checkers import judge": Way(_OWN),
    "paceline chaos run all --rounds 3 --output chaos-runs": Way(_CHAOS, by="QUICK"),
    "make chaos": Way(_CHAOS, by="QUICK"),
    "paceline chaos rounds --rounds 30": Way(_CHAOS, by='run_chaos("rounds"'),
    "paceline chaos rounds --family power --minutes 5": Way(_CHAOS, by='"--family", "kill"'),
    "paceline chaos failover --kills 100 --report failover": Way(
        "tests/process/chaos/test_chaos_failover.py", by='"chaos", "failover"'
    ),
    "paceline chaos busy --seconds 600": Way(
        "tests/process/chaos/test_chaos_busy.py", by='"chaos", "busy"'
    ),
    # -- simulated beds --
    "paceline chaos replay --bed world --seed 4711": Way(_SIM),
    "paceline chaos replay --bed core --seed 4711": Way(_SIM),
    "paceline chaos replay --bed world --plan world-4711.json": Way(_SIM),
    "python -m paceline_chaos.raft --seeds 4711 --shrink": Way(_SIM),
    "python -m paceline_chaos.cluster_sim --seed 4711 --shrink": Way(_SIM),
    "python -m paceline_chaos.cluster_sim --plan world-4711.json": Way(_SIM),
    "python -m paceline_chaos.ledger": Way(_SIM),
    "make verify": Way(
        "tests/process/chaos/test_verify_stops.py", by='"paceline_chaos.verify", "--bed", "core"'
    ),
    "make determinism": Way("tests/sim/cluster_sim/test_world_determinism.py", by="determinism"),
    "make test": Way(not_run="it is what runs all of these"),
    "make check": Way(not_run="make test begins with it"),
    "make interop": Way(not_run="CI runs it; tests/interop are what it runs"),
    "make help": Way(not_run="it prints what the Makefile says"),
    # -- what an operator orders --
    "paceline cluster transfer g1 --to 2": Way(_OWN),
    "paceline cluster elect g1 --to 2": Way(_OWN),
    "paceline cluster elect g1 --to 2 --unclean --yes": Way(_OWN),
    "paceline cluster clean g1 --replica 3": Way(_OWN),
    "paceline cluster clean g1 --yes": Way(_OWN),
    "paceline log check /data/g1-b1": Way(_OWN),
    "paceline log give-up /data/g1-b1": Way(
        "tests/unit/client/cli/test_log.py", by='"log", "give-up"'
    ),
    "paceline controller members replace c1 c4 --raft 10.0.0.4:7720 --client 10.0.0.4:7700": Way(
        "tests/process/cluster/test_members.py", by='"members", "replace"'
    ),
    "paceline controller members add c5 --raft 10.0.0.5:7720 --client 10.0.0.5:7700": Way(_OWN),
    "paceline controller members remove c5": Way(_OWN),
    "paceline cluster recover g1 --store 4f2a": Way(
        "tests/process/cluster/test_recovery.py", by='"cluster", "recover"'
    ),
    "paceline cluster recover g1 --store 4f2a --give-up-missing --yes": Way(
        "tests/process/cluster/test_recovery.py", by='"--give-up-missing"'
    ),
    "paceline cluster recover --forget 4f2a --yes": Way(
        "tests/unit/client/cli/test_cluster_recover.py", by='"--forget"'
    ),
    "paceline dlq list GROUP": Way("docs/features/retry.md", by="paceline dlq list retry-cooks"),
    "paceline dlq show GROUP g1/0/0": Way("docs/features/retry.md", by="dlq show retry-cooks g1"),
    "paceline dlq resend GROUP --all": Way("docs/features/retry.md", by="resend retry-cooks --all"),
    "paceline dlq purge GROUP": Way("docs/features/retry.md", by="dlq purge retry-cooks"),
    "from paceline.errors import ForbiddenError": Way(
        "tests/process/features/test_hooks.py", by='fenced_blocks("docs/features/hooks.md")'
    ),
    # -- users and rights --
    "paceline user remove-key shop ACCESS_KEY": Way(_SECURITY, by='"user", "remove-key", "shop"'),
    "paceline login --access-key ACCESS_KEY": Way(_SECURITY, by='"login", "--access-key"'),
    "paceline user set-password ana": Way(_SECURITY, by='"set-password", "ana"'),
    "paceline user set-password ana --change": Way(_SECURITY, by='"ana", "--change"'),
    "paceline user end-logins ana": Way(_SECURITY, by='"end-logins", "ana"'),
    "paceline login --user ana": Way(_SECURITY, by='"login", "--user", "ana"'),
    "paceline logout": Way(_SECURITY, by='("logout"'),
    # -- Spark --
    "paceline export --topic orders --to /data/orders --partition-by dt --verify": Way(_SPARK),
    "from pyspark.sql import SparkSession": Way(_SPARK),
    'def copy(orders: "DataFrame") -> None:': Way(_SPARK, by="def copy("),
}
