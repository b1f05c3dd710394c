"""The HTTP door of simple consumers: receive with the messages in the answer, ack, invisible."""

from typing import Any

from aiohttp import web

from paceline.errors import BadRequestError
from paceline.types import QueueOffset
from paceline.wire.fields import Fields
from paceline.wire.http import PullRequest
from paceline.wire.receipts import Receipt, format_handle
from paceline_broker.server.http_requests import check_parameters, json_answer, read_json
from paceline_broker.service.messages import JSON_PULL_BYTES_MAX
from paceline_broker.service.pop.grant import Given, GivenRow
from paceline_broker.service.service import Service


class ReceiptRoutes:
    """`/v1/groups/{group}/receive`, `/ack`, `/invisible`."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def add_to(self, router: web.UrlDispatcher) -> None:
        router.add_post("/v1/groups/{group}/receive", self._receive)
        router.add_post("/v1/groups/{group}/ack", self._ack)
        router.add_post("/v1/groups/{group}/invisible", self._invisible)

    async def _receive(self, request: web.Request) -> web.Response:
        service = self._service
        document = await _document(request)
        given = await service.receipt_calls.receive(Fields(document, name="receive"))
        answer = {
            "messages": await self._messages(given, document["group"]),
            "invisible_until_unix_ms": given.until_unix_ms,
            **service.calls.envelope(),
        }
        return json_answer(answer)

    async def _ack(self, request: web.Request) -> web.Response:
        return json_answer(await self._service.calls.named("ack", await _document(request)))

    async def _invisible(self, request: web.Request) -> web.Response:
        return json_answer(await self._service.calls.named("invisible", await _document(request)))

    async def _messages(self, given: Given, group: str) -> list[dict[str, Any]]:
        """What was given, read like any other messages, each with its handle."""
        found: list[dict[str, Any]] = []
        for row in given.rows:
            for message in await self._read(row):
                offset = message["offset"]
                receipt = Receipt(
                    self._service.routes.group,
                    row.key >> 16,
                    row.key & 0xFFFF,
                    offset,
                    given.position,
                    row.attempt,
                )
                found.append({**message, "handle": format_handle(receipt, group)})
        return found

    async def _read(self, row: GivenRow) -> list[dict[str, Any]]:
        service = self._service
        topic_id, queue_id = row.key >> 16, row.key & 0xFFFF
        topic = service.routes.topics_by_id.get(topic_id)
        if topic is None:
            return []  # deleted meanwhile, and its messages with it (R35)
        about = {"topic": topic.topic, "queue": queue_id, "attempt": row.attempt}
        rows: list[dict[str, Any]] = []
        offset = row.first
        while offset < row.end:
            asked = PullRequest(
                offset=QueueOffset(offset),
                max_messages=row.end - offset,
                max_bytes=JSON_PULL_BYTES_MAX,
            )
            answer = await service.messages.pull(topic, queue_id, asked)
            if answer["next_offset"] == offset:
                break  # not readable now: they come again when their time is over
            rows += [{**about, **message} for message in answer["messages"]]
            offset = answer["next_offset"]
        return rows


async def _document(request: web.Request) -> dict[str, Any]:
    check_parameters(request)
    document = await read_json(request)
    if "group" in document:
        raise BadRequestError("the address names the group", field="group")
    document["group"] = request.match_info["group"]
    return document
