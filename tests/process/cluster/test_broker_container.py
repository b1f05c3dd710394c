"""`paceline-broker-container`: brokers for the cores of machines, here two loopback addresses."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import orjson
from tests.support.process.harness import (
    STOP_TIMEOUT_S,
    RunningCluster,
    end_with_parent,
    eventually,
    has_ended,
    running_cluster,
)

from paceline.admin.client import AdminClient
from paceline.cli.local.free_ports import check_free, free_ports
from paceline.consumer.pull import PullConsumer
from paceline.errors import ConfigError
from paceline.message import Message
from paceline.producer.producer import Producer
from paceline.types import GroupName
from paceline.wire.cluster import GroupView

MACHINES = ("127.0.0.1", "127.0.0.2")
HOMES = {"m1-1": MACHINES[0], "m1-2": MACHINES[0], "m2-1": MACHINES[1], "m2-2": MACHINES[1]}
_PROGRAM = "import sys; from paceline_broker.container.app import main; sys.exit(main())"
_PORTS = 8


class Container:
    """One running container."""

    def __init__(self, folder: Path, machine: int, *, first_port: int) -> None:
        self.machine = machine
        self.log_path = folder / f"container{machine}.log"
        own = {
            "machines": MACHINES,
            "machine": machine,
            "broker_config": str(folder / "broker.toml"),
            "data_dir": str(folder / f"machine{machine}"),
            "groups_per_machine": 2,
            "replicas": 2,
            "first_port": first_port,
        }
        config = folder / f"container{machine}.toml"
        config.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in own.items()))
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, "--config", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=end_with_parent,
            )

    def lines(self, event: str) -> list[dict[str, object]]:
        found = []
        for line in self.log_path.read_bytes().splitlines():
            if line.startswith(b"{") and orjson.loads(line).get("event") == event:
                found.append(orjson.loads(line))
        return found

    def pids(self) -> dict[str, int]:
        """Of its brokers, by group; of those started again the last."""
        return {str(line["broker"]): int(str(line["pid"])) for line in self.lines("broker_started")}

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=STOP_TIMEOUT_S)


@contextlib.contextmanager
def containers(cluster: RunningCluster, *, first_port: int) -> Iterator[list[Container]]:
    """One on each of the machines, with the controllers of the cluster."""
    folder = cluster.data_dir
    shared = {
        "controllers": cluster.bootstrap,
        "secret_file": str(folder / "cluster-secret"),
        "segment_size_bytes": 1 << 20,
    }
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in shared.items())
    (folder / "broker.toml").write_text(text)
    running = [Container(folder, machine, first_port=first_port) for machine in (1, 2)]
    try:
        yield running
    finally:
        for container in running:
            if container.process.poll() is None:
                container.stop()


def ports_on_both() -> int:
    """The first of the ports that a container needs, free on both machines."""
    while True:
        (first,) = free_ports(1, host=MACHINES[0])
        with contextlib.suppress(ConfigError):
            for port in range(first, first + _PORTS):
                for host in MACHINES:
                    check_free(port, host=host)
            return first


async def masters(admin: AdminClient) -> dict[str, str]:
    """Group -> the machine of its master, of those that have all replicas in sync."""

    def host(group: GroupView) -> str:
        assert group.master is not None
        return group.replicas[group.master].client_address.partition(":")[0]

    view = await admin.view()
    return {
        name: host(view.groups[GroupName(name)])
        for name in HOMES
        if GroupName(name) in view.groups
        and view.groups[GroupName(name)].master is not None
        and len(view.groups[GroupName(name)].sync_state_set) == 2
    }


async def test_each_machine_is_master_of_its_groups_and_brokers_come_back(tmp_path: Path) -> None:
    first_port = ports_on_both()
    with running_cluster(tmp_path / "data", "--brokers", "2") as cluster:
        bootstrap = ",".join(cluster.bootstrap)
        with containers(cluster, first_port=first_port) as (one, two):
            async with AdminClient(bootstrap) as admin:

                async def all_at_home() -> bool:
                    return await masters(admin) == HOMES

                await eventually(all_at_home, within_ms=60_000, what="a master of each group")
                await admin.topics.create("orders", queues=dict.fromkeys(HOMES, 1))
                async with Producer(bootstrap) as producer:
                    sent = await producer.send_many(
                        Message("orders", b"%d" % number, f"k{number}") for number in range(200)
                    )
                    assert {result.group for result in sent} == set(HOMES)

                    killed = one.pids()["m1-1"]
                    os.kill(killed, signal.SIGKILL)

                    async def is_back() -> bool:
                        return one.pids()["m1-1"] != killed and len(await masters(admin)) == 4

                    await eventually(is_back, within_ms=60_000, what="the broker that was killed")
                    assert one.lines("broker_ended")[0]["status"] == -9

                    of_two = two.pids()
                    assert two.stop() == 0
                    assert all(map(has_ended, of_two.values()))
                    await producer.send_many(
                        Message("orders", b"%d" % number, f"k{number}")
                        for number in range(200, 300)
                    )
            async with PullConsumer(bootstrap) as consumer:
                await consumer.subscribe("orders")
                bodies: list[bytes] = []
                while len(bodies) < 300:
                    bodies += [message.body for message in await consumer.poll()]
            assert sorted(bodies, key=int) == [b"%d" % number for number in range(300)]


def test_a_port_that_is_taken_ends_the_container_with_a_sentence(tmp_path: Path) -> None:
    with (
        running_cluster(tmp_path / "data", "--brokers", "2") as cluster,
        socket.create_server((MACHINES[0], 0)) as taken,
    ):
        first_port = taken.getsockname()[1] - 2  # the second broker's
        with containers(cluster, first_port=first_port) as (one, _):
            assert one.process.wait(timeout=STOP_TIMEOUT_S) == 2
            last = one.log_path.read_text().splitlines()[-1]
            assert "was refused: its last line above says why" in last
            assert all(map(has_ended, one.pids().values()))
