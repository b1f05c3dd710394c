"""What the clients talk to: paceline behind its doors, or a real RocketMQ."""

import signal
import tempfile
from collections import defaultdict
from typing import Any, Protocol
from uuid import uuid4

import orjson
import pytest
from interop.java import InteropError
from interop.mqadmin import mqadmin
from interop.rocketmq import CLUSTER, GROUP, RocketMQ
from tests.support.process.harness import RunningCluster, eventually, the_master

from paceline.admin.client import AdminClient
from paceline.net.connect import Bootstrap

RETRY_MS = 1000
"""How long a failed message waits: the default begins with 10 s."""
AT_ONCE = 20
"""A command of RocketMQ's tools starts a JVM, so it makes topics and groups in advance."""


class Peer(Protocol):
    """One cluster that has been started."""

    name: str
    grpc_endpoint: str
    nameserver: str
    controller: str
    cluster_name: str
    broker_name: str
    early_ms_max: int
    """How long before its time a delayed message may come."""
    makes_topics: bool
    """By the first send to them."""
    load_s: int
    """How long senders go on when a master is killed: it is replaced before."""

    async def topic(self, kind: str) -> str:
        """A topic that nobody has used. `kind`: NORMAL, FIFO, DELAY, TRANSACTION or PRIORITY."""
        ...

    async def group(
        self, *, is_ordered: bool, retries_max: int, is_broadcasting: bool = False
    ) -> str:
        """A consumer group that nobody has used; one that broadcasts begins with the first."""
        ...

    async def dead_letters_count(self, group: str) -> int: ...

    async def kill_master(self) -> None: ...


class PacelinePeer:
    """A local cluster with a gateway."""

    name = "paceline"
    cluster_name, broker_name = "paceline", "g1"
    early_ms_max = 0
    makes_topics = True
    load_s = 10

    def __init__(self, cluster: RunningCluster, connect: Bootstrap | None = None) -> None:
        """`connect`: as whom, where that counts."""
        self._cluster = cluster
        self._connect = cluster.bootstrap if connect is None else connect
        gateway = next(node for node in cluster.nodes() if node.get("doors"))
        self.grpc_endpoint: str = gateway["doors"]["grpc"]
        self.nameserver = self.controller = gateway["doors"].get("remoting", "")

    async def topic(self, kind: str) -> str:
        topic = _new_name("t")
        async with AdminClient(self._connect) as admin:
            await admin.topics.create(topic, queues=4, message_type=kind)
        return topic

    async def group(
        self, *, is_ordered: bool, retries_max: int, is_broadcasting: bool = False
    ) -> str:
        group = _new_name("g")
        async with AdminClient(self._connect) as admin:
            await admin.consumer_groups.create(
                group,
                consume_message_orderly=is_ordered,
                retry_max_times=retries_max,
                retry_policy={"type": "CUSTOMIZED", "next_ms": [RETRY_MS]},
                message_model="broadcasting" if is_broadcasting else "clustering",
                consume_from_where="first",
            )
        return group

    async def dead_letters_count(self, group: str) -> int:
        async with AdminClient(self._connect) as admin:
            return len(await admin.dead_letters.all(group))

    async def kill_master(self) -> None:
        self._cluster.send_signal(await the_master(self._cluster), signal.SIGKILL)


class ToolsPeer:
    """A RocketMQ, or what behaves as one, that is known by its addresses alone."""

    name = "rocketmq"
    cluster_name, broker_name = CLUSTER, GROUP
    early_ms_max = 1000
    """Its timer wheel rounds down to whole seconds."""
    makes_topics = False
    load_s = 40

    def __init__(self, *, grpc_endpoint: str, nameserver: str, owned: RocketMQ | None) -> None:
        self.grpc_endpoint = grpc_endpoint
        self.nameserver = nameserver
        self.controller = owned.controllers[0] if owned is not None else ""
        self._owned = owned
        self._was_killed = False
        self._topics: dict[str, list[str]] = defaultdict(list)
        self._groups: dict[tuple[bool, int], list[str]] = defaultdict(list)

    async def topic(self, kind: str) -> str:
        free = self._topics[kind]
        if not free:
            names = [_new_name("t") for _ in range(AT_ONCE)]
            await self._create("updateTopicList", [_topic(name, kind) for name in names])
            free += names
        topic = free.pop()
        if self._was_killed:  # the new master tells the name server of its topics one after another
            await eventually(
                lambda: self._has_route(topic), within_ms=120_000, what=f"a route of {topic}"
            )
        return topic

    async def _has_route(self, topic: str) -> bool:
        return bool(await self._of_routed("topicRoute", topic))

    async def group(
        self, *, is_ordered: bool, retries_max: int, is_broadcasting: bool = False
    ) -> str:
        if is_broadcasting:
            pytest.skip("a group of RocketMQ does not broadcast over gRPC: pop cannot")
        free = self._groups[is_ordered, retries_max]
        if not free:
            names = [_new_name("g") for _ in range(AT_ONCE)]
            made = [
                {
                    "groupName": group,
                    "consumeMessageOrderly": is_ordered,
                    "retryMaxTimes": retries_max,
                }
                for group in names
            ]
            await self._create("updateSubGroupList", made)
            free += names
        return free.pop()

    async def dead_letters_count(self, group: str) -> int:
        output = await self._of_routed("topicStatus", f"%DLQ%{group}")
        rows = [line.split() for line in output.splitlines() if not line.startswith("#")]
        return sum(int(row[3]) - int(row[2]) for row in rows if len(row) > 3 and row[3].isdigit())

    async def _of_routed(self, command: str, topic: str) -> str:
        """What it prints of a topic; nothing while the name server does not know the topic."""
        try:
            return await self._tool(command, "-t", topic)
        except InteropError as error:
            if "No topic route info" not in str(error):
                raise
            return ""

    async def kill_master(self) -> None:
        """It comes back as a replica: others are to find a whole cluster."""
        rocketmq, self._was_killed = self._owned, True
        assert rocketmq is not None, "only of a RocketMQ that the tests started"
        await rocketmq.wait_for_replicas()
        killed = await rocketmq.kill_master()
        await rocketmq.start_broker(rocketmq.brokers.index(killed))

    async def _create(self, command: str, made: list[dict[str, Any]]) -> None:
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            file.write(orjson.dumps(made))
            file.flush()
            await self._tool(command, "-c", CLUSTER, "-f", file.name)

    async def _tool(self, *arguments: str) -> str:
        return await mqadmin(*arguments, nameserver=self.nameserver)


def _topic(name: str, kind: str) -> dict[str, Any]:
    return {
        "topicName": name,
        "readQueueNums": 4,
        "writeQueueNums": 4,
        "perm": 6,
        "attributes": {"+message.type": kind},
    }


def _new_name(prefix: str) -> str:
    return f"{prefix}-{uuid4().hex[:12]}"
