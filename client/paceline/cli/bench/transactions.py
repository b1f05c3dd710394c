"""The bench case of transactions: half, local transaction, confirmed commit, 64 at a time."""

import asyncio
import time

from paceline.admin.client import AdminClient
from paceline.cli.bench.cases import BenchSetting, figures_of
from paceline.cli.bench.figures import Figures
from paceline.consumer.pull import PullConsumer
from paceline.errors import ConfigError
from paceline.message import Message
from paceline.producer.transaction import HalfMessage, TransactionProducer, TransactionState
from paceline.types import TopicName

IN_FLIGHT = 64
QUEUES = 4
WARM_UP_S = 0.5


def _commit(half: HalfMessage) -> TransactionState:
    return TransactionState.COMMIT


async def transactions(setting: BenchSetting) -> Figures:
    """One worker for each in flight; a latency is that of a whole transaction. In the end every
    committed message is counted in its queue."""
    topic = TopicName(f"{setting.topic}-transactions")
    async with AdminClient(setting.bootstrap) as admin:
        await admin.topics.create(topic, queues=QUEUES, message_type="TRANSACTION")
    message = Message(topic, setting.bodies[0])
    latencies_ms: list[float] = []
    warm_until = time.perf_counter() + WARM_UP_S
    stop_at = warm_until + setting.seconds
    done = 0

    async def work(producer: TransactionProducer) -> None:
        nonlocal done
        while (began := time.perf_counter()) < stop_at:
            result = await producer.send_in_transaction(message)
            if not result.is_ended:
                raise ConfigError(f"a transaction did not end: {result.error}")
            done += 1
            if began >= warm_until:
                latencies_ms.append((time.perf_counter() - began) * 1000)

    async with TransactionProducer(
        setting.bootstrap, group="bench-transactions", execute=_commit
    ) as producer:
        setting.meter.start()
        await asyncio.gather(*(work(producer) for _ in range(IN_FLIGHT)))
    async with PullConsumer(setting.bootstrap) as reader:
        ranges = await reader.ranges(await reader.queues(topic))
    stored = sum(queue.end - queue.start for queue in ranges.values())
    if stored != done:
        raise ConfigError(f"{done} transactions were committed, {stored} messages are there")
    return figures_of(
        setting,
        case="transactions",
        seconds=setting.seconds,
        messages=len(latencies_ms),
        inflight=IN_FLIGHT,
        latencies_ms=latencies_ms,
    )
