"""One broker of the fake cluster: HTTP and streams over a loopback socket."""

import asyncio
from typing import TYPE_CHECKING, Any

import orjson
from tests.support.app_server import stop_accepting
from tests.support.client.fake_log import NO_FAULT, FakeLog, Fault

from paceline.errors import (
    BadRequestError,
    FlushReplicaTimeoutError,
    NotMasterError,
    PacelineError,
    QueueNotFoundError,
    to_problem,
)
from paceline.platform.runtime import cancel_and_wait, spawn
from paceline.records.checking import check_batch
from paceline.types import GroupName
from paceline.wire.stream import (
    FETCH_ANSWER,
    FETCH_HEADER,
    FETCH_PART,
    FETCH_QUEUE,
    FETCH_SUGGESTION_SHIFT,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    PRODUCE_ANSWER,
    PRODUCE_FLAG_DUPLICATE,
    PRODUCE_FLAG_UNCONFIRMED,
    STATUS_ERROR,
    UPGRADE_TOKEN,
    FetchCode,
    FetchPart,
    FetchQueue,
    Operation,
    encode_frame,
)

if TYPE_CHECKING:
    from tests.support.client.fake_cluster import FakeCluster

CLUSTER_ID = "fake"
FETCH_QUEUES_MAX = 1024
"""As real brokers."""


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
        self.fetched = 0
        """Messages that readers got here."""
        self.slow_below = 0
        """Batches below this queue offset are far behind: this broker suggests `slow_replica`."""
        self.slow_replica = 0
        self.serves_nothing_from: int | None = None
        """A replica that has got no further: above it NOT_YET_AVAILABLE."""
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
        self._server = await asyncio.start_server(self._accept, host, int(port))
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
        if self._server is not None:
            await stop_accepting(self._server.sockets)
        writers = tuple(self._writers)
        self.kill()
        await cancel_and_wait(*self._tasks)
        # A transport that is still closing when its loop ends warns in another test.
        await asyncio.gather(*(each.wait_closed() for each in writers), return_exceptions=True)

    # -- connections ------------------------------------------------------------------------------

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Known from now on: a test may end before the first turn of its task."""
        self._writers.add(writer)
        task = spawn(self._serve(reader, writer), name="fake_broker")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._serve_http(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client or the test ended it
        finally:
            self._writers.discard(writer)
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
            status, answer = await self._answer_http(method, path, body)
            writer.write(
                f"HTTP/1.1 {status} X\r\nContent-Length: {len(answer)}\r\n"
                "Content-Type: application/json\r\n\r\n".encode()
                + answer
            )

    async def _answer_http(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
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
                "confirmed": not flags & PRODUCE_FLAG_UNCONFIRMED,
            }
            return 200, orjson.dumps(answer)
        refusal = self.cluster.refuses_topics
        if path == "/v1/call" and refusal is not None:
            return int(refusal.status), orjson.dumps(to_problem(refusal))
        if path == "/v1/call" and self.cluster.makes_topics:
            self.cluster.add_topic(orjson.loads(body)["topic"], 2)
            return 200, b"{}"
        if path == "/v1/call" and orjson.loads(body)["call"] in ("reset", "offsets"):
            return 200, orjson.dumps(await self.cluster.answer_call(self, orjson.loads(body)))
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
        if self.cluster.write_count(self.group, header.topic_id) <= header.queue_id:
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
        if count > FETCH_QUEUES_MAX:
            problem = to_problem(BadRequestError(f"a fetch names 1 to {FETCH_QUEUES_MAX} queues"))
            answer = encode_frame(
                request_id, Operation.FETCH, orjson.dumps(problem), status=STATUS_ERROR
            )
            _write(writer, answer)
            return
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
            if data or left <= 0 or any(part.code for part in parts):
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
    ) -> tuple[list[FetchPart], list[bytes]]:
        parts: list[FetchPart] = []
        data: list[bytes] = []
        for queue in queues:
            start = self.log.start((queue.topic_id, queue.queue_id))
            end = self.log.end((queue.topic_id, queue.queue_id))
            code = FetchCode.OK
            chosen: list[bytes] = []
            limit = self.serves_nothing_from
            if self.not_yet is not None or (limit is not None and queue.offset >= limit):
                code = FetchCode.NOT_YET_AVAILABLE
            elif self.cluster.queue_count(self.group, queue.topic_id) <= queue.queue_id:
                code = FetchCode.UNKNOWN_QUEUE
            elif self.cluster.refuses_reads(queue.topic_id):
                code = FetchCode.NO_PERMISSION
            elif not start <= queue.offset <= end:
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
            flags = 0
            if chosen and queue.offset < self.slow_below:
                flags = self.slow_replica << FETCH_SUGGESTION_SHIFT
            self.fetched += sum(check_batch(batch).record_count for batch in chosen)
            part = FetchPart(queue.topic_id, queue.queue_id, int(code), start, end, size)
            parts.append(part._replace(flags=flags))
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
