"""Readers: any replica over HTTP, and the library's pull consumer with offsets of a group.

The HTTP reader asks another broker each time, replicas too, and goes on at the next offset: what
any of them shows must be the same message for ever (S2, S10), without a gap (S9).
"""

import base64
from collections import defaultdict
from typing import Any
from urllib.parse import quote

from paceline.consumer.pop.popped_message import PoppedMessage
from paceline.consumer.pull import PullConsumer, PullSettings
from paceline.errors import OffsetOutOfRangeError, PacelineError
from paceline.message import ReceivedMessage
from paceline.net.cluster import Cluster
from paceline.platform.runtime import pause
from paceline.queues import QueueName
from paceline.types import GroupName, QueueId, TopicName
from paceline_chaos.cluster_sim.bodies import crc_of, value_of
from paceline_chaos.cluster_sim.jobs.around import (
    CALL_TIMEOUT_MS,
    Around,
    addresses_of,
    queues_in,
)
from paceline_chaos.history.model import Commit, Deliver, Pull, QueryOffset, QueryRange, Queue, Seen
from paceline_chaos.history.recorder import Asking

_READ_MESSAGES_MAX = 100
_FROM_THE_START = 0.01
"""Chance that a reader begins a queue again."""
_BEYOND = (1, 2, 1_000)
"""So many offsets beyond the end; a few are soon there, and messages are the answer."""
_BEYOND_TURNS, _BEYOND_POLL_MS, _BEYOND_PAUSE_MS = 20, 500, 300.0


def seen(offset: int, body: bytes) -> Seen:
    """A message as it was shown."""
    return Seen(offset, value_of(body), crc_of(body))


def asking_to_process(
    around: Around, group: str, member: str, message: ReceivedMessage | PoppedMessage, **more: Any
) -> Asking[Deliver]:
    """The entry of a message that a member was given; `more` members of it."""
    return around.recorder.asking(
        Deliver,
        client=around.client,
        consumer_group=group,
        member=member,
        queue=Queue(message.topic, message.group, message.queue_id),
        message=seen(message.queue_offset, message.body),
        **more,
    )


async def pull_http(
    cluster: Cluster, around: Around, address: str, queue: Queue, offset: int, assignment: str
) -> tuple[Seen, ...] | PacelineError:
    """Ask one broker for messages of a queue from `offset` on, and record it."""
    path = f"/v1/topics/{quote(queue.topic, safe='')}/queues/{queue.queue}/messages"
    parameters = {"offset": str(offset), "max_messages": str(_READ_MESSAGES_MAX)}
    with around.recorder.asking(
        Pull,
        client=around.client,
        queue=queue,
        offset=offset,
        assignment=assignment,
        node=around.node(address),
    ) as asking:
        try:
            answer = await cluster.http.get(
                address, path, params=parameters, timeout_ms=CALL_TIMEOUT_MS
            )
        except PacelineError as error:
            asking.raised(error)
            return error
        rows = tuple(seen(row["offset"], _body_of(row)) for row in answer["messages"])
        asking.ok(messages=rows, start=answer["start"], end=answer["end"])
        return rows


def first_of(error: OffsetOutOfRangeError, offset: int) -> int:
    """Where to go on: what was asked for is deleted, or was never there."""
    start = error.details.get("start")
    return start if isinstance(start, int) and start > offset else offset


def _body_of(row: dict[str, Any]) -> bytes:
    if "body_base64" in row:
        return base64.b64decode(row["body_base64"])
    text: str = row["body"]
    return text.encode()


class Reader:
    """Reads every queue of the topic over HTTP, each time from another broker."""

    def __init__(self, around: Around) -> None:
        self._around = around
        self._next: dict[Queue, int] = {}
        self._turns: defaultdict[Queue, int] = defaultdict(int)

    async def run(self) -> None:
        """Read until it is over."""
        around = self._around
        cluster = around.cluster()
        cluster.start()
        try:
            while not around.is_over():
                for queue in queues_in(cluster, around.topic):
                    await self._read(cluster, queue)
                    await around.think()
                if not queues_in(cluster, around.topic):
                    await around.think()
        finally:
            await cluster.close()

    async def _read(self, cluster: Cluster, queue: Queue) -> None:
        around = self._around
        addresses = addresses_of(cluster, queue.group)
        if not addresses:
            return
        if around.happens(_FROM_THE_START):
            self._turns[queue] += 1
            self._next[queue] = 0
        assignment = f"{around.alias}/http-{self._turns[queue]}"
        offset = self._next.get(queue, 0)
        rows = await pull_http(cluster, around, around.choice(addresses), queue, offset, assignment)
        if isinstance(rows, OffsetOutOfRangeError):
            self._next[queue] = first_of(rows, offset)
        elif rows and not isinstance(rows, PacelineError):
            self._next[queue] = rows[-1].offset + 1


class Puller:
    """The library's pull consumer: reads, commits for a group of its own, asks for offsets."""

    def __init__(self, around: Around) -> None:
        self._around = around
        self._group = f"pull-{around.client}"
        self._round = 0

    async def run(self) -> None:
        """One consumer after another until it is over."""
        around = self._around
        while not around.is_over():
            self._round += 1
            cluster = around.cluster()
            consumer = PullConsumer(cluster, settings=PullSettings(call_timeout_ms=CALL_TIMEOUT_MS))
            async with around.session(consumer.close, cluster.close):
                await consumer.start()
                await self._consume(consumer)

    async def _consume(self, consumer: PullConsumer) -> None:
        around = self._around
        names = await consumer.queues(around.topic)
        positions = {name: await self._start_of(consumer, name) for name in names}
        await consumer.assign(positions)
        for _ in around.turns(300):
            await self._poll(consumer, positions)
            if around.happens(0.25):
                await self._commit(consumer, around.choice(names), positions)
            if around.happens(0.1):
                await self._query_offset(consumer, around.choice(names), self._group)
            if around.happens(0.1):
                await self._query_range(consumer, around.choice(names))
            if around.happens(0.1):
                await self._query_offset(consumer, around.choice(names), "push-1")
            await around.think()

    async def _start_of(self, consumer: PullConsumer, name: QueueName) -> int:
        """Where the group stands; what is deleted there is passed over."""
        committed = await self._query_offset(consumer, name, self._group) or 0
        return max(committed, await self._query_range(consumer, name))

    async def _poll(self, consumer: PullConsumer, positions: dict[QueueName, int]) -> None:
        around = self._around
        asked_us = around.recorder.now_us()
        try:
            messages = await consumer.poll(max_messages=200, timeout_ms=int(around.think_ms))
        except OffsetOutOfRangeError as error:
            for name, offset in positions.items():  # which one is not said: all are asked again
                around.recorder.asking(
                    Pull, client=around.client, queue=history_queue(name), offset=offset
                ).raised(error)
            raise
        by_queue: dict[QueueName, list[ReceivedMessage]] = {}
        for message in messages:
            by_queue.setdefault(_queue_of(message), []).append(message)
        for name, rows in by_queue.items():
            around.recorder.asking(
                Pull,
                client=around.client,
                queue=history_queue(name),
                offset=positions[name],
                asked_us=asked_us,
                assignment=f"{around.alias}/pull-{self._round}",
            ).ok(messages=tuple(seen(row.queue_offset, row.body) for row in rows))
            positions[name] = rows[-1].queue_offset + 1

    async def _commit(
        self, consumer: PullConsumer, name: QueueName, positions: dict[QueueName, int]
    ) -> None:
        around = self._around
        offset, is_reset = positions[name], around.happens(0.05)
        if is_reset:
            offset = around.whole(0, offset)
        with around.recorder.asking(
            Commit,
            client=around.client,
            consumer_group=self._group,
            member=around.client,
            queue=history_queue(name),
            offset=offset,
            is_reset=is_reset,
        ) as asking:
            try:
                taken = await consumer.commit(self._group, {name: offset}, reset=is_reset)
            except PacelineError as error:
                asking.raised(error)
            else:
                asking.ok(is_provisional=name.group in taken)

    async def _query_offset(
        self, consumer: PullConsumer, name: QueueName, group: str
    ) -> int | None:
        around = self._around
        with around.recorder.asking(
            QueryOffset,
            client=around.client,
            consumer_group=group,
            queue=history_queue(name),
        ) as asking:
            try:
                committed = await consumer.committed(group, [name])
            except PacelineError as error:
                asking.raised(error)
                return None
            found = committed[name]
            asking.ok(offset=found, maybe_stale=name.group in committed.stale_groups)
            return found

    async def _query_range(self, consumer: PullConsumer, name: QueueName) -> int:
        """The first offset; 0 if nobody said it."""
        around = self._around
        with around.recorder.asking(
            QueryRange, client=around.client, queue=history_queue(name)
        ) as asking:
            try:
                found = (await consumer.ranges([name]))[name]
            except PacelineError as error:
                asking.raised(error)
                return 0
            asking.ok(start=found.start, end=found.end, maybe_stale=found.maybe_stale)
            return int(found.start)


class Beyond:
    """Reads one queue from beyond its end, and the others from theirs.

    The master answers with the queue's range, after a read round has confirmed that it is the
    master (R3). That answer is judged like any other about a range (S19, S28), and has to come
    (L11).
    """

    def __init__(self, around: Around) -> None:
        self._around = around.apart("beyond")

    async def run(self) -> None:
        """One consumer after another until it is over."""
        around = self._around
        while not around.is_over():
            cluster = around.cluster()
            consumer = PullConsumer(cluster, settings=PullSettings(call_timeout_ms=CALL_TIMEOUT_MS))
            async with around.session(consumer.close, cluster.close):
                await consumer.start()
                names = await consumer.queues(around.topic)
                for _ in around.turns(_BEYOND_TURNS):
                    await self._ask(consumer, names)
                    await pause(around.random.uniform(0, _BEYOND_PAUSE_MS))

    async def _ask(self, consumer: PullConsumer, names: list[QueueName]) -> None:
        around = self._around
        name = around.choice(names)
        end = (await consumer.ranges([name]))[name].end
        offset = end + around.choice(_BEYOND)
        with around.recorder.asking(
            QueryRange, client=around.client, queue=history_queue(name)
        ) as asking:
            await consumer.assign({**dict.fromkeys(names, "last"), name: offset})
            await wait_for_range(around, consumer, name, asking)


async def wait_for_range(
    around: Around, consumer: PullConsumer, name: QueueName, asking: Asking[QueryRange]
) -> None:
    """Poll until the consumer is told the range of a queue from beyond whose end it reads, or gets
    a message of it; enter the answer."""
    while not around.is_over():
        try:
            messages = await consumer.poll(timeout_ms=_BEYOND_POLL_MS)
        except OffsetOutOfRangeError as error:
            told = error.details
            if told["queue"] == list(name):
                asking.ok(start=told["start"], end=told["end"])
                return
        else:
            if any(_queue_of(message) == name for message in messages):
                asking.ok()  # it has grown; how far, this does not say
                return


def _queue_of(message: ReceivedMessage) -> QueueName:
    return QueueName(TopicName(message.topic), GroupName(message.group), QueueId(message.queue_id))


def history_queue(name: QueueName) -> Queue:
    """As histories name it."""
    return Queue(str(name.topic), str(name.group), int(name.queue_id))
