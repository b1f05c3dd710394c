"""Resources that find messages."""

from typing import Any

from aiohttp import web

from paceline.wire.fields import I64_MAX
from paceline_broker.server.http_requests import check_parameters, integer_parameter, json_answer
from paceline_broker.service.queries.queries import RESULTS_MAX
from paceline_broker.service.service import Service

_TEXTS = ("key", "unique_key", "after")
_TIMES = ("begin_unix_ms", "end_unix_ms")


def add_query_routes(router: web.UrlDispatcher, service: Service) -> None:
    """Register the resources."""

    async def message(request: web.Request) -> web.Response:
        check_parameters(request)
        return json_answer(await service.calls.named("message", {"id": request.match_info["id"]}))

    async def search(request: web.Request) -> web.Response:
        parameters = check_parameters(request, "max", *_TEXTS, *_TIMES)
        document: dict[str, Any] = {"topic": request.match_info["topic"]}
        document |= {name: parameters[name] for name in _TEXTS if name in parameters}
        for name, high in (("max", RESULTS_MAX), *((time, I64_MAX - 1) for time in _TIMES)):
            if name in parameters:
                document[name] = integer_parameter(parameters, name, high=high)
        return json_answer(await service.calls.named("search", document))

    async def track(request: web.Request) -> web.Response:
        parameters = check_parameters(request, "queue", "offset")
        document = {
            "topic": request.match_info["topic"],
            "queue": integer_parameter(parameters, "queue", high=2**16 - 1),
            "offset": integer_parameter(parameters, "offset"),
        }
        return json_answer(await service.calls.named("track", document))

    router.add_get("/v1/topics/{topic}/track", track)
    router.add_get("/v1/messages/{id}", message)
    router.add_get("/v1/topics/{topic}/search", search)
