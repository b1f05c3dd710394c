"""Resources of transactions: the second phase, check-back, and a look at what is open."""

from collections.abc import Awaitable, Callable

from aiohttp import web

from paceline.errors import BadRequestError
from paceline.wire.fields import Fields
from paceline_broker.projections.transactions import Ended
from paceline_broker.server.http_requests import check_parameters, json_answer, read_json
from paceline_broker.service.service import Service

Handler = Callable[[web.Request], Awaitable[web.Response]]


class TransactionRoutes:
    """Handlers of one broker."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Register the resources."""
        router.add_get("/v1/transactions", self._list)
        router.add_get("/v1/transactions/{id}", self._show)
        router.add_post("/v1/transactions/{id}/commit", self._end(Ended.COMMITTED))
        router.add_post("/v1/transactions/{id}/rollback", self._end(Ended.ROLLED_BACK))
        router.add_get("/v1/producers/{group}/checks", self._checks)

    def _end(self, wanted: Ended) -> Handler:
        async def handler(request: web.Request) -> web.Response:
            check_parameters(request)
            if request.can_read_body:
                Fields(await read_json(request), name="end").done()
            ends = self._service.transactions.ends
            answer = await ends.end_one(request.match_info["id"], wanted)
            return json_answer({**answer, **self._service.calls.envelope()})

        return handler

    async def _list(self, request: web.Request) -> web.Response:
        return await self._call(request, "transactions", {}, "topic", "limit")

    async def _show(self, request: web.Request) -> web.Response:
        check_parameters(request)
        answer = await self._service.transactions.ends.show(request.match_info["id"])
        return json_answer({**answer, **self._service.calls.envelope()})

    async def _checks(self, request: web.Request) -> web.Response:
        named: dict[str, object] = {"group": request.match_info["group"]}
        return await self._call(request, "transaction_checks", named, "client_id", "wait_ms")

    async def _call(
        self, request: web.Request, call: str, named: dict[str, object], *parameters: str
    ) -> web.Response:
        given = check_parameters(request, *parameters)
        document = {**named, **given}
        for name in ("limit", "wait_ms"):
            if name in given:
                document[name] = _number(given[name], name)
        return json_answer(await self._service.calls.named(call, document))


def _number(text: str, name: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise BadRequestError(f"{name} must be a number", field=name)
    return int(text)
