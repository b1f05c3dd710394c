"""Receiving over HTTP: with the messages in the answer, as there is no stream to fetch them by."""

from typing import Any

from aiohttp import web

from paceline.errors import BadRequestError
from paceline.http_api.calls import check_parameters
from paceline.http_api.rights import ASKER, share
from paceline.security.request_quotas import namespace_quotas
from paceline.types import QueueOffset
from paceline.wire.calls.pop import Receive
from paceline.wire.calls.request import read_request
from paceline.wire.http import PullRequest
from paceline.wire.receipts import Receipt, format_handle
from paceline_broker.projections.consume_queues import queue_of, topic_of
from paceline_broker.server.http_requests import json_answer, read_json
from paceline_broker.service.messages import JSON_PULL_BYTES_MAX
from paceline_broker.service.pop.grant import PopGrant, PopGrantRow
from paceline_broker.service.service import Service


class ReceiptRoutes:
    """`/v1/groups/{group}/receive`."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/groups/{group}/receive", self._receive)]

    async def _receive(self, request: web.Request) -> web.Response:
        service = self._service
        check_parameters(request)
        document = await read_json(request)
        if "group" in document:
            raise BadRequestError("the address names the group", field="group")
        asked = read_request(Receive, {**document, "group": request.match_info["group"]})
        asker = request[ASKER]
        asker.check_request(asked)
        for quota in namespace_quotas(asker, asked):
            share(request, quota)
        version = asker.access.version
        given = await service.receipt_calls.receive(asked, None)
        asker.check_again(asked, version=version)
        answer = {
            "messages": await self._messages(given, asked.group),
            "invisible_until_unix_ms": given.until_unix_ms,
            **service.calls.envelope(),
        }
        return json_answer(answer)

    async def _messages(self, given: PopGrant, group: str) -> list[dict[str, Any]]:
        """What was given, read like any other messages, each with its handle."""
        found: list[dict[str, Any]] = []
        for row in given.rows:
            for message in await self._read(row):
                offset = message["offset"]
                receipt = Receipt(
                    self._service.routes.group,
                    topic_of(row.key),
                    queue_of(row.key),
                    offset,
                    given.position,
                    row.attempt,
                )
                found.append({**message, "handle": format_handle(receipt, group)})
        return found

    async def _read(self, row: PopGrantRow) -> list[dict[str, Any]]:
        service = self._service
        topic_id, queue_id = topic_of(row.key), queue_of(row.key)
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
