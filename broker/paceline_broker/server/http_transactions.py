"""The second phase of a transaction as two resources."""

from collections.abc import Awaitable, Callable

from aiohttp import web

from paceline.http_api.calls import check_parameters
from paceline.http_api.rights import ASKER
from paceline.wire.fields import Fields
from paceline_broker.projections.transactions import Ended
from paceline_broker.server.http_requests import json_answer, read_json
from paceline_broker.service.service import Service

Handler = Callable[[web.Request], Awaitable[web.Response]]


class TransactionRoutes:
    """Handlers of one broker."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/transactions/{id}/commit", self._end(Ended.COMMITTED)),
            web.post("/v1/transactions/{id}/rollback", self._end(Ended.ROLLED_BACK)),
        ]

    def _end(self, wanted: Ended) -> Handler:
        async def handler(request: web.Request) -> web.Response:
            check_parameters(request)
            if request.can_read_body:
                Fields(await read_json(request), name="end").done()
            ends = self._service.transactions.ends
            answer = await ends.end_one(request.match_info["id"], wanted, asker=request[ASKER])
            return json_answer({**answer, **self._service.calls.envelope()})

        return handler
