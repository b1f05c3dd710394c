"""The cases of the bench. Each drives one cluster from this one process and returns `Figures`."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import orjson

from paceline.admin import AdminClient
from paceline.cli.bench_figures import CpuMeter, Figures
from paceline.cli.bench_http import post_again_and_again, post_request
from paceline.errors import ConfigError
from paceline.message import Message
from paceline.producer import Producer
from paceline.records.encode import encode_batch
from paceline.runtime import pause
from paceline.types import TopicName

BULK_BATCH_BYTES = 1024 * 1024
BULK_IN_FLIGHT = 4
WARM_UP_S = 0.5
JSON_CONNECTIONS = 64
BATCH_CONTENT_TYPE = "application/vnd.paceline.batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSetting:
    """What all cases of one run share."""

    bootstrap: str
    topic: TopicName
    size: int
    seconds: float
    replicas: int
    durability: str
    meter: CpuMeter


async def produce(setting: BenchSetting, *, inflight: int) -> Figures:
    """`inflight` workers, each awaiting its message's acknowledgement before the next."""
    message = Message(setting.topic, b"x" * setting.size)
    async with Producer(setting.bootstrap) as producer:

        async def work(latencies_ms: list[float], stop_at: float) -> None:
            while (began := time.perf_counter()) < stop_at:
                await producer.send(message)
                latencies_ms.append((time.perf_counter() - began) * 1000)

        async def run(seconds: float) -> list[float]:
            latencies_ms: list[float] = []
            stop_at = time.perf_counter() + seconds
            await asyncio.gather(*(work(latencies_ms, stop_at) for _ in range(inflight)))
            return latencies_ms

        return await _measure(setting, "produce", "stream", inflight, run)


async def bulk(setting: BenchSetting) -> Figures:
    """Batches of 1 MiB, a few in flight: MB/s acknowledged."""
    count = max(1, BULK_BATCH_BYTES // (setting.size + 64))
    bodies = [b"x" * setting.size] * count
    async with Producer(setting.bootstrap) as producer:

        async def work(latencies_ms: list[float], stop_at: float) -> None:
            while (began := time.perf_counter()) < stop_at:
                await producer.send_bodies(setting.topic, bodies)
                took = (time.perf_counter() - began) * 1000
                latencies_ms.extend([took] * count)

        async def run(seconds: float) -> list[float]:
            latencies_ms: list[float] = []
            stop_at = time.perf_counter() + seconds
            await asyncio.gather(*(work(latencies_ms, stop_at) for _ in range(BULK_IN_FLIGHT)))
            return latencies_ms

        return await _measure(setting, "bulk", "stream", BULK_IN_FLIGHT, run)


async def create_topic(bootstrap: str, topic: TopicName, *, queues: int) -> None:
    """Make the topic all cases send to."""
    async with AdminClient(bootstrap) as admin:
        await admin.create_topic(topic, queues=queues)


async def run_case(
    case: str, setting: BenchSetting, *, inflight: Sequence[int], master_address: str
) -> list[Figures]:
    """All figures of one named case."""
    match case:
        case "produce":
            return [await produce(setting, inflight=number) for number in inflight]
        case "bulk":
            return [await bulk(setting)]
        case "json":
            return [await post_json(setting, master_address)]
        case "post":
            return [await post_batch(setting, master_address)]
        case "consume":
            return [await consume(setting, as_messages=kind) for kind in (False, True)]
        case "latency":
            return [await end_to_end(setting)]
        case _:
            raise ConfigError(f"no case {case!r}")


async def post_batch(setting: BenchSetting, address: str) -> Figures:
    """One record batch of one message a request, raw keep-alive connections."""
    async with AdminClient(setting.bootstrap) as admin:
        topic = await admin.topic(setting.topic)
    batch = encode_batch([b"x" * setting.size], born_unix_ms=0, topic_id=topic.topic_id, queue_id=0)
    path = f"/v1/topics/{setting.topic}/queues/0/batches"
    request = post_request(address, path, batch, content_type=BATCH_CONTENT_TYPE)

    async def run(seconds: float) -> list[float]:
        return await post_again_and_again(
            address, request, connections=JSON_CONNECTIONS, seconds=seconds
        )

    return await _measure(setting, "produce", "post", JSON_CONNECTIONS, run)


async def post_json(setting: BenchSetting, address: str) -> Figures:
    """One JSON message a request, raw keep-alive connections, to the master at `address`."""
    body = orjson.dumps({"messages": [{"body": "x" * setting.size}]})
    request = post_request(
        address, f"/v1/topics/{setting.topic}/messages", body, content_type="application/json"
    )

    async def run(seconds: float) -> list[float]:
        return await post_again_and_again(
            address, request, connections=JSON_CONNECTIONS, seconds=seconds
        )

    return await _measure(setting, "produce", "json", JSON_CONNECTIONS, run)


async def _measure(
    setting: BenchSetting,
    case: str,
    path: str,
    inflight: int,
    run: Callable[[float], Awaitable[list[float]]],
) -> Figures:
    """Warm up, then measure `run(seconds)`, which returns a latency for each message."""
    await run(WARM_UP_S)
    await pause(50)  # let the warm-up's tail leave the CPU figures
    setting.meter.start()
    began = time.perf_counter()
    latencies_ms = await run(setting.seconds)
    seconds = time.perf_counter() - began
    return Figures(
        case=case,
        path=path,
        replicas=setting.replicas,
        durability=setting.durability,
        size=setting.size,
        inflight=inflight,
        messages=len(latencies_ms),
        seconds=seconds,
        latencies_ms=latencies_ms,
        cpu_us_per_message=setting.meter.per_message(len(latencies_ms)),
    )
