"""Commands of the documents that need clusters of their own: each is run, with less of everything.

tests/shown.py has the list, and tests/unit/docs/test_shown_commands.py holds the documents to it.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from tests.shown import ROOT
from tests.support.process.examples import (
    fenced_blocks,
    finished,
    reader_environment,
    reader_folder,
    run_line,
)
from tests.support.process.harness import (
    RunningCluster,
    broker_statuses,
    end_with_parent,
    eventually,
    has_ended,
    running_cluster,
)
from tests.support.process.machines import Machines, taking_over

pytestmark = [pytest.mark.process, pytest.mark.timeout(170)]

BUSY_S = 150
"""For a machine with two busy cores: what takes ten seconds on a quiet one."""
SHORT_SCENARIO = """
title = "a replica sleeps"
family = "pause"
proves = "Nothing is lost while one replica stands still."
[load]
seconds = 1
[[fault]]
at_ms = 100
kind = "pause"
target = "replica:g1"
for_ms = 100
[expect]
acknowledged_min = 10
"""


def by_make(line: str) -> str:
    """`make ...` of this checkout in this environment, which is not made anew."""
    return f"{line} --no-print-directory -C {ROOT} -o {sys.prefix}/.made VENV={sys.prefix}"


def test_demo_loses_nothing(tmp_path: Path) -> None:
    said = run_line(
        f"{by_make('make demo')} ARGS='--rows 5000'", reader_folder(tmp_path), timeout_s=BUSY_S
    )

    assert "kill -9 of the master" in said
    assert "received: 5,000" in said
    assert said.splitlines()[-1] == "nothing was lost"


@pytest.mark.parametrize(
    ("line", "doors"),
    [
        (f"{by_make('make up')} ARGS='--port 0 --data-dir DATA'", [b"gw1: grpc 127.0.0.1:"]),
        ("paceline up --data-dir data --brokers 3 --controllers 3 --port 0", []),
    ],
    ids=["make up", "paceline up"],
)
def test_up_runs_until_ctrl_c(line: str, doors: list[bytes], tmp_path: Path) -> None:
    folder = reader_folder(tmp_path)
    process = subprocess.Popen(
        ["sh", "-c", f"exec {line.replace('DATA', str(folder / 'data'))}"],
        cwd=folder,
        env=reader_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=end_with_parent,
    )
    try:
        assert process.stdout is not None
        first, *told = [process.stdout.readline() for _ in range(2 + len(doors))]
        nodes = orjson.loads((folder / "data/cluster.json").read_bytes())["nodes"]
    finally:
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        said, _ = process.communicate(timeout=60)

    assert first.startswith(b"ready after "), first + b"".join(told) + said
    for line_told, begin in zip(told, [*doors, b"bootstrap 127.0.0.1:"], strict=True):
        assert line_told.startswith(begin)
    assert len(nodes) == 6 + len(doors)
    assert b"stopped; the data stays in " in said
    assert all(has_ended(node["pid"]) for node in nodes)


def test_bench_measures(tmp_path: Path) -> None:
    said = run_line(
        "paceline bench --replicas 3 --seconds 1 --case produce",
        reader_folder(tmp_path),
        timeout_s=BUSY_S,
    )

    assert "produce" in said
    assert all(inflight in said for inflight in ("64", "512", "4,096"))


@pytest.mark.alone
def test_chaos_runs_are_judged_and_reported(tmp_path: Path) -> None:
    folder = reader_folder(tmp_path)
    (folder / "my-own.toml").write_text(SHORT_SCENARIO)

    assert "kill-master" in run_line("paceline chaos run --list", folder)
    run_line(".venv/bin/paceline chaos run kill-master --seed 7", folder, timeout_s=BUSY_S)
    mine = run_line("paceline chaos run my-own.toml --json", folder, timeout_s=BUSY_S)
    run_line("paceline chaos report chaos-runs/kill-master-7/history.jsonl", folder)

    assert orjson.loads(mine.splitlines()[-1])["violations"] == []
    for name in ("history.jsonl", "verdict.json", "report.html"):
        assert (folder / "chaos-runs/kill-master-7" / name).stat().st_size > 100
    # What docs/CHECKERS.md does with a history, "from paceline_chaos.checkers import judge".
    [program] = [one for one in fenced_blocks("docs/CHECKERS.md") if one.language == "python"]
    shutil.copy(folder / "chaos-runs/kill-master-7/history.jsonl", folder)
    done = finished([sys.executable, "-c", f"{program.text}assert verdict.is_good"], folder, ())
    assert done.returncode == 0, done.stderr


async def test_orders_of_an_operator_are_carried_out(tmp_path: Path) -> None:
    folder = reader_folder(tmp_path)
    with (
        running_cluster(tmp_path / "data") as cluster,
        taking_over(cluster) as machines,
    ):
        order = Orders(cluster, machines, folder)
        await order.masters()
        await order.controllers()
        await order.clean()
    checked = run_line(
        "paceline log check /data/g1-b1".replace("/data", str(tmp_path / "data")), folder
    )
    assert "damage" in checked


class Orders:
    """The shown lines, with ids and addresses of the test's cluster in the place of theirs."""

    def __init__(self, cluster: RunningCluster, machines: Machines, folder: Path) -> None:
        self._cluster = cluster
        self._machines = machines
        self._folder = folder

    async def _run(self, line: str, shown: str = "", given: str = "") -> None:
        assert shown in line
        text = line.replace(shown, given) if shown else line
        await asyncio.to_thread(run_line, text, self._folder, self._cluster.bootstrap)

    async def _done_at_last(self, line: str, shown: str = "", given: str = "") -> None:
        """Refused until the controllers have seen who is dead."""
        text = line.replace(shown, given) if shown else line

        async def is_done() -> bool:
            command = ["sh", "-eu", "-c", text]
            bootstrap = self._cluster.bootstrap
            done = await asyncio.to_thread(finished, command, self._folder, bootstrap)
            return done.returncode == 0

        await eventually(is_done, within_ms=30_000, what=text)

    async def _replicas(self) -> tuple[int, list[int]]:
        """The open master, waited for until all others are in sync, and those."""

        async def found() -> tuple[int, list[int]] | None:
            rows = [status for _, status in await broker_statuses(self._cluster) if status]
            masters = [row for row in rows if row["role"] == "master" and row["is_open"]]
            if len(rows) < 3 or len(masters) != 1:
                return None
            done = await asyncio.to_thread(
                finished,
                ["paceline", "cluster", "ha-status", "--wait-in-sync-ms", "20000"],
                self._folder,
                self._cluster.bootstrap,
            )
            if done.returncode != 0:
                return None
            master = int(masters[0]["replica_id"])
            return master, sorted({int(row["replica_id"]) for row in rows} - {master})

        return await eventually(found, within_ms=60_000, what="a master with all in sync")

    async def masters(self) -> None:
        _, others = await self._replicas()
        await self._run("paceline cluster transfer g1 --to 2", "--to 2", f"--to {others[0]}")
        _, others = await self._replicas()
        await self._run("paceline cluster elect g1 --to 2", "--to 2", f"--to {others[0]}")
        master, others = await self._replicas()
        await self._run(
            "paceline cluster elect g1 --to 2 --unclean --yes", "--to 2", f"--to {others[-1]}"
        )
        now, _ = await self._replicas()
        assert now == others[-1] != master

    async def controllers(self) -> None:
        raft, client = self._machines.add_controller("c5", like="c1")
        await self._run(
            "paceline controller members add c5 --raft 10.0.0.5:7720 --client 10.0.0.5:7700",
            "--raft 10.0.0.5:7720 --client 10.0.0.5:7700",
            f"--raft {raft} --client {client}",
        )
        await self._run("paceline controller members remove c5")
        self._cluster.forgotten.add("c5")

    async def clean(self) -> None:
        master, others = await self._replicas()
        names = {
            int(status["replica_id"]): node["name"]
            for node, status in await broker_statuses(self._cluster)
            if status is not None
        }
        await self._machines.end(names[others[-1]])
        await self._done_at_last(
            "paceline cluster clean g1 --replica 3", "--replica 3", f"--replica {others[-1]}"
        )
        for replica in (others[0], master):
            await self._machines.end(names[replica])
        await self._done_at_last("paceline cluster clean g1 --yes")
