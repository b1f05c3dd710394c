"""One silent connection between two machines, for tests of what faults do to it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tests.sim.cluster_sim.tcp_scripts import Recorder

from paceline_chaos.sim import Simulation

PORT = 9000
Main = Callable[[], Coroutine[Any, Any, object]]


def listen(ends: list[Recorder]) -> Main:
    """A server that takes connections and says nothing."""

    async def main() -> None:
        def accept() -> Recorder:
            ends.append(Recorder())
            return ends[-1]

        await asyncio.get_running_loop().create_server(accept, "0.0.0.0", PORT)
        await asyncio.Event().wait()

    return main


def dial(ends: list[Recorder], host: str = "server") -> Main:
    async def main() -> None:
        end = Recorder()
        ends.append(end)
        await asyncio.get_running_loop().create_connection(lambda: end, host, PORT)
        await end.lost

    return main


class Pair:
    """A connection from machine `client` to machine `server`, both silent."""

    def __init__(self, world: Simulation) -> None:
        self.world = world
        self.there: list[Recorder] = []
        self.here: list[Recorder] = []
        self.server = world.machine("server").start(listen(self.there))
        world.run(0.01)
        self.client = world.machine("client").start(dial(self.here))
        world.run(lambda: bool(self.there) and bool(self.here) and self.here[0].made.done())
        world.run(lambda: self.there[0].made.done())

    def send(self, content: bytes) -> None:
        with self.world.loop.acting_as(self.client):
            self.here[0].transport.write(content)

    def answer(self, content: bytes) -> None:
        with self.world.loop.acting_as(self.server):
            self.there[0].transport.write(content)
