"""Resources of delayed messages: take one back, see what waits."""

from typing import Any

from aiohttp import web

from paceline_broker.server.http_requests import (
    check_parameters,
    integer_parameter,
    json_answer,
    read_json,
)
from paceline_broker.service.delays.calls import LISTED_MAX
from paceline_broker.service.service import Service


def add_delay_routes(router: web.UrlDispatcher, service: Service) -> None:
    """Register the resources."""

    async def recall(request: web.Request) -> web.Response:
        check_parameters(request)
        document = {**await read_json(request), "topic": request.match_info["topic"]}
        return json_answer(await service.calls.named("recall", document))

    async def delays(request: web.Request) -> web.Response:
        parameters = check_parameters(request, "topic", "max")
        document: dict[str, Any] = {"max": integer_parameter(parameters, "max", high=LISTED_MAX)}
        if "topic" in parameters:
            document["topic"] = parameters["topic"]
        return json_answer(await service.calls.named("delays", document))

    router.add_post("/v1/topics/{topic}/recall", recall)
    router.add_get("/v1/delays", delays)
