"""Load on a running cluster, and the judge of what is left of it in the files.

Sixteen workers send keyed messages, each waiting for its acknowledgement; a reader asks all brokers
in turn, replicas too, for what they show. After the cluster has stopped the judge reads the logs
itself (logs.py): the code that wrote them has no say.
"""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import cycle, pairwise
from typing import Any, NamedTuple

import aiohttp
import orjson
from tests.support.process.harness import (
    RunningCluster,
    broker_statuses,
    eventually,
    http_session,
    the_master,
)
from tests.support.process.logs import StoredRecord, confirmed_end, log_bytes, stored_records

from paceline.admin.client import AdminClient
from paceline.errors import PacelineError
from paceline.message import Message
from paceline.platform.runtime import SystemClock, cancel_and_wait, pause, spawn
from paceline.producer.producer import Producer
from paceline.wire.topics import MIXED

WORKERS = 16
QUEUES = 4
SEGMENT_BYTES = 1024 * 1024
"""The least that is allowed, so that logs of tests have several segments."""


class Place(NamedTuple):
    """Where a message is; for ever the same message (INV-7)."""

    group: str
    queue_id: int
    queue_offset: int


class Acknowledgement(NamedTuple):
    """One acknowledged message."""

    place: Place
    body: bytes
    epoch: int
    at_ms: int


@dataclass
class Load:
    """What the workers were told and what the reader saw."""

    topic: str
    topic_id: int
    filler: str = ""
    """In each body, to make it large."""
    acknowledged: list[Acknowledgement] = field(default_factory=list)
    """In order of arrival."""
    read: dict[Place, bytes] = field(default_factory=dict)
    """Shown to the reader by any broker at any time."""
    failed: list[PacelineError] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.acknowledged)

    def gap_ms_max(self) -> int:
        """The longest time without an acknowledgement."""
        times = [entry.at_ms for entry in self.acknowledged]
        return max((later - earlier for earlier, later in pairwise(times)), default=0)

    async def work(self, producer: Producer, worker: int) -> None:
        clock = SystemClock()
        row = 0
        while True:
            body = orjson.dumps([worker, row, self.filler])
            try:
                result = await producer.send(Message(self.topic, body, key=f"worker-{worker}"))
            except PacelineError as error:
                self.failed.append(error)
                return
            place = Place(result.group, result.queue_id, result.queue_offset)
            now = clock.monotonic_ms()
            self.acknowledged.append(Acknowledgement(place, body, result.epoch, now))
            row += 1

    async def watch(self, cluster: RunningCluster) -> None:
        """Read every queue from its first message on, each time from another broker."""
        groups = cluster.groups()
        turns = {group: cycle(cluster.brokers(group)) for group in groups}
        next_offset = {(group, queue): 0 for group in groups for queue in range(QUEUES)}
        async with http_session() as session:
            while True:
                for (group, queue), offset in next_offset.items():
                    address = next(turns[group])["address"]
                    rows = await pulled(session, address, self.topic, queue, offset)
                    for at, body in rows:
                        self._saw(Place(group, queue, at), body)
                    next_offset[group, queue] = rows[-1][0] + 1 if rows else offset
                await pause(20)

    def _saw(self, place: Place, body: bytes) -> None:
        assert self.read.setdefault(place, body) == body, place  # INV-7


async def pulled(
    session: aiohttp.ClientSession, address: str, topic: str, queue: int, offset: int
) -> list[tuple[int, bytes]]:
    """(offset, body) of messages that the broker at `address` shows now; none if it does not."""
    path = f"http://{address}/v1/topics/{topic}/queues/{queue}/messages"
    try:
        async with session.get(
            path, params={"offset": str(offset), "max_messages": "1000"}
        ) as answer:
            document: dict[str, Any] = orjson.loads(await answer.read())
    except (aiohttp.ClientError, OSError, TimeoutError):
        return []
    if answer.status != 200:
        assert document["code"] != "OFFSET_OUT_OF_RANGE", document  # R3: never above confirm
        return []
    return [(row["offset"], _body_of(row)) for row in document["messages"]]


def _body_of(row: dict[str, Any]) -> bytes:
    if "body_base64" in row:
        return base64.b64decode(row["body_base64"])
    body: str = row["body"]
    return body.encode()


async def pulled_everything(cluster: RunningCluster, topic: str) -> dict[Place, bytes]:
    """All messages of a topic, from whichever broker of each group is its master now."""
    found: dict[Place, bytes] = {}
    async with http_session(timeout_ms=5000) as session:
        for group in cluster.groups():
            address = cluster.node(await the_master(cluster, group))["address"]
            for queue in range(QUEUES):
                offset = 0
                while rows := await pulled(session, address, topic, queue, offset):
                    found.update((Place(group, queue, at), body) for at, body in rows)
                    offset = rows[-1][0] + 1
    return found


async def create_topic(cluster: RunningCluster, topic: str, *, queues: int = QUEUES) -> int:
    """Its topic id."""
    async with AdminClient(cluster.bootstrap) as admin:
        return (await admin.topics.create(topic, queues=queues, message_type=MIXED)).topic_id


@asynccontextmanager
async def under_load(
    cluster: RunningCluster, topic: str, *, filler_bytes: int = 0
) -> AsyncIterator[Load]:
    """Workers and a reader on a new topic until the block ends; then all outcomes are known."""
    load = Load(topic, await create_topic(cluster, topic), "x" * filler_bytes)
    async with Producer(cluster.bootstrap) as producer:
        workers = [
            spawn(load.work(producer, worker), name=f"load-{worker}") for worker in range(WORKERS)
        ]
        reader = spawn(load.watch(cluster), name="reader")
        try:
            yield load
        finally:
            await cancel_and_wait(*workers)
            was_reading = not reader.done()
            await cancel_and_wait(reader)
        assert was_reading, reader.exception()
    assert not load.failed, load.failed[0]


async def reach(load: Load, count: int) -> None:
    """Wait for that many acknowledgements in all, however slow the disk, while one follows another
    within a minute.
    """
    while (reached := load.count) < count:

        async def goes_on(reached: int = reached) -> bool:
            assert not load.failed, load.failed[0]
            return load.count > reached

        what = f"an acknowledged message after {reached} of {count}"
        await eventually(goes_on, within_ms=60_000, what=what)


async def settled(cluster: RunningCluster) -> dict[str, int]:
    """Wait until every broker has everything, confirmed; the position of each group.

    Nobody may be sending. What the judge compares reaches at least so far.
    """

    async def ends() -> dict[str, int] | None:
        found: dict[str, set[int]] = {}
        for _, status in await broker_statuses(cluster):
            if status is None or status["confirm"] != status["end"]:
                return None
            found.setdefault(status["group"], set()).add(status["end"])
        if any(len(positions) != 1 for positions in found.values()):
            return None
        return {group: positions.pop() for group, positions in found.items()}

    return await eventually(ends, within_ms=60_000, what="all brokers at one confirmed end")


def check_stored(cluster: RunningCluster, positions: dict[str, int], *loads: Load) -> None:
    """Judge the files of the stopped cluster (INV-1, INV-3, INV-7, INV-12)."""
    for group, position in positions.items():
        records = stored_records(same_bytes(cluster, group, at_least=position))
        for load in loads:
            mine = [record for record in records if record.topic_id == load.topic_id]
            check_records(mine, load, group=group)


def same_bytes(cluster: RunningCluster, group: str, *, at_least: int) -> bytes:
    """The log of `group`, after every replica was found to hold the same bytes (INV-3)."""
    folders = [cluster.data_dir / node["name"] for node in cluster.brokers(group)]
    confirms = [confirmed_end(folder) for folder in folders]
    common = min(confirms)
    assert common >= at_least > 0, (group, confirms, at_least)
    contents = [log_bytes(folder, common) for folder in folders]
    for folder, content in zip(folders, contents, strict=True):
        assert content == contents[0], f"{folder.name} differs from {folders[0].name}"
    return contents[0]


def check_records(records: list[StoredRecord], load: Load, *, group: str) -> None:
    """Nothing lost, changed, doubled or reordered, and nothing shown that is not there."""
    stored = {Place(group, record.queue_id, record.queue_offset): record.body for record in records}
    told = {entry.place: entry.body for entry in load.acknowledged if entry.place.group == group}
    count = sum(entry.place.group == group for entry in load.acknowledged)
    assert len(told) == count, "one place was acknowledged for two messages"
    lost = [place for place, body in told.items() if stored.get(place) != body]
    assert not lost, f"{len(lost)} acknowledged messages are lost or changed: {lost[:5]}"
    shown = {place: body for place, body in load.read.items() if place.group == group}
    phantoms = [place for place, body in shown.items() if stored.get(place) != body]
    assert not phantoms, f"{len(phantoms)} messages were shown and are gone: {phantoms[:5]}"
    bodies = [record.body for record in records]
    assert len(set(bodies)) == len(bodies), "a message is stored twice"
    last: dict[int, int] = {}
    for record in sorted(records, key=lambda record: (record.queue_id, record.queue_offset)):
        worker, row, *_ = orjson.loads(record.body)
        assert row == last.get(worker, -1) + 1, f"worker {worker}: {row} after {last.get(worker)}"
        last[worker] = row


def check_epochs(load: Load) -> None:
    """No acknowledgement of an epoch after the first one of a later epoch (zombie masters)."""
    for earlier, later in pairwise(load.acknowledged):
        if earlier.place.group == later.place.group:
            assert earlier.epoch <= later.epoch, (earlier, later)


async def all_in_sync(cluster: RunningCluster, *, members: int = 3) -> None:
    """Wait until every group has a master and `members` members in its sync state set."""

    async def is_whole() -> bool:
        async with AdminClient(cluster.bootstrap) as admin:
            view = await admin.view()
        return all(
            group.master is not None and len(group.sync_state_set) == members
            for group in view.groups.values()
        )

    await eventually(is_whole, within_ms=60_000, what=f"{members} replicas in sync")


async def controller_leader(cluster: RunningCluster) -> str:
    """The name of the leading controller, as the controllers agree, waited for."""

    async def leader() -> str | None:
        terms: dict[int, set[str]] = {}
        async with http_session() as session:
            answers = await asyncio.gather(
                *(controller_status(session, address) for address in cluster.bootstrap)
            )
        for answer in answers:
            if answer is not None and answer["leader"] is not None:
                terms.setdefault(answer["term"], set()).add(answer["leader"])
                if answer["role"] == "leader" and answer["leader"] != answer["controller_id"]:
                    return None
        newest = terms[max(terms)] if terms else set()
        return next(iter(newest)) if len(newest) == 1 else None

    return await eventually(leader, within_ms=60_000, what="a leading controller")


async def controller_status(session: aiohttp.ClientSession, address: str) -> dict[str, Any] | None:
    """`/v1/status` of one controller; None while it does not answer, or has started and heard of no
    leader yet."""
    try:
        async with session.get(f"http://{address}/v1/status") as answer:
            document: dict[str, Any] = orjson.loads(await answer.read())
            return document if answer.status == 200 else None
    except (aiohttp.ClientError, OSError, TimeoutError):
        return None
