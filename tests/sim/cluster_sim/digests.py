"""Prints the digests of small worlds: run in other processes, with other hashes and heaps.

python digests.py NOISE SEED...
"""

import asyncio
import os
import random
import sys
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

import aiohttp
from aiohttp import WSMsgType, web

from paceline.platform.runtime import pause, spawn
from paceline_chaos.sim import Simulation

PORT = 8080
Main = Callable[[], Coroutine[Any, Any, None]]


async def serve() -> None:
    """HTTP, WebSockets, and answers that hold what the operating system calls chance."""

    async def echo(request: web.Request) -> web.Response:
        body = await request.read()
        return web.Response(body=body + os.urandom(8) + uuid.uuid4().bytes)

    async def talk(request: web.Request) -> web.WebSocketResponse:
        talking = web.WebSocketResponse(heartbeat=0.5)
        await talking.prepare(request)
        async for message in talking:
            if message.type is WSMsgType.TEXT:
                await talking.send_str(message.data + str(random.getrandbits(32)))
        return talking

    application = web.Application()
    application.router.add_post("/echo", echo)
    application.router.add_get("/talk", talk)
    runner = web.AppRunner(application, access_log=None, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", PORT).start()
    await asyncio.Event().wait()


async def ask(session: aiohttp.ClientSession, hosts: list[str]) -> None:
    timeout = aiohttp.ClientTimeout(total=0.4)
    while True:
        host = random.choice(hosts)
        try:
            async with session.post(
                f"http://{host}:{PORT}/echo", data=b"x" * random.randrange(5000), timeout=timeout
            ) as answer:
                await answer.read()
            await pause(random.uniform(1, 40))
        except (aiohttp.ClientError, TimeoutError):
            await pause(random.uniform(1, 50))


async def chat(session: aiohttp.ClientSession, host: str) -> None:
    while True:
        try:
            async with session.ws_connect(f"http://{host}:{PORT}/talk") as talking:
                for number in range(20):
                    await talking.send_str(f"{host} {number}")
                    await talking.receive(timeout=0.5)
                    await pause(20)
        except (aiohttp.ClientError, TimeoutError, ConnectionError):
            await pause(30)


def use(hosts: list[str]) -> Main:
    """Clients that are started and cancelled in groups, as sets of tasks and futures."""

    async def main() -> None:
        connector = aiohttp.TCPConnector(limit=4)
        async with aiohttp.ClientSession(connector=connector) as session:
            while True:
                tasks = {asyncio.ensure_future(ask(session, hosts)) for _ in range(6)}  # noqa: TID251 - as programs do
                spawn(chat(session, hosts[0]), name="chat")
                await asyncio.wait(tasks, timeout=0.7)
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)

    return main


def digest(seed: str) -> str:
    """Of three virtual seconds with all kinds of faults."""
    with Simulation(seed) as world:
        servers = ["s1", "s2"]
        for name in servers:
            world.machine(name).start(serve)
        for name in ("c1", "c2"):
            world.machine(name).start(use(servers))
        world.run(0.5)
        world.machine("s1").processes[-1].kill()
        world.run(0.6)
        world.machine("s1").start(serve)
        world.cut("s2", "c1", is_one_way=True)
        world.run(1.2)
        world.heal()
        world.machine("s2").set_clock(rate=1.1)
        world.machine("s2").processes[-1].pause()
        world.run(1.5)
        world.machine("s2").processes[-1].resume()
        world.reset("c2", "s1")
        world.run(2.0)
        world.machine("s2").power_off()
        world.run(2.4)
        world.machine("s2").start(serve)
        world.run(3.0)
        return f"{world.loop.handles_count} {world.digest()}"


def main(noise: str, *seeds: str) -> None:
    """Leave holes in the heap, then run the worlds one after another in this process."""
    held = [bytearray(size % 2003) for size in range(int(noise))]
    del held[::3]
    for seed in seeds:
        sys.stdout.write(f"{seed} {digest(seed)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
