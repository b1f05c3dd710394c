"""Real processes: the cluster secret is replaced in use, and no call fails."""

import asyncio
import os
import signal
from functools import partial
from pathlib import Path

import pytest
from tests.support.process.consuming import bodies_of
from tests.support.process.harness import (
    STOP_TIMEOUT_S,
    RunningCluster,
    eventually,
    running_cluster,
    stranger_gets,
)
from tests.support.process.machines import taking_over

from paceline.admin.client import AdminClient
from paceline.message import Message
from paceline.platform.runtime import spawn
from paceline.producer.producer import Producer

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]


async def test_a_secret_is_replaced_in_three_steps_while_masters_change_and_no_call_fails(
    tmp_path: Path,
) -> None:
    with running_cluster(tmp_path) as cluster:
        path = cluster.data_dir / "cluster-secret"
        old, new = path.read_text().strip(), "the new secret of this cluster"
        sent: list[bytes] = []
        is_done = asyncio.Event()

        async def send() -> None:
            async with Producer(cluster.bootstrap) as producer:
                while not is_done.is_set():
                    body = b"%d" % len(sent)
                    await producer.send(Message("orders", body))
                    sent.append(body)

        async with AdminClient(cluster.bootstrap) as admin:
            await admin.topics.create("orders", queues=1)
            sending = spawn(send(), name="sending")
            nodes = [node["name"] for node in cluster.nodes()]
            for step, lines in enumerate(((old, new), (new, old), (new,)), start=1):
                replace(path, lines)
                # One after the other: in between, connections come about anew.
                for number, name in enumerate(nodes):
                    cluster.send_signal(name, signal.SIGHUP)
                    reloaded = partial(has_reloaded, cluster, name, times=step)
                    await eventually(reloaded, what=f"step {step} at {name}")
                    if number == len(nodes) // 2:
                        await admin.broker_groups.transfer("g1")
                        await admin.controllers.transfer_leadership()
                        await admin.topics.create(f"half-way-{step}", queues=1)
                await admin.broker_groups.transfer("g1")
                await admin.topics.create(f"after-{step}", queues=1)
            is_done.set()
            await sending

        bodies = await bodies_of(cluster.bootstrap, "orders", len(sent))
        assert bodies == sent, "in order, each once"
        logs = "".join(file.read_text() for file in (cluster.data_dir / "logs").glob("*.log"))
        assert "does not hold this cluster's secret" not in logs
        assert old not in logs
        assert new not in logs


async def test_a_node_that_missed_the_rotation_is_kept_out_until_it_has_the_new_secret(
    tmp_path: Path,
) -> None:
    """It was down for all of it, and for the switching on of rights; others go on without it."""
    with running_cluster(tmp_path) as cluster, taking_over(cluster) as machines:
        name = "g1-b2"
        path, own = cluster.data_dir / "cluster-secret", tmp_path / "own-secret"
        old, new = path.read_text().strip(), "the new secret of this cluster"
        config = cluster.data_dir / f"{name}.toml"
        config.write_text(config.read_text().replace(str(path.resolve()), str(own.resolve())))
        replace(own, (old,))
        await machines.end(name)
        others = [node["name"] for node in cluster.nodes() if node["name"] != name]
        for step, lines in enumerate(((old, new), (new, old), (new,)), start=1):
            replace(path, lines)
            for other in others:
                cluster.send_signal(other, signal.SIGHUP)
                await eventually(partial(has_reloaded, cluster, other, times=step), what=other)

        async with AdminClient(cluster.bootstrap) as admin:
            made = await admin.security.enable(
                lambda made: cluster.secrets.append(("key", made.credentials.secret_key.encode()))
            )
        assert made is not None
        machines.start(name)

        async def has_given_up() -> bool:
            return not machines.is_running(name)

        await eventually(has_given_up, within_ms=STOP_TIMEOUT_S * 1000, what="the end of it")
        log = (cluster.data_dir / "logs" / f"{name}.log").read_text()
        assert "does not hold this cluster's secret" in log
        replace(own, (new,))
        machines.start(name)

        async def has_rights() -> bool:
            return await stranger_gets(cluster, name, "status") == 401

        await eventually(has_rights, what="it is let in, and rights count there")


def replace(path: Path, lines: tuple[str, ...]) -> None:
    """Whole: nobody reads half of it."""
    beside = path.with_suffix(".new")
    beside.touch(mode=0o600)
    beside.write_text("\n".join(lines))
    os.replace(beside, path)


async def has_reloaded(cluster: RunningCluster, name: str, *, times: int) -> bool:
    log = (cluster.data_dir / "logs" / f"{name}.log").read_text()
    return log.count("cluster_secrets_reloaded") == times
