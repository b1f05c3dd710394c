"""Shell: asks a broker's port who it is (R19)."""

import logging

import aiohttp
import orjson

from paceline.platform.runtime import pause
from paceline.security.node_tls import Dial
from paceline.types import MasterEpoch
from paceline_controller.election.contacts import ProbeAnswer, ProbeTarget
from paceline_controller.election.liveness_events import (
    ProbeFinished,
)

log = logging.getLogger("paceline.controller")

TRIES = 2
"""One refusal could be a listener between two accepts of a full backlog."""
BETWEEN_TRIES_MS = 3
TRY_TIMEOUT_S = 0.25
UNCLEAR_STATUSES = frozenset({429, 500, 502, 503, 504})
"""A broker that is busy or failing is there: no proof that this start of it is gone (R19)."""
ANSWER_BYTES_MAX = 4096


class Prober:
    """Owns one HTTP client without kept connections: each probe dials the port anew."""

    def __init__(self, *, source_host: str, dial: Dial) -> None:
        self._dial = dial
        self._source = (source_host, 0) if source_host else None
        self._http: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        connector = aiohttp.TCPConnector(local_addr=self._source, force_close=True, limit=256)
        self._http = aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=TRY_TIMEOUT_S)
        )

    async def stop(self) -> None:
        if self._http is not None:
            await self._http.close()

    async def probe(self, target: ProbeTarget) -> ProbeFinished:
        """Two quick tries; refused only if both were."""
        refusals = 0
        for attempt in range(TRIES):
            if attempt > 0:
                await pause(BETWEEN_TRIES_MS)
            try:
                answer = await self._ask(target)
            except ConnectionRefusedError:
                refusals += 1
                continue
            except (
                aiohttp.ClientError,
                OSError,
                TimeoutError,
            ) as error:
                log.info("probe_unclear", extra={"replica": target.key, "why": repr(error)})
                continue
            return ProbeFinished(target=target, answer=answer, is_refused=False)
        return ProbeFinished(target=target, answer=None, is_refused=refusals == TRIES)

    async def _ask(self, target: ProbeTarget) -> ProbeAnswer:
        assert self._http is not None
        try:
            async with self._http.get(**self._dial.http(target.address, "/v1/probe")) as response:
                body = await response.content.read(ANSWER_BYTES_MAX)
                status = response.status
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, ConnectionRefusedError):
                raise ConnectionRefusedError(str(error)) from error
            raise
        if status in UNCLEAR_STATUSES:
            raise aiohttp.ClientError(f"answered {status}")
        return _parse(body, status)


def _parse(body: bytes, status: int) -> ProbeAnswer:
    """A port that answers something else is not the broker: nobody's incarnation, 0."""
    try:
        document = orjson.loads(body) if status == 200 else {}
        return ProbeAnswer(
            group=str(document["group"]),
            replica_id=document["replica_id"],
            incarnation=int(document["incarnation"]),
            role=str(document["role"]).upper(),
            epoch=MasterEpoch(int(document["epoch"])),
        )
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return ProbeAnswer(group="", replica_id=None, incarnation=0, role="", epoch=MasterEpoch(0))
