"""A connection of a client to a gateway: bytes both ways, in order, some time on the way."""

import asyncio
from collections.abc import Callable

from paceline_chaos.cluster_sim.jobs.around import Around

WAY_MS_MAX = 2.0


class Way:
    """One direction. What is sent while something is on its way arrives with it."""

    def __init__(self, around: Around, arrived: Callable[[bytes], None]) -> None:
        self._around = around
        self._arrived = arrived
        self._waiting: list[bytes] = []
        self._is_cut = False

    def send(self, data: bytes) -> None:
        if self._is_cut:
            return
        if not self._waiting:
            way_s = self._around.random.uniform(0, WAY_MS_MAX) / 1000
            asyncio.get_running_loop().call_later(way_s, self._arrive)
        self._waiting.append(data)

    def cut(self) -> None:
        """What is on its way is lost."""
        self._is_cut = True

    def _arrive(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not self._is_cut:
            self._arrived(b"".join(waiting))
