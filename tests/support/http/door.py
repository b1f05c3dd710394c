"""A broker's HTTP door on fakes, listening on a free port."""

import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import orjson
from tests.support.askers import PROOFS
from tests.support.service.fakes import Bench

from paceline.platform.telemetry import Metrics
from paceline.records.encode import encode_batch
from paceline_broker.server.http import BrokerHttp


class Door(Bench):
    """The bench of the service with a door and a client."""

    port = 0
    http: BrokerHttp
    session: aiohttp.ClientSession

    async def ask(
        self, method: str, path: str, document: Any = None, **arguments: Any
    ) -> tuple[int, dict[str, Any]]:
        """Status and JSON answer of one request; `document` is sent as JSON."""
        if document is not None:
            arguments["data"] = orjson.dumps(document)
            arguments.setdefault("headers", {"Content-Type": "application/json"})
        if isinstance(arguments.get("data"), bytes):
            arguments["data"] = io.BytesIO(arguments["data"])  # aiohttp warns of large bytes
        url = f"http://127.0.0.1:{self.port}{path}"
        async with self.session.request(method, url, **arguments) as answer:
            return answer.status, orjson.loads(await answer.read())


@asynccontextmanager
async def a_door(*, middleware: Any = None, **settings: Any) -> AsyncIterator[Door]:
    """`middleware` runs inside the door's own, before every handler."""
    door = Door(**settings)
    metrics = Metrics(cluster="c", node_type="broker", node_id="g1/1")
    for add in door.service.hooks.metrics:
        add(metrics)
    door.http = BrokerHttp(door.service, metrics=metrics, proofs=PROOFS)
    if middleware is not None:
        door.http.app.middlewares.append(middleware)
    door.port = await door.http.start("127.0.0.1", 0)
    try:
        async with aiohttp.ClientSession() as session:
            door.session = session
            yield door
    finally:
        await door.http.close()
        await door.service.close()


def a_batch(*bodies: bytes, topic_id: int = 1, queue_id: int = 0, **arguments: Any) -> bytes:
    """A record batch for topic "orders"."""
    return encode_batch(
        list(bodies) or [b"hello"],
        born_unix_ms=1_700_000_000_000,
        topic_id=topic_id,
        queue_id=queue_id,
        **arguments,
    )
