"""`python -m tests.interop.bench [CASE ...]`: RocketMQ's clients as load, and what they cost.

- `python`: the gRPC client of Python, against a server that forgets what it takes, and a gateway.
- `java`: the remoting client of Java 5.5, pipelined, here and at a RocketMQ 5.5.
- `raw`: calls without a client's library, to see what a gateway costs.
- `wait`: how long a message takes to a simple consumer that waits for it.

Targets take turns, round by round: the machine is the same for all of them.
"""

import argparse
import asyncio
import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import median

import orjson
from interop.jobs import Job
from interop.judge import Event
from interop.programs import Program
from interop.rocketmq import RocketMQ
from tests.interop.peers import PacelinePeer, Peer, ToolsPeer
from tests.support.gateway.grpc_client import RawClient
from tests.support.gateway.remoting import RemotingClient
from tests.support.process.harness import RunningCluster, running_cluster

from paceline.cli.bench.figures import CpuMeter, percentile
from paceline.message import Message
from paceline.platform.runtime import SystemClock, pause
from paceline.producer.producer import Producer

ROUNDS = 3
BODY_BYTES = 256
PYTHON_COUNT = 1_500
JAVA_COUNT = 200_000
JAVA_IN_FLIGHT = 512
RAW_SECONDS = 5.0
WAITS = 300
WAIT_EVERY_MS = 40
Row = dict[str, object]


class Bench:
    """One local cluster, and what is measured on it."""

    def __init__(self, cluster: RunningCluster, folder: Path) -> None:
        self.peer = PacelinePeer(cluster)
        self._cluster = cluster
        self._folder = folder
        self._runs = itertools.count()

    async def python(self) -> AsyncIterator[Row]:
        async with _an_empty_server() as empty:
            targets = {"empty server": empty, "paceline": self.peer.grpc_endpoint}
            topic = await self.peer.topic("NORMAL")
            for in_flight in (1, 64):
                rates: dict[str, list[float]] = {name: [] for name in targets}
                for _, (name, endpoint) in itertools.product(range(ROUNDS), targets.items()):
                    job = Job(
                        scenario="load",
                        endpoint=endpoint,
                        topic=topic,
                        count=PYTHON_COUNT,
                        in_flight=in_flight,
                        body_size=BODY_BYTES,
                    )
                    rates[name].append(await self._load("python_grpc", job))
                found = {name: median(values) for name, values in rates.items()}
                for name, rate in found.items():
                    share = rate / found["empty server"]
                    yield _row("python", name, in_flight, per_s=rate, of_the_empty=share)

    async def java(self) -> AsyncIterator[Row]:
        rocketmq = RocketMQ(is_measured=True)
        await rocketmq.start()
        try:
            other = ToolsPeer(
                grpc_endpoint=rocketmq.grpc_endpoint, nameserver=rocketmq.nameserver, owned=rocketmq
            )
            peers: tuple[Peer, ...] = (self.peer, other)
            topics = {peer.name: await peer.topic("NORMAL") for peer in peers}
            rates: dict[str, list[float]] = {peer.name: [] for peer in peers}
            costs: dict[str, list[float]] = {peer.name: [] for peer in peers}
            for _, peer in itertools.product(range(ROUNDS), peers):
                job = Job(
                    scenario="load",
                    nameserver=peer.nameserver,
                    topic=topics[peer.name],
                    group="load",
                    count=JAVA_COUNT,
                    in_flight=JAVA_IN_FLIGHT,
                    body_size=BODY_BYTES,
                    access_key="",
                    secret_key="",
                )
                pids = self._pids() if peer is self.peer else rocketmq.pids()
                meter = CpuMeter(pids)
                rates[peer.name].append(await self._load("java_remoting", job, meter=meter))
                costs[peer.name].append(sum(meter.per_message(JAVA_COUNT).values()))
            for peer in peers:
                yield _row(
                    "java",
                    peer.name,
                    JAVA_IN_FLIGHT,
                    per_s=median(rates[peer.name]),
                    servers_us=median(costs[peer.name]),
                )
        finally:
            await rocketmq.stop()

    async def raw(self) -> AsyncIterator[Row]:
        topic = await self.peer.topic("NORMAL")
        body = b"x" * BODY_BYTES
        async with RawClient(int(self.peer.grpc_endpoint.rpartition(":")[2])) as client:
            for in_flight, batch in ((1, 1), (64, 1), (16, 32)):

                async def send(_: int, batch: int = batch) -> int:
                    answer = await client.send(*(client.message(topic, body) for _ in range(batch)))
                    assert answer.status.code == 20000, answer
                    return batch

                yield await self._raw(f"gRPC, {batch} a call", in_flight, send)
        async with AsyncExitStack() as stack:
            remoting = await self._remoting_clients(stack, topic)

            async def ask(number: int) -> int:
                client = remoting[number % len(remoting)]
                answer = await client.begin_send(body, topic, queue_id=number % 4)
                assert answer.code == 0, answer.remark
                return 1

            for in_flight in (1, 64, 256):
                yield await self._raw("remoting", in_flight, ask)

    async def wait(self) -> AsyncIterator[Row]:
        for client in ("python_grpc", "java_grpc"):
            topic = await self.peer.topic("NORMAL")
            group = await self.peer.group(is_ordered=False, retries_max=16)
            job = Job(
                scenario="simple",
                endpoint=self.peer.grpc_endpoint,
                topic=topic,
                group=group,
                await_ms=15_000,
                batch=1,
            )
            program = await self._program(client, job)
            sent_ms: dict[str, float] = {}
            async with Producer(self._cluster.bootstrap) as producer:
                for number in range(WAITS):
                    await pause(WAIT_EVERY_MS)
                    sent_ms[str(number)] = SystemClock().unix_ms()
                    await producer.send(Message(topic=topic, body=str(number).encode()))
            await program.until(
                lambda events: sum(event["event"] == "received" for event in events) >= WAITS,
                what="all were received",
            )
            events = await program.stop()
            waits = [
                event["at_unix_ms"] - sent_ms[event["body"]]
                for event in events
                if event["event"] == "received" and int(event["body"]) >= WAITS // 10
            ]
            yield _row(
                "wait",
                client,
                1,
                p50_ms=percentile(waits, 0.5),
                p99_ms=percentile(waits, 0.99),
                max_ms=percentile(waits, 1.0),
            )

    async def _load(self, client: str, job: Job, meter: CpuMeter | None = None) -> float:
        """Messages a second; `meter` runs while they are sent."""
        program = await self._program(client, job)
        await program.until(lambda events: _told(events, "warm"), what="it is warm", within_s=120)
        if meter is not None:
            meter.start()
        await program.until(lambda events: _told(events, "measured"), what="all is sent")
        found = next(event for event in program.events if event["event"] == "measured")
        assert not found["failed"], found
        await program.finish()
        return float(job.count / found["seconds"])

    async def _program(self, client: str, job: Job) -> Program:
        program = await Program.start(client, job, self._folder / str(next(self._runs)))
        await program.ready()
        return program

    async def _raw(self, what: str, in_flight: int, send: Callable[[int], Awaitable[int]]) -> Row:
        count = 0

        async def worker(number: int, until: float) -> None:
            nonlocal count
            while time.perf_counter() < until:
                sent = await send(number)
                count += sent

        async def run(seconds: float) -> float:
            nonlocal count
            count, began = 0, time.perf_counter()
            until = began + seconds
            await asyncio.gather(*(worker(number, until) for number in range(in_flight)))
            return time.perf_counter() - began

        await run(RAW_SECONDS / 5)
        meter = CpuMeter(self._pids())
        meter.start()
        seconds = await run(RAW_SECONDS)
        costs = meter.per_message(count)
        gateway = sum(us for name, us in costs.items() if name.startswith("gw"))
        brokers = sum(us for name, us in costs.items() if name.startswith("g1"))
        return _row(
            "raw", what, in_flight, per_s=count / seconds, gateway_us=gateway, brokers_us=brokers
        )

    async def _remoting_clients(self, stack: AsyncExitStack, topic: str) -> list[RemotingClient]:
        async def connected(address: str) -> RemotingClient:
            client = await RemotingClient.connect(address)
            stack.push_async_callback(client.close)
            return client

        route = await (await connected(self.peer.nameserver)).ask(105, {"topic": topic})
        address = orjson.loads(route.body)["brokerDatas"][0]["brokerAddrs"]["0"]
        return [await connected(address) for _ in range(4)]

    def _pids(self) -> dict[str, int]:
        return {node["name"]: node["pid"] for node in self._cluster.nodes()}


def _told(events: list[Event], what: str) -> bool:
    return any(event["event"] == what for event in events)


def _row(case: str, what: str, in_flight: int, **figures: float | None) -> Row:
    rounded = {
        name: None if value is None else round(value, 2 if value < 100 else None)
        for name, value in figures.items()
    }
    return {"case": case, "what": what, "in_flight": in_flight, **rounded}


@asynccontextmanager
async def _an_empty_server() -> AsyncIterator[str]:
    """Its address."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.interop.empty_server"), stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        yield f"127.0.0.1:{int(await process.stdout.readline())}"
    finally:
        process.terminate()
        await process.wait()


async def _run(cases: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with running_cluster(folder / "data", "--doors", "grpc,remoting") as cluster:
            bench = Bench(cluster, folder)
            for case in cases:
                async for row in getattr(bench, case)():
                    sys.stdout.write(orjson.dumps(row).decode() + "\n")
                    sys.stdout.flush()


CASES = ("raw", "python", "wait", "java")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the doors.")
    parser.add_argument("case", nargs="*", choices=[*CASES, []], help="all by default")
    asyncio.run(_run(parser.parse_args().case or list(CASES)))


if __name__ == "__main__":
    main()
