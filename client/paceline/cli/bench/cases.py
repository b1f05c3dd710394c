"""The cases of the bench. Each drives one cluster from this one process and returns `Figures`."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

import orjson

from paceline.admin.client import AdminClient
from paceline.cli.bench.figures import CpuMeter, Figures
from paceline.cli.bench.http import post_again_and_again, post_request
from paceline.consumer.pull import PullConsumer
from paceline.errors import ConfigError
from paceline.message import Message
from paceline.net.connect import Bootstrap
from paceline.platform.runtime import SystemRandom, pause
from paceline.producer.producer import Producer
from paceline.records.encode import encode_batch
from paceline.records.header import RECORDS_MAX
from paceline.types import TopicName

BULK_BATCH_BYTES = 1024 * 1024
BULK_IN_FLIGHT = 4
WARM_UP_S = 0.5
JSON_CONNECTIONS = 64
COMMIT_INTERVAL_S = 1.0
BODIES, BODIES_BYTES = 64, 4 * 1024 * 1024
FILL_QUEUES = 4
FILL_BYTES = 384 * 1024 * 1024  # a second or more of reading at the goal of 400k msg/s
FILL_BATCH_BYTES = 128 * 1024  # some hundred messages a batch, as busy producers make them
BATCH_CONTENT_TYPE = "application/vnd.paceline.batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSetting:
    """What all cases of one run share."""

    bootstrap: Bootstrap
    topic: TopicName
    size: int
    seconds: float
    replicas: int
    durability: str
    meter: CpuMeter
    bodies: Sequence[bytes]
    """Of `size` random bytes each: what is compressed, or copied once, would look too cheap."""


def random_bodies(size: int) -> list[bytes]:
    """Some, of 4 MiB in all at most."""
    random = SystemRandom()
    return [random.token(size) for _ in range(max(1, min(BODIES, BODIES_BYTES // size)))]


async def produce(setting: BenchSetting, *, inflight: int) -> Figures:
    """`inflight` workers, each awaiting its message's acknowledgement before the next."""
    messages = cycle([Message(setting.topic, body) for body in setting.bodies])
    async with Producer(setting.bootstrap) as producer:

        async def work(latencies_ms: list[float], stop_at: float) -> None:
            while (began := time.perf_counter()) < stop_at:
                await producer.send(next(messages))
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
    bodies = list(islice(cycle(setting.bodies), count))
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


async def create_topic(bootstrap: Bootstrap, topic: TopicName, *, queues: int) -> None:
    """Make the topic all cases send to."""
    async with AdminClient(bootstrap) as admin:
        await admin.topics.create(topic, queues=queues)


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
        topic = await admin.topics.get(setting.topic)
    body = setting.bodies[0]
    batch = encode_batch([body], born_unix_ms=0, topic_id=topic.topic_id, queue_id=0)
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


async def consume(setting: BenchSetting, *, as_messages: bool) -> Figures:
    """Read a filled topic from its start, CRCs checked, offsets committed each second."""
    topic = TopicName(f"{setting.topic}-consume")
    filled = await fill(setting, topic)
    group = "bench-messages" if as_messages else "bench-bodies"  # each begins anew
    received = 0
    async with PullConsumer(setting.bootstrap) as consumer:
        await consumer.subscribe(topic)
        setting.meter.start()
        began = time.perf_counter()
        commit_at = began + COMMIT_INTERVAL_S
        while received < filled:
            if as_messages:
                received += len(await consumer.poll(max_messages=RECORDS_MAX))
            else:
                batch = await consumer.poll_batch()
                received += 0 if batch is None else len(batch.view.bodies())
            if time.perf_counter() >= commit_at:
                commit_at += COMMIT_INTERVAL_S
                await consumer.commit(group)
        await consumer.commit(group)
        seconds = time.perf_counter() - began
    return figures_of(
        setting,
        case="consume-messages" if as_messages else "consume-bodies",
        seconds=seconds,
        messages=received,
    )


async def fill(setting: BenchSetting, topic: TopicName) -> int:
    """A topic with `FILL_BYTES` of messages; how many it holds."""
    async with AdminClient(setting.bootstrap) as admin, PullConsumer(setting.bootstrap) as reader:
        if any(known.topic == topic for known in await admin.topics.all()):
            ranges = await reader.ranges(await reader.queues(topic))
            return sum(queue.end - queue.start for queue in ranges.values())
    await create_topic(setting.bootstrap, topic, queues=FILL_QUEUES)
    count = max(1, FILL_BYTES // setting.size)
    chunk = max(1, FILL_BATCH_BYTES // (setting.size + 64))
    async with Producer(setting.bootstrap) as producer:
        for sent in range(0, count, chunk):
            some = islice(cycle(setting.bodies), min(chunk, count - sent))
            await producer.send_bodies(topic, list(some))
    return count


async def end_to_end(setting: BenchSetting) -> Figures:
    """One message at a time: from `send` until a waiting consumer has it."""
    topic = TopicName(f"{setting.topic}-latency")
    await create_topic(setting.bootstrap, topic, queues=1)
    latencies_ms: list[float] = []
    async with Producer(setting.bootstrap) as producer, PullConsumer(setting.bootstrap) as consumer:
        await consumer.subscribe(topic)
        message = Message(topic, setting.bodies[0])
        warm_until = time.perf_counter() + WARM_UP_S
        stop_at = warm_until + setting.seconds
        setting.meter.start()
        while (began := time.perf_counter()) < stop_at:
            sending = producer.send(message)
            while not await consumer.poll():
                pass
            if began >= warm_until:
                latencies_ms.append((time.perf_counter() - began) * 1000)
            await sending
    return figures_of(
        setting,
        case="end-to-end",
        seconds=setting.seconds,
        messages=len(latencies_ms),
        latencies_ms=latencies_ms,
    )


def figures_of(
    setting: BenchSetting,
    *,
    case: str,
    seconds: float,
    messages: int,
    path: str = "stream",
    inflight: int = 1,
    latencies_ms: Sequence[float] = (),
    warm_up_per_s: float | None = None,
) -> Figures:
    """What was measured, with what all cases of the run share."""
    return Figures(
        case=case,
        path=path,
        replicas=setting.replicas,
        durability=setting.durability,
        size=setting.size,
        inflight=inflight,
        messages=messages,
        seconds=seconds,
        latencies_ms=latencies_ms,
        cpu_us_per_message=setting.meter.per_message(messages),
        warm_up_per_s=warm_up_per_s,
    )


async def _measure(
    setting: BenchSetting,
    case: str,
    path: str,
    inflight: int,
    run: Callable[[float], Awaitable[list[float]]],
) -> Figures:
    """Warm up, then measure `run(seconds)`, which returns a latency for each message."""
    warm_up = await run(WARM_UP_S)
    await pause(50)  # let the warm-up's tail leave the CPU figures
    setting.meter.start()
    began = time.perf_counter()
    latencies_ms = await run(setting.seconds)
    seconds = time.perf_counter() - began
    return figures_of(
        setting,
        case=case,
        path=path,
        inflight=inflight,
        seconds=seconds,
        messages=len(latencies_ms),
        latencies_ms=latencies_ms,
        warm_up_per_s=len(warm_up) / WARM_UP_S,
    )
