"""A cluster in this process for client tests: one controller, brokers, and faults on demand.

Each group has one log that all its brokers share, and sequences are judged by the rules of R31, so
a test can ask the log itself what was stored, how often, and in which order. Brokers speak HTTP
and streams over loopback sockets.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
from aiohttp import web
from tests.unit.client.fake_calls import FakeGroupCalls

from paceline.errors import (
    FlushReplicaTimeoutError,
    NotMasterError,
    OutOfOrderSequenceError,
    PacelineError,
    ProducerFencedError,
    QueueNotFoundError,
    UnknownProducerError,
    to_problem,
)
from paceline.records.decode import BatchView, check_batch
from paceline.records.header import HEADER_BYTES, BatchHeader, stamp
from paceline.runtime import spawn
from paceline.types import GroupName, MasterEpoch, ReplicaId, SetEpoch, TopicId, TopicName
from paceline.wire.cluster import ClusterView, GroupSettings, GroupView, ReplicaView, TopicView
from paceline.wire.stream import (
    FETCH_ANSWER,
    FETCH_HEADER,
    FETCH_PART,
    FETCH_QUEUE,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    PRODUCE_ANSWER,
    PRODUCE_FLAG_DUPLICATE,
    PRODUCE_FLAG_OFFSET_UNKNOWN,
    STATUS_ERROR,
    STATUS_OK,
    UPGRADE_TOKEN,
    FetchCode,
    FetchQueue,
    Operation,
    encode_frame,
)

CLUSTER_ID = "fake"
_WINDOW = 5


@dataclass
class Fault:
    """What goes wrong with one produce request."""

    refuse: PacelineError | None = None
    """Answer this before anything is stored."""
    drop_before: bool = False
    """Close the connection, store nothing."""
    drop_after: bool = False
    """Store, then close the connection without an answer."""
    late_ms: float | None = None
    """Close the connection now and process the bytes later all the same (a paused broker)."""
    is_unknown: bool = False
    """Store, but answer FLUSH_SLAVE_TIMEOUT."""
    answer_epoch: int | None = None
    """Name this epoch in the answer."""
    answer_after_ms: float = 0
    is_silent: bool = False
    """Store and never answer."""


NO_FAULT = Fault()


@dataclass
class ProducerState:
    """R31, per (producer, topic, queue)."""

    epoch: int
    last: int = -1
    window: list[tuple[int, int, int]] = field(default_factory=list)  # base, last, queue offset


@dataclass
class StoredBatch:
    base: int
    count: int
    data: bytes


class FakeLog:
    """The shared log of one group."""

    def __init__(self) -> None:
        self.queues: dict[tuple[int, int], list[StoredBatch]] = {}
        self.producers: dict[tuple[int, int, int], ProducerState] = {}
        self.confirm = 0
        self.offsets: dict[tuple[str, int, int], tuple[int, int]] = {}
        """(group, topic id, queue) -> (committed offset, reset generation)."""
        self.changed = asyncio.Event()

    def end(self, queue: tuple[int, int]) -> int:
        batches = self.queues.get(queue)
        return batches[-1].base + batches[-1].count if batches else 0

    def bodies(self, queue: tuple[int, int]) -> list[bytes]:
        return [
            bytes(body)
            for stored in self.queues.get(queue, [])
            for body in BatchView(stored.data).bodies()
        ]

    def append(self, batch: bytes, epoch: int) -> tuple[int, int]:
        """(base queue offset, flags). Raises what a broker refuses."""
        header = check_batch(batch)
        queue = (header.topic_id, header.queue_id)
        duplicate = self._judge(header)
        if duplicate is not None:
            return duplicate
        base = self.end(queue)
        head = stamp(
            batch,
            physical_offset=self.confirm,
            base_queue_offset=base,
            store_unix_ms=1,
            master_epoch=epoch,
        )
        self.confirm += len(batch)
        stored = StoredBatch(base, header.record_count, head + batch[HEADER_BYTES:])
        self.queues.setdefault(queue, []).append(stored)
        state = self.producers[(header.producer_id, *queue)]
        state.last = header.base_sequence + header.record_count - 1
        state.window = [*state.window, (header.base_sequence, state.last, base)][-_WINDOW:]
        self.changed.set()
        self.changed = asyncio.Event()
        return base, 0

    def _judge(self, header: BatchHeader) -> tuple[int, int] | None:
        key = (header.producer_id, header.topic_id, header.queue_id)
        state = self.producers.get(key)
        first, last = header.base_sequence, header.base_sequence + header.record_count - 1
        if state is None or header.producer_epoch > state.epoch:
            if first != 0:
                raise UnknownProducerError(f"first sequence {first}")
            self.producers[key] = ProducerState(header.producer_epoch)
            return None
        if header.producer_epoch < state.epoch:
            raise ProducerFencedError(f"epoch {header.producer_epoch} < {state.epoch}")
        for base, end, offset in state.window:
            if (base, end) == (first, last):
                return offset, PRODUCE_FLAG_DUPLICATE
        if first == state.last + 1:
            return None
        if last <= state.last and state.window and last < state.window[0][0]:
            return 0, PRODUCE_FLAG_DUPLICATE | PRODUCE_FLAG_OFFSET_UNKNOWN
        raise OutOfOrderSequenceError(f"{first} after {state.last}", expected=state.last + 1)


class FakeBroker:
    """One broker of a group; `fault(header)` decides what goes wrong with a produce."""

    def __init__(self, cluster: "FakeCluster", group: str, replica_id: int) -> None:
        self.cluster = cluster
        self.group = group
        self.replica_id = replica_id
        self.address = ""
        self.serves_streams = True
        self.not_yet: PacelineError | None = None
        self.produced = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def log(self) -> FakeLog:
        return self.cluster.logs[self.group]

    @property
    def is_master(self) -> bool:
        return self.cluster.view.groups[GroupName(self.group)].master == self.replica_id

    async def start(self) -> None:
        host, port = self.address.split(":") if self.address else ("127.0.0.1", "0")
        self._server = await asyncio.start_server(self._serve, host, int(port))
        port = self._server.sockets[0].getsockname()[1]
        self.address = f"127.0.0.1:{port}"

    def kill(self) -> None:
        """As kill -9: the port refuses, every connection breaks."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def stop(self) -> None:
        self.kill()
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # -- connections ------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            await self._serve_http(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client or the test ended it
        finally:
            self._writers.discard(writer)
            self._tasks.discard(task)
            writer.transport.abort()

    async def _serve_http(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            method, path, _ = head.split("\r\n")[0].split(" ")
            if path == "/v1/stream" and self.serves_streams:
                assert f"Upgrade: {UPGRADE_TOKEN}" in head
                writer.write(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
                await self._serve_stream(reader, writer)
                return
            length = 0
            for line in head.lower().split("\r\n"):
                if line.startswith("content-length:"):
                    length = int(line.split(":")[1])
            body = await reader.readexactly(length)
            status, answer = self._answer_http(method, path, body)
            writer.write(
                f"HTTP/1.1 {status} X\r\nContent-Length: {len(answer)}\r\n"
                "Content-Type: application/json\r\n\r\n".encode()
                + answer
            )

    def _answer_http(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        if path == "/v1/routes":
            return 200, orjson.dumps(self.cluster.view.to_json())
        if method == "POST" and path.endswith("/batches"):
            try:
                base, flags = self._store(body, NO_FAULT)
            except PacelineError as error:
                return int(error.status), orjson.dumps(to_problem(error))
            answer = {
                "epoch": self.cluster.epoch(self.group),
                "count": check_batch(body).record_count,
                "offset": base,
                "confirm": self.log.confirm,
                "store_unix_ms": 1,
                "duplicate": bool(flags & PRODUCE_FLAG_DUPLICATE),
            }
            return 200, orjson.dumps(answer)
        return 404, orjson.dumps({"code": "NOT_FOUND", "detail": path})

    async def _serve_stream(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        hello = {
            "cluster_id": CLUSTER_ID,
            "group": self.group,
            "replica_id": self.replica_id,
            "credit_bytes": self.cluster.credit_bytes,
        }
        writer.write(encode_frame(0, Operation.HELLO, orjson.dumps(hello)))
        while True:
            head = await reader.readexactly(FRAME_HEADER_BYTES)
            size, request_id, operation, _, _ = FRAME_HEADER.unpack(head)
            body = await reader.readexactly(size - FRAME_HEADER_BYTES)
            if operation == Operation.PRODUCE:
                self._produce(writer, request_id, body)
            elif operation == Operation.FETCH:
                self._background(self._fetch(writer, request_id, body))
            else:
                self._background(self._call(writer, request_id, orjson.loads(body)))

    def _background(self, work: Any) -> None:
        task = spawn(work, name="fake-broker")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- produce ----------------------------------------------------------------------------------

    def _produce(self, writer: asyncio.StreamWriter, request_id: int, body: bytes) -> None:
        if writer.transport.is_closing():
            return
        self.produced += 1
        fault = self.cluster.fault(self, check_batch(body))
        loop = asyncio.get_running_loop()
        if fault.late_ms is not None:
            loop.call_later(fault.late_ms / 1000, self._store_late, body)
        if fault.late_ms is not None or fault.drop_before:
            writer.transport.abort()
            return
        try:
            base, flags = self._store(body, fault)
            if fault.is_unknown:
                raise FlushReplicaTimeoutError("stored here, not confirmed in time")
        except PacelineError as error:
            problem = orjson.dumps(to_problem(error))
            answer = encode_frame(request_id, Operation.PRODUCE, problem, status=STATUS_ERROR)
        else:
            epoch = fault.answer_epoch or self.cluster.epoch(self.group)
            count = check_batch(body).record_count
            packed = PRODUCE_ANSWER.pack(epoch, count, base, self.log.confirm, 1, flags)
            answer = encode_frame(request_id, Operation.PRODUCE, packed)
        if fault.drop_after:
            writer.transport.abort()
        elif fault.answer_after_ms:
            loop.call_later(fault.answer_after_ms / 1000, _write, writer, answer)
        elif not fault.is_silent:
            writer.write(answer)

    def _store(self, batch: bytes, fault: Fault) -> tuple[int, int]:
        if fault.refuse is not None:
            raise fault.refuse
        if not self.is_master:
            raise NotMasterError(f"replica {self.replica_id} is not master", master=None)
        if self.not_yet is not None:
            raise self.not_yet
        header = check_batch(batch)
        if self.cluster.queue_count(self.group, header.topic_id) <= header.queue_id:
            raise QueueNotFoundError(f"queue {header.queue_id}")
        return self.log.append(batch, self.cluster.epoch(self.group))

    def _store_late(self, batch: bytes) -> None:
        try:
            self._store(batch, NO_FAULT)
        except PacelineError:
            pass  # nobody is there to be told
        else:
            self.cluster.late_stores += 1

    # -- fetch and calls --------------------------------------------------------------------------

    async def _fetch(self, writer: asyncio.StreamWriter, request_id: int, body: bytes) -> None:
        wait_ms, max_bytes, _, count = FETCH_HEADER.unpack_from(body)
        at = FETCH_HEADER.size
        queues = [
            FetchQueue._make(FETCH_QUEUE.unpack_from(body, at + number * FETCH_QUEUE.size))
            for number in range(count)
        ]
        deadline = asyncio.get_running_loop().time() + wait_ms / 1000
        while True:
            changed = self.log.changed
            parts, data = self._read(queues, max_bytes)
            left = deadline - asyncio.get_running_loop().time()
            if data or left <= 0 or any(part[2] for part in parts):
                break
            try:
                async with asyncio.timeout(left):
                    await changed.wait()
            except TimeoutError:
                pass
        head = FETCH_ANSWER.pack(self.cluster.epoch(self.group), len(parts), self.log.confirm)
        packed = b"".join((head, *(FETCH_PART.pack(*part) for part in parts), *data))
        _write(writer, encode_frame(request_id, Operation.FETCH, packed))

    def _read(
        self, queues: list[FetchQueue], max_bytes: int
    ) -> tuple[list[tuple[int, ...]], list[bytes]]:
        parts: list[tuple[int, ...]] = []
        data: list[bytes] = []
        for queue in queues:
            end = self.log.end((queue.topic_id, queue.queue_id))
            code = FetchCode.OK
            chosen: list[bytes] = []
            if self.not_yet is not None:
                code = FetchCode.NOT_YET_AVAILABLE
            elif self.cluster.queue_count(self.group, queue.topic_id) <= queue.queue_id:
                code = FetchCode.UNKNOWN_QUEUE
            elif queue.offset > end:
                code = FetchCode.OFFSET_OUT_OF_RANGE
            else:
                left = min(max_bytes, queue.max_bytes)
                for stored in self.log.queues.get((queue.topic_id, queue.queue_id), []):
                    if stored.base + stored.count > queue.offset and (
                        not chosen or len(stored.data) <= left
                    ):
                        chosen.append(stored.data)
                        left -= len(stored.data)
                        if left <= 0:
                            break
            size = sum(map(len, chosen))
            max_bytes -= size
            parts.append((queue.topic_id, queue.queue_id, int(code), 0, end, size, 0))
            data.extend(chosen)
        return parts, data

    async def _call(
        self, writer: asyncio.StreamWriter, request_id: int, document: dict[str, Any]
    ) -> None:
        try:
            answer = await self.cluster.answer_call(self, document)
        except PacelineError as error:
            problem = orjson.dumps(to_problem(error))
            _write(writer, encode_frame(request_id, Operation.CALL, problem, status=STATUS_ERROR))
        else:
            _write(writer, encode_frame(request_id, Operation.CALL, orjson.dumps(answer)))


def _write(writer: asyncio.StreamWriter, frame: bytes) -> None:
    if not writer.transport.is_closing():
        writer.write(frame)


class FakeCluster:
    """`async with FakeCluster() as cluster`: groups of brokers and one controller."""

    def __init__(self, *, groups: int = 1, brokers: int = 2, credit_bytes: int = 1 << 25) -> None:
        self.brokers: dict[tuple[str, int], FakeBroker] = {}
        self.logs: dict[str, FakeLog] = {}
        self.view = ClusterView(cluster_id=CLUSTER_ID, version=1)
        self.credit_bytes = credit_bytes
        self.fault: Callable[[FakeBroker, BatchHeader], Fault] = lambda broker, header: NO_FAULT
        self.late_stores = 0
        self.break_off_writes = 0
        """How many next writes at the controller are carried out and not answered."""
        self.calls: list[dict[str, Any]] = []
        self.group_calls = FakeGroupCalls()
        self.controller = ""
        self._group_names = [f"g{number + 1}" for number in range(groups)]
        self._brokers_per_group = brokers
        self._changed = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self._is_closing = False

    async def __aenter__(self) -> "FakeCluster":
        for group in self._group_names:
            self.logs[group] = FakeLog()
            for replica_id in range(1, self._brokers_per_group + 1):
                broker = self.brokers[(group, replica_id)] = FakeBroker(self, group, replica_id)
                await broker.start()
        app = web.Application()
        app.router.add_get("/v1/routes", self._routes)
        app.router.add_get("/v1/watch", self._watch)
        app.router.add_post("/v1/topics", self._create_topic)
        app.router.add_delete("/v1/topics/{topic}", self._delete_topic)
        self._runner = web.AppRunner(app, shutdown_timeout=0, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.controller = "127.0.0.1:" + str(self._runner.addresses[0][1])
        self.view = replace(
            self.view,
            controllers=(self.controller,),
            groups={GroupName(name): self._group_view(name) for name in self._group_names},
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_closing = True
        self._changed.set()
        for broker in self.brokers.values():
            await broker.stop()
        if self._runner is not None:
            await self._runner.cleanup()

    # -- what tests do ----------------------------------------------------------------------------

    def add_topic(self, topic: str, queues: int, *, groups: list[str] | None = None) -> int:
        topic_id = max((view.topic_id for view in self.view.topics.values()), default=0) + 1
        view = TopicView(
            topic=TopicName(topic),
            topic_id=TopicId(topic_id),
            queues={GroupName(name): queues for name in groups or self._group_names},
        )
        self.publish(topics={**self.view.topics, view.topic: view})
        return topic_id

    def delete_topic(self, topic: str) -> None:
        topics = dict(self.view.topics)
        del topics[TopicName(topic)]
        self.publish(topics=topics)

    def elect(self, group: str, replica_id: int | None) -> None:
        """Name another master (or none) under the next epoch."""
        old = self.view.groups[GroupName(group)]
        new = replace(
            old,
            master=None if replica_id is None else ReplicaId(replica_id),
            master_epoch=MasterEpoch(old.master_epoch + 1),
        )
        self.publish(groups={**self.view.groups, GroupName(group): new})

    def publish(self, **changes: Any) -> None:
        self.view = replace(self.view, version=self.view.version + 1, **changes)
        self._changed.set()
        self._changed = asyncio.Event()

    def epoch(self, group: str) -> int:
        return self.view.groups[GroupName(group)].master_epoch

    def queue_count(self, group: str, topic_id: int) -> int:
        for topic in self.view.topics.values():
            if topic.topic_id == topic_id:
                return topic.queues.get(GroupName(group), 0)
        return 0

    def bodies(self, group: str = "g1", topic_id: int = 1, queue: int = 0) -> list[bytes]:
        return self.logs[group].bodies((topic_id, queue))

    async def answer_call(self, broker: FakeBroker, document: dict[str, Any]) -> dict[str, Any]:
        self.calls.append(document)
        if not broker.is_master:
            raise NotMasterError(f"replica {broker.replica_id} is not master", master=None)
        if broker.not_yet is not None:
            raise broker.not_yet
        answer = await self.group_calls.answer(broker, document)
        return {**answer, "epoch": self.epoch(broker.group), "confirm": broker.log.confirm}

    # -- inside -----------------------------------------------------------------------------------

    def _group_view(self, name: str) -> GroupView:
        replicas = {
            ReplicaId(broker.replica_id): ReplicaView(
                replica_id=ReplicaId(broker.replica_id),
                store_id=f"{name}-{broker.replica_id}",
                incarnation=1,  # type: ignore[arg-type]
                client_address=broker.address,
                replication_address=broker.address,
            )
            for (group, _), broker in self.brokers.items()
            if group == name
        }
        return GroupView(
            group=GroupName(name),
            master=ReplicaId(1),
            master_incarnation=1,  # type: ignore[arg-type]
            master_epoch=MasterEpoch(1),
            sync_state_set=frozenset(replicas),
            set_epoch=SetEpoch(1),
            settings=GroupSettings(),
            replicas=replicas,
        )

    async def _routes(self, _: web.Request) -> web.Response:
        return web.json_response(self.view.to_json())

    async def _create_topic(self, request: web.Request) -> web.Response:
        document = await request.json()
        if document["topic"] in self.view.topics:
            return web.json_response({"code": "TOPIC_EXISTS", "detail": "it is there"}, status=409)
        self.add_topic(document["topic"], document["queues"])
        if self.break_off_writes:
            self.break_off_writes -= 1
            assert request.transport is not None
            request.transport.close()
        topic = self.view.topics[document["topic"]].to_json()
        return web.json_response({**topic, "version": self.view.version}, status=201)

    async def _delete_topic(self, request: web.Request) -> web.Response:
        self.delete_topic(request.match_info["topic"])
        return web.json_response({"version": self.view.version})

    async def _watch(self, request: web.Request) -> web.Response:
        version = int(request.query["from"])
        deadline = asyncio.get_running_loop().time() + int(request.query["wait_ms"]) / 1000
        while self.view.version <= version and not self._is_closing:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                break
            try:
                async with asyncio.timeout(left):
                    await self._changed.wait()
            except TimeoutError:
                break
        return web.json_response(self.view.to_json())


__all__ = ["NO_FAULT", "STATUS_OK", "FakeBroker", "FakeCluster", "Fault"]
