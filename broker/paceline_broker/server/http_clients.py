"""HTTP: which clients are connected to this broker."""

from aiohttp import web

from paceline_broker.server.http_requests import check_parameters, json_answer
from paceline_broker.service.service import Service


def add_client_routes(router: web.UrlDispatcher, service: Service) -> None:
    """`GET /v1/clients`, narrowed by `group`, `topic`, `kind`."""

    async def clients(request: web.Request) -> web.Response:
        parameters = check_parameters(request, "group", "topic", "kind")
        return json_answer(await service.calls.named("clients", parameters))

    router.add_get("/v1/clients", clients)
