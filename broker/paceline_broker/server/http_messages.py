"""Resources of messages: JSON and batch sends, pulls of one queue, fetches of many.

Record batches go as `application/vnd.paceline.batch` both ways; everything else is JSON.
"""

import struct
from dataclasses import replace

from aiohttp import web

from paceline.errors import BadRequestError
from paceline.filters import ALL
from paceline.http_api.calls import check_parameters
from paceline.http_api.rights import ASKER
from paceline.platform.ports import Buffer
from paceline.records.header import BATCH_BYTES_MAX
from paceline.security.access import Asker
from paceline.server.http_guard import room_for, take_room
from paceline.wire.calls.request import QUEUES_MAX, U16_MAX, U32_MAX
from paceline.wire.calls.resources import FRAMES
from paceline.wire.fields import Fields
from paceline.wire.http import (
    JSON_BYTES_MAX,
    parse_json_object,
    parse_number,
    parse_pull,
    parse_send,
    produce_answer_to_json,
)
from paceline.wire.stream import (
    FETCH_FLAG_ACTING,
    FETCH_HEADER,
    FETCH_QUEUE,
    FETCH_SUGGESTION_SHIFT,
    FRAME_BYTES_MAX,
    FetchQueue,
    Operation,
)
from paceline_broker.server.http_requests import (
    asker_of,
    json_answer,
    read_body,
    read_json,
)
from paceline_broker.service.fetch.read import Fetched
from paceline_broker.service.produce.logical_queues import add_place
from paceline_broker.service.service import Service

BATCH_TYPE = "application/vnd.paceline.batch"
SMALL_FETCH_BYTES = 256 * 1024
"""Of an answer where the connection's share has no room for what was asked."""
_TOPIC_AND_QUEUE = struct.Struct("<I10xH")  # topic id and queue id, at byte 68 of a batch
_TOPIC_AT = 68


class MessageRoutes:
    """Handlers of one broker."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._messages = service.messages

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/topics/{topic}/messages", self._send),
            web.post("/v1/topics/{topic}/queues/{queue}/batches", self._send_batch),
            web.get("/v1/topics/{topic}/queues/{queue}/messages", self._pull),
            web.post("/v1/fetch", self._fetch),
        ]

    async def _send(self, request: web.Request) -> web.Response:
        check_parameters(request)
        send = parse_send(await read_json(request))
        topic = await self._messages.topic_to_send(request.match_info["topic"])
        stored = await self._messages.send(topic, send, rights=request[ASKER])
        broker = self._service.calls.envelope()["broker"]
        return json_answer({"status": "SEND_OK", **stored, "broker": broker})

    async def _send_batch(self, request: web.Request) -> web.Response:
        check_parameters(request)
        queue = _queue_of(request)
        batch = await read_body(request, content_type=BATCH_TYPE, limit=BATCH_BYTES_MAX)
        topic = await self._messages.topic_to_send(request.match_info["topic"])
        if len(batch) >= _TOPIC_AT + _TOPIC_AND_QUEUE.size:
            named = _TOPIC_AND_QUEUE.unpack_from(batch, _TOPIC_AT)
            if named != (topic.topic_id, queue):
                raise BadRequestError(
                    f"the batch is for topic id {named[0]} queue {named[1]}, the address for"
                    f" {topic.topic_id} queue {queue}",
                    field="queue",
                )
        answer = await self._messages.send_batch(
            batch, asker=asker_of(request), rights=request[ASKER]
        )
        document = produce_answer_to_json(answer, queue=queue)
        add_place([document], self._messages.place_of(topic, queue))
        return json_answer({**document, "broker": self._service.calls.envelope()["broker"]})

    async def _pull(self, request: web.Request) -> web.StreamResponse:
        pull = parse_pull(request.query.items())
        queue = _queue_of(request)
        topic = await self._messages.topic(request.match_info["topic"])
        if BATCH_TYPE in request.headers.get("Accept", ""):
            if pull.wanted is not ALL:
                raise BadRequestError("filters choose messages, not batches", field="filter")
            max_bytes = room_for(request, pull.max_bytes, at_least=SMALL_FETCH_BYTES)
            answer = await self._messages.fetch_one(
                topic, queue, replace(pull, max_bytes=max_bytes)
            )
            return await _batches(request, answer)
        self._service.routes.check_queue(topic.topic_id, queue)
        document = await self._messages.pull(topic, queue, pull, asker=asker_of(request))
        return json_answer({**document, **self._service.calls.envelope()})

    async def _fetch(self, request: web.Request) -> web.StreamResponse:
        check_parameters(request)
        if request.content_type == BATCH_TYPE:
            body = await read_body(request, content_type=BATCH_TYPE, limit=JSON_BYTES_MAX)
            wait_ms, max_bytes, min_bytes, queues = _binary_fetch(body)
        else:
            body = await read_body(request, content_type="application/json", limit=JSON_BYTES_MAX)
            fields = Fields(parse_json_object(body), name="fetch")
            wait_ms, max_bytes, min_bytes, queues = self._json_fetch(fields, request[ASKER])
        max_bytes = room_for(request, min(max_bytes, FRAME_BYTES_MAX), at_least=SMALL_FETCH_BYTES)
        asker, topics = request[ASKER], {queue.topic_id for queue in queues}
        asker.check_topics(topics, *FRAMES[Operation.FETCH])
        names = {topic_id: self._service.routes.topic_name(topic_id) for topic_id in topics}
        shared = {topic_id: asker.namespace_quota(name) for topic_id, name in names.items()}
        for each in {id(quota): quota for quota in shared.values()}.values():
            if each is not None:
                each.check()  # once for all topics of a namespace: it is one request
        answer = await self._messages.fetch(
            queues, wait_ms=wait_ms, max_bytes=max_bytes, min_bytes=min_bytes
        )
        for part in answer.parts:
            if (quota := shared[part.topic_id]) is not None:
                quota.spend(bytes_out=part.size)
        # It may have waited, and rights have changed.
        asker.check_topics(topics, *FRAMES[Operation.FETCH])
        head = answer.head()
        response = web.StreamResponse(headers={"Content-Type": BATCH_TYPE})
        response.content_length = len(head) + answer.size_bytes
        return await _written(request, response, [head, *answer.buffers])

    def _json_fetch(self, fields: Fields, asker: Asker) -> tuple[int, int, int, list[FetchQueue]]:
        wait_ms = fields.integer("wait_ms", high=U32_MAX) if fields.has("wait_ms") else 0
        max_bytes = 1024 * 1024
        if fields.has("max_bytes"):
            max_bytes = fields.integer("max_bytes", low=1, high=U32_MAX)
        min_bytes = fields.integer("min_bytes", high=U32_MAX) if fields.has("min_bytes") else 1
        rows = fields.any("queues")
        fields.done()
        if not isinstance(rows, list) or not 1 <= len(rows) <= QUEUES_MAX:
            raise BadRequestError("queues must be a list of objects", field="queues")
        queues = [
            self._fetch_queue(Fields(row, name=f"queues[{index}]"), max_bytes, asker)
            for index, row in enumerate(rows)
        ]
        return wait_ms, max_bytes, min_bytes, queues

    def _fetch_queue(self, row: Fields, max_bytes: int, asker: Asker) -> FetchQueue:
        if row.has("topic"):
            name = row.text("topic")
            asker.check_topic(name, *FRAMES[Operation.FETCH])  # before it says that there is none
            topic_id: int = self._service.routes.topic_named(name).topic_id
        else:
            topic_id = row.integer("topic_id", low=1, high=U32_MAX)
        queue_id, offset = row.integer("queue", high=U16_MAX), row.integer("offset")
        if row.has("max_bytes"):
            max_bytes = row.integer("max_bytes", low=1, high=U32_MAX)
        row.done()
        return FetchQueue(topic_id, queue_id, offset, max_bytes)


def _queue_of(request: web.Request) -> int:
    return parse_number(request.match_info["queue"], "queue", high=U16_MAX)


def _binary_fetch(body: bytes) -> tuple[int, int, int, list[FetchQueue]]:
    """A fetch in the form of a stream's frame."""
    try:
        wait_ms, max_bytes, min_bytes, count = FETCH_HEADER.unpack_from(body)
    except struct.error as error:
        raise BadRequestError(f"malformed fetch: {error}", field="body") from error
    if len(body) != FETCH_HEADER.size + count * FETCH_QUEUE.size:
        raise BadRequestError(f"{len(body)} bytes for a fetch of {count} queues", field="body")
    rows = FETCH_QUEUE.iter_unpack(memoryview(body)[FETCH_HEADER.size :])
    return wait_ms, max_bytes, min_bytes, [FetchQueue._make(row) for row in rows]


async def _batches(request: web.Request, answer: Fetched) -> web.StreamResponse:
    """Batches of one queue as they are; what JSON would say beside them is in headers."""
    part = answer.parts[0]
    headers = {
        "Content-Type": BATCH_TYPE,
        "Paceline-Epoch": str(answer.epoch),
        "Paceline-Confirm": str(answer.confirm),
        "Paceline-Start": str(part.start),
        "Paceline-End": str(part.end),
    }
    if part.flags & FETCH_FLAG_ACTING:  # R36
        headers["Paceline-Acting"] = headers["Paceline-Maybe-Stale"] = "true"
    if suggested := part.flags >> FETCH_SUGGESTION_SHIFT:
        headers["Paceline-Suggest-Which-Broker-Id"] = str(suggested)
    response = web.StreamResponse(headers=headers)
    response.content_length = answer.size_bytes
    return await _written(request, response, list(answer.buffers))


async def _written(
    request: web.Request, response: web.StreamResponse, buffers: list[Buffer]
) -> web.StreamResponse:
    """Write the answer; views of the log are handed to the transport as they are."""
    take_room(request, sum(map(len, buffers)), "the answer")
    await response.prepare(request)
    for buffer in buffers:
        await response.write(buffer)
    await response.write_eof()
    return response
