"""Brokers are told who is connected: once on each connection, again when it changes, every 30 s.

It is for people who look at them (`paceline client list`): nothing depends on it, so what goes
wrong is only noted, and told with the next one.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from paceline.errors import PacelineError
from paceline.net.cluster import BrokerConnection, Wakeup
from paceline.platform.runtime import cancel_and_wait, spawn
from paceline.platform.version import VERSION
from paceline.wire.calls.groups import Client
from paceline.wire.clients import HEARTBEAT_BROKER_INTERVAL_MS, TOPICS_MAX, Kind

log = logging.getLogger("paceline.client")

Who: TypeAlias = Callable[[], Mapping[str, Any]]
"""The fields of the call `client`, as of now."""

LANGUAGE = "PYTHON"
_TIMEOUT_MS = 5_000


def introduction(
    kind: Kind, group: str, client_id: str, topics: list[str], **about: Any
) -> dict[str, Any]:
    """The fields of the call; `about` is what consumers tell besides."""
    return {
        "kind": kind,
        "group": group,
        "client_id": client_id,
        "version": VERSION,
        "language": LANGUAGE,
        "topics": topics[:TOPICS_MAX],
        **about,
    }


class Introducer:
    """Owned by one link; at most one connection at a time."""

    def __init__(self, who: Who) -> None:
        self._who = who
        self._changed = Wakeup()
        self._task: asyncio.Task[None] | None = None

    def connected(self, connection: BrokerConnection) -> None:
        """Tell this broker from now on."""
        self.disconnected()
        self._task = spawn(self._tell(connection), name=f"introduce-{connection.address}")

    def disconnected(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def changed(self) -> None:
        """Something of what was told is different now, perhaps."""
        self._changed.set()

    async def close(self) -> None:
        await cancel_and_wait(self._task)

    async def _tell(self, connection: BrokerConnection) -> None:
        told: Mapping[str, Any] | None = None
        while True:
            now = self._who()
            if now != told:
                told = now
                try:
                    await connection.call(Client(**now), timeout_ms=_TIMEOUT_MS)
                except PacelineError as error:
                    fields = {"address": connection.address, "error": error.message}
                    log.debug("client_not_told", extra=fields)
            if not await self._changed.wait(HEARTBEAT_BROKER_INTERVAL_MS):
                told = None
