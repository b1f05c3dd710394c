"""Shell: asks the other controllers whether they hear a replica, and reads their answers.

`GET /v1/heard/{group}/{replica}` of each of them. Who does not answer in time has heard nothing.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import aiohttp
import orjson

from paceline.errors import PacelineError, PeerError, in_words
from paceline.security.node_proof import NodeProofs
from paceline.security.node_tls import Dial
from paceline.wire import session as wire
from paceline_controller.election.contacts import HeardElsewhere, Inquiry
from paceline_controller.election.liveness_events import OthersAsked

log = logging.getLogger("paceline.controller")

TIMEOUT_S = 0.25
ANSWER_BYTES_MAX = 4096
AGE_MS_MAX = 2**40


def heard_document(heard: HeardElsewhere | None) -> dict[str, Any]:
    """The answer to the question; a `heartbeat` of null: nothing was heard."""
    if heard is None:
        return {"heartbeat": None, "age_ms": None}
    return {"heartbeat": orjson.loads(wire.encode(heard.heartbeat)), "age_ms": heard.age_ms}


class Inquirer:
    """Owns one HTTP client without kept connections: a stale one must not cost the answer."""

    def __init__(
        self,
        others: Callable[[], tuple[str, ...]],
        *,
        source_host: str,
        dial: Dial,
        proofs: NodeProofs,
    ) -> None:
        """`others`: client addresses of the other controllers."""
        self._others = others
        self._dial = dial
        self._proofs = proofs
        self._source = (source_host, 0) if source_host else None
        self._http: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        connector = aiohttp.TCPConnector(local_addr=self._source, force_close=True)
        self._http = aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)
        )

    async def stop(self) -> None:
        if self._http is not None:
            await self._http.close()

    async def ask(self, inquiry: Inquiry) -> OthersAsked:
        """Ask all of them at once."""
        answers = await asyncio.gather(
            *(self._ask_one(address, inquiry) for address in self._others())
        )
        heard = tuple(answer for answer in answers if answer is not None)
        return OthersAsked(inquiry=inquiry, heard=heard)

    async def _ask_one(self, address: str, inquiry: Inquiry) -> HeardElsewhere | None:
        assert self._http is not None
        group, replica_id = inquiry.key
        path = f"/v1/heard/{group}/{replica_id}"
        where = self._dial.http(address, path)
        asking = self._proofs.request(self._http, "GET", address, path, **where)
        try:
            async with asking as response:
                body = await response.content.read(ANSWER_BYTES_MAX)
                return _parse(body) if response.status == 200 else None
        except (aiohttp.ClientError, OSError, TimeoutError, PacelineError) as error:
            log.info("inquiry_unanswered", extra={"controller": address, "why": in_words(error)})
            return None


def _parse(body: bytes) -> HeardElsewhere | None:
    """Raises PeerError or BadRequestError on what no controller says."""
    try:
        document = orjson.loads(body)
        heartbeat, age_ms = document["heartbeat"], document["age_ms"]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise PeerError(f"a controller answered {body[:64]!r}") from error
    if heartbeat is None:
        return None
    if type(age_ms) is not int or not 0 <= age_ms <= AGE_MS_MAX:
        raise PeerError(f"a controller answered age_ms {age_ms!r}")
    parsed = wire.parse_from_broker(orjson.dumps(heartbeat))
    if not isinstance(parsed, wire.Heartbeat):
        raise PeerError(f"a controller answered a {type(parsed).__name__}")
    return HeardElsewhere(parsed, age_ms)
