"""Real processes: rights are switched on and off while those who carry it out are killed."""

import signal
from functools import partial
from pathlib import Path

import pytest
from tests.support.process.harness import (
    BUSY_MS_MAX,
    RunningCluster,
    eventually,
    running_cluster,
    stranger_gets,
    the_master,
)
from tests.support.process.load import controller_leader
from tests.support.process.machines import taking_over

from paceline.admin.client import AdminClient
from paceline.admin.users import FirstKey
from paceline.message import Message
from paceline.net.connect import ConnectSettings
from paceline.producer.producer import Producer

pytestmark = [pytest.mark.process, pytest.mark.timeout(150)]


async def test_rights_are_on_everywhere_though_leader_and_master_die_between_the_steps(
    tmp_path: Path,
) -> None:
    """Also at a broker that was down for all of it, and hears of no controller when it starts."""
    with running_cluster(tmp_path) as cluster, taking_over(cluster) as machines:
        async with Producer(cluster.bootstrap) as producer:
            sent = await producer.send(Message("orders", b"a tea", key="k1"))
        leader, master = await controller_leader(cluster), await the_master(cluster)
        dead = {leader, master}

        def show(made: FirstKey) -> None:
            cluster.secrets.append(("the first key", made.credentials.secret_key.encode()))
            cluster.send_signal(leader, signal.SIGKILL)

        def keep(made: FirstKey) -> None:
            cluster.send_signal(master, signal.SIGKILL)

        async with AdminClient(cluster.bootstrap) as admin:
            made = await admin.security.enable(show, keep=keep)
        assert made is not None

        left = {node["name"] for node in cluster.nodes()} - dead
        await eventually(
            partial(all_answer, cluster, left, 401), within_ms=BUSY_MS_MAX, what="rights are on"
        )
        controllers = {name for name in left if cluster.node(name)["role"] == "controller"}
        for name in controllers:
            cluster.send_signal(name, signal.SIGSTOP)
        machines.start(master)
        await eventually(partial(all_answer, cluster, {master}, 200), what="it serves its status")
        for path in ("routes", "topics/orders/search?key=k1", f"messages/{sent.message_id}"):
            assert await stranger_gets(cluster, master, path) in (404, 503), path
        for name in controllers:
            cluster.send_signal(name, signal.SIGCONT)
        machines.start(leader)
        await eventually(partial(all_answer, cluster, left | dead, 401), what="rights are on")

        async with AdminClient(ConnectSettings(cluster.bootstrap, made.credentials)) as admin:
            told = (await admin.controllers.all()).values()
            second = next(each["leader"] for each in told if each and each["role"] == "leader")
            cluster.send_signal(second, signal.SIGKILL)
            await admin.security.set("off")
        left = (left | dead) - {second}
        await eventually(partial(all_answer, cluster, left, 200), what="rights are off")


async def all_answer(cluster: RunningCluster, names: set[str], status: int) -> bool:
    """Whether all say so to a stranger who asks for their status."""
    return {await stranger_gets(cluster, name, "status") for name in names} == {status}
