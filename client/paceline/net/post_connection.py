"""Record batches by POST: in place of a stream where a broker or proxy refuses upgrades.

One batch per queue is in flight at a time, because parallel POSTs have no order (DESIGN 5).
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

import orjson

from paceline.errors import (
    DeadlineError,
    OutcomeUnknownError,
    PacelineError,
    PeerError,
    to_problem,
)
from paceline.net.http import BATCH_MEDIA_TYPE, HttpClient
from paceline.net.stream_connection import OnAnswer, OnLost, pack_fetch
from paceline.platform.runtime import spawn
from paceline.types import TopicName
from paceline.wire.calls.request import AnswerT, Reply, Request, read_reply
from paceline.wire.namespaces import Namespace
from paceline.wire.stream import (
    PRODUCE_ANSWER,
    PRODUCE_FLAG_DUPLICATE,
    PRODUCE_FLAG_OFFSET_UNKNOWN,
    PRODUCE_FLAG_UNCONFIRMED,
    STATUS_ERROR,
    STATUS_OK,
    FetchQueue,
)

_POST_TIMEOUT_MS = 10_000
_IN_FLIGHT_BYTES_MAX = 32 * 1024 * 1024


class PostConnection:
    """Looks like an open `StreamConnection`; every request is a POST of its own."""

    in_flight_per_queue_max = 1
    session_queues = 0
    """No fetch sessions: nothing hangs together here."""

    def __init__(
        self,
        address: str,
        group: str,
        http: HttpClient,
        topic_name: Callable[[int], TopicName | None],
        namespace: Namespace | None = None,
    ) -> None:
        """`topic_name` gives the name of a topic id: POST paths carry names."""
        self.address = address
        self.group = group
        self.on_closed: Callable[[], None] | None = None
        self.on_read: Callable[[], None] | None = None
        self._http = http
        self._topic_name = topic_name
        self._namespace = namespace or Namespace()
        self._tasks: set[asyncio.Task[None]] = set()
        self._unanswered_bytes = 0
        self._is_closed = False

    @property
    def is_open(self) -> bool:
        return not self._is_closed

    def has_credit(self, size_bytes: int) -> bool:
        return self._unanswered_bytes + size_bytes <= _IN_FLIGHT_BYTES_MAX

    def produce(self, batch: bytes, on_answer: OnAnswer, on_lost: OnLost, context: Any) -> None:
        """As `StreamConnection.produce`."""
        self._unanswered_bytes += len(batch)
        self._keep(spawn(self._post(batch, on_answer, on_lost, context), name="post-batch"))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def flush(self) -> None:
        """Nothing is held back here."""

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for task in tuple(self._tasks):
            task.cancel()
        if self.on_closed is not None:
            self.on_closed()

    def begin_fetch(
        self,
        queues: Sequence[FetchQueue],
        *,
        wait_ms: int,
        max_bytes: int,
        on_answer: OnAnswer,
        on_lost: OnLost,
        context: Any,
    ) -> None:
        """As `StreamConnection.begin_fetch`, by POST /v1/fetch."""
        body = pack_fetch(queues, wait_ms=wait_ms, max_bytes=max_bytes)
        timeout_ms = wait_ms + _POST_TIMEOUT_MS
        work = self._fetch(body, timeout_ms, on_answer, on_lost, context)
        self._keep(spawn(work, name="post-fetch"))

    async def _fetch(
        self, body: bytes, timeout_ms: int, on_answer: OnAnswer, on_lost: OnLost, context: Any
    ) -> None:
        try:
            _, answer = await self._http.post_bytes(
                self.address,
                "/v1/fetch",
                body,
                content_type=BATCH_MEDIA_TYPE,
                timeout_ms=timeout_ms,
            )
        except PacelineError as error:
            if isinstance(error, OutcomeUnknownError | PeerError | DeadlineError):
                on_lost(context)
            else:
                on_answer(context, STATUS_ERROR, memoryview(orjson.dumps(to_problem(error))))
        else:
            on_answer(context, STATUS_OK, memoryview(answer))

    async def call(self, request: Request[AnswerT], *, timeout_ms: int) -> Reply[AnswerT]:
        """As `StreamConnection.call`, by POST /v1/call."""
        document = self._namespace.request(request).to_json()
        answer = await self._http.send(
            "POST", self.address, "/v1/call", document, timeout_ms=timeout_ms
        )
        return read_reply(request, self._namespace.answer(request, answer))

    async def _post(self, batch: bytes, on_answer: OnAnswer, on_lost: OnLost, context: Any) -> None:
        try:
            answer = await self._exchange(batch)
        except PacelineError as error:
            if error.is_definite:
                on_answer(context, STATUS_ERROR, memoryview(orjson.dumps(to_problem(error))))
            else:
                on_lost(context)
        except BaseException:
            on_lost(context)
            raise
        else:
            on_answer(context, STATUS_OK, memoryview(answer))
        finally:
            self._unanswered_bytes -= len(batch)
            if self.on_read is not None:
                self.on_read()

    async def _exchange(self, batch: bytes) -> bytes:
        topic_id = int.from_bytes(batch[68:72], "little")
        queue_id = int.from_bytes(batch[82:84], "little")
        name = self._topic_name(topic_id)
        if name is None:
            raise PeerError(f"topic {topic_id} has no name any more")
        topic = quote(self._namespace.full_topic(name), safe="")
        _, content = await self._http.post_bytes(
            self.address,
            f"/v1/topics/{topic}/queues/{queue_id}/batches",
            batch,
            content_type=BATCH_MEDIA_TYPE,
            timeout_ms=_POST_TIMEOUT_MS,
        )
        return _packed_answer(orjson.loads(content))


def _packed_answer(document: dict[str, Any]) -> bytes:
    """The JSON answer of a POST as the bytes a stream would have answered."""
    try:
        flags = PRODUCE_FLAG_DUPLICATE if document.get("duplicate") else 0
        if not document.get("confirmed", True):
            flags |= PRODUCE_FLAG_UNCONFIRMED
        offset = document["offset"]
        if offset is None:
            flags |= PRODUCE_FLAG_OFFSET_UNKNOWN
        return PRODUCE_ANSWER.pack(
            document["epoch"],
            document["count"],
            offset or 0,
            document["confirm"],
            document["store_unix_ms"],
            flags | (document.get("position") or 0) << 8,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise OutcomeUnknownError(f"a batch answer without its fields: {error!r}") from error
