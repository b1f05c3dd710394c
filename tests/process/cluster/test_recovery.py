"""R18: all controllers lose their folders, and the brokers' stores are all there is."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.process.harness import (
    STOP_TIMEOUT_S,
    RunningCluster,
    end_with_parent,
    eventually,
    paceline_command,
    running_cluster,
)
from tests.support.process.load import (
    Load,
    all_in_sync,
    check_records,
    check_stored,
    reach,
    same_bytes,
    settled,
    under_load,
)
from tests.support.process.logs import stored_records

from paceline.admin.client import AdminClient
from paceline.message import Message
from paceline.producer.producer import Producer
from paceline.producer.settings import ProducerSettings

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

PROGRAM = "from paceline_{0}.app import main; raise SystemExit(main())"
SLOW_MS = 40_000
"""Six interpreters start at once."""


async def test_a_group_is_recovered_from_its_stores_and_clients_go_on(tmp_path: Path) -> None:
    patient = ProducerSettings(delivery_timeout_ms=150_000)
    with running_cluster(tmp_path / "data") as cluster, contextlib.ExitStack() as nodes:
        async with under_load(cluster, "orders") as before:
            await reach(before, 200)
        async with Producer(cluster.bootstrap, settings=patient) as producer:
            first = await producer.send(Message("orders", b'["running", 0]', key="running"))
            await kill_everything(cluster)
            for name in ("c1", "c2", "c3"):
                shutil.rmtree(cluster.data_dir / name)
            start_everything(nodes, cluster)
            stores = await eventually(
                lambda: waiting_stores(cluster), within_ms=SLOW_MS, what="three stores that wait"
            )
            assert [store["losses"] for store in stores] == [[], [], []]
            unnamed = await recover(cluster, "g2", "--store", stores[0]["store_id"], "--yes")
            assert unnamed.returncode == 1
            assert not await groups(cluster), "nothing is begun before the operator has spoken"

            chosen = stores[0]["store_id"]
            asked = await recover(cluster, "g1", "--store", chosen[:8], "--yes", "--json")

            assert asked.returncode == 0, asked.stderr
            result = json.loads(asked.stdout)
            assert not result["is_unclean"]
            assert result["replicas"] == [1, 2, 3]
            await all_in_sync(cluster)
            second = await producer.send(Message("orders", b'["running", 1]', key="running"))
            assert second.epoch > first.epoch
        async with under_load(cluster, "payments") as after:
            await reach(after, 200)
        assert after.topic_id > before.topic_id + 1_000
        positions = await settled(cluster)
        assert (await recover(cluster)).stdout == "no store waits to be recovered\n"
        nodes.close()
    check_stored(cluster, positions, after)
    check_old(cluster, positions, before)


def check_old(cluster: RunningCluster, positions: dict[str, int], load: Load) -> None:
    """As `check_stored`, beside the two messages of the producer that went on."""
    records = stored_records(same_bytes(cluster, "g1", at_least=positions["g1"]))
    mine = [record for record in records if record.topic_id == load.topic_id]
    running = [record.body for record in mine if record.body.startswith(b'["running"')]
    assert running == [b'["running", 0]', b'["running", 1]']
    check_records([r for r in mine if r.body not in running], load, group="g1")


async def test_what_is_missing_is_given_up_by_the_operators_word_alone(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "data") as cluster, contextlib.ExitStack() as nodes:
        async with under_load(cluster, "orders") as load:
            await reach(load, 100)
        await settled(cluster)
        await kill_everything(cluster)
        for name in ("c1", "c2", "c3", "g1-b3"):
            shutil.rmtree(cluster.data_dir / name)
        start_everything(nodes, cluster)
        stores = await eventually(
            lambda: waiting_stores(cluster, count=2), within_ms=SLOW_MS, what="two stores that wait"
        )
        store = stores[0]["store_id"]

        refused = await recover(cluster, "g1", "--store", store, "--yes")
        accepted = await recover(cluster, "g1", "--store", store, "--give-up-missing", "--yes")

        assert refused.returncode == 1
        assert "2 of 3 replicas' stores" in refused.stderr
        assert accepted.returncode == 0, accepted.stderr
        assert "LOSSY" in accepted.stdout
        await all_in_sync(cluster)  # the empty one too
        positions = await settled(cluster)
        nodes.close()
    check_stored(cluster, positions, load)


# -- what is done to the cluster ------------------------------------------------------------------


async def kill_everything(cluster: RunningCluster) -> None:
    """Every node at once, as kill -9."""
    pids = [node["pid"] for node in cluster.nodes()]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)

    async def are_gone() -> bool:
        return not any(is_running(pid) for pid in pids)

    await eventually(are_gone, what="all nodes are dead")


def is_running(pid: int) -> bool:
    """A zombie, whose launcher has yet to ask for it, runs no more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def start_everything(stack: contextlib.ExitStack, cluster: RunningCluster) -> None:
    """The nodes again, with the settings and addresses they had."""
    for node in cluster.nodes():
        config = cluster.data_dir / f"{node['name']}.toml"
        log = cluster.data_dir / "logs" / f"{node['name']}.log"
        stack.enter_context(running(node["role"], config, log))


@contextlib.contextmanager
def running(role: str, config: Path, log: Path) -> Iterator[None]:
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM.format(role), "--config", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=end_with_parent,
        )
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=STOP_TIMEOUT_S)


async def recover(cluster: RunningCluster, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """`paceline cluster recover ...`."""
    command = paceline_command("cluster", "recover", *arguments)
    process = await asyncio.create_subprocess_exec(
        *command,
        "--bootstrap",
        ",".join(cluster.bootstrap),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, said = await process.communicate()
    assert process.returncode is not None
    return subprocess.CompletedProcess(command, process.returncode, out.decode(), said.decode())


async def waiting_stores(cluster: RunningCluster, *, count: int = 3) -> list[dict[str, Any]] | None:
    """Those that the controllers list, once there are so many."""
    listed = await recover(cluster, "--list", "--json")
    if listed.returncode != 0:
        return None  # no controller leads yet
    stores = [json.loads(line) for line in listed.stdout.splitlines()]
    return stores if len(stores) == count else None


async def groups(cluster: RunningCluster) -> list[str]:
    async with AdminClient(cluster.bootstrap) as admin:
        return sorted((await admin.view()).groups)
