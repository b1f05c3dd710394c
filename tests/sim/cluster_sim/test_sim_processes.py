"""Processes that end, die, stop or block, and the clocks of their machines."""

import asyncio
import gc
import signal

import pytest
from tests.sim.cluster_sim.pairs import Main, Pair

from paceline.platform.runtime import pause, spawn
from paceline_chaos.sim import Machine, Process, SimDeadlock, SimStuck, Simulation, State


def test_killed_process_runs_no_clean_up() -> None:
    ran: list[str] = []

    async def child() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ran.append("finally")

    async def main() -> None:
        try:
            spawn(child(), name="child")
            asyncio.get_running_loop().call_later(1, ran.append, "timer")
            await pause(10)
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        finally:
            ran.append("finally of main")

    with Simulation("1") as world:
        process = world.machine("m").start(main)
        world.run(0.1)
        process.kill()
        gc.collect()
        world.run(10)

        assert process.state is State.KILLED
        assert ran == []


def test_program_that_returns_has_its_tasks_cancelled() -> None:
    ran: list[str] = []

    async def child() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await pause(1)
            ran.append("finally")

    async def main() -> None:
        spawn(child(), name="child")
        await pause(1)

    with Simulation("1") as world:
        ended: list[Process] = []
        process = world.machine("m").start(main)
        process.on_end.append(ended.append)
        world.run(1)

        assert ran == ["finally"]
        assert ended == [process]
        assert process.state is State.EXITED


def test_program_that_raises_has_failed() -> None:
    async def main() -> None:
        raise ValueError("no")

    with Simulation("1") as world:
        process = world.machine("m").start(main)
        world.run(1)

        assert process.state is State.FAILED
        assert isinstance(process.error, ValueError)


def test_signal_reaches_the_handler_of_its_process_only() -> None:
    seen: list[str] = []

    def program(name: str) -> Main:
        async def main() -> None:
            stop = asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
            await stop.wait()
            seen.append(name)

        return main

    with Simulation("1") as world:
        one = world.machine("one").start(program("one"))
        world.machine("other").start(program("other"))
        world.run(0.1)
        one.signal(signal.SIGTERM)
        world.run(0.2)

        assert seen == ["one"]


def test_timers_of_a_stopped_process_fire_when_it_goes_on() -> None:
    fired: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(1, lambda: fired.append(loop.time()))
        await asyncio.Event().wait()

    with Simulation("1") as world:
        process = world.machine("m").start(main)
        world.run(0.5)
        process.pause()
        world.run(3)
        process.resume()
        world.run(4)

        assert fired == pytest.approx([3], abs=0.001)


def test_clocks_of_machines_differ_and_timers_follow_them() -> None:
    woke: dict[str, tuple[float, float]] = {}

    def program(world: Simulation, machine: Machine) -> Main:
        async def main() -> None:
            began = machine.clock.monotonic_ms()
            await pause(100_000)
            woke[machine.name] = world.now_us / 1e6, machine.clock.monotonic_ms() - began

        return main

    with Simulation("1") as world:
        for name in ("right", "fast", "late"):
            machine = world.machine(name)
            machine.start(program(world, machine))
        world.machine("right").set_clock(wall_step_ms=-5_000)
        world.machine("fast").set_clock(rate=1.25)
        world.machine("late").set_clock(offset_ms=60_000)
        world.run(50)
        world.machine("late").set_clock(rate=2.0)
        world.run(200)
        walls = {name: machine.clock.unix_ms() for name, machine in world.machines.items()}

    assert {name: at for name, (at, _) in woke.items()} == pytest.approx(
        {"right": 100, "fast": 80, "late": 75}, abs=0.01
    )
    assert all(local == pytest.approx(100_000, abs=5) for _, local in woke.values())
    assert walls["late"] - walls["right"] == pytest.approx(150_000 + 65_000, abs=5)


def test_wait_for_what_can_never_happen_says_who_waits() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with Simulation("1") as world:
        world.machine("m").start(main)
        with pytest.raises(SimDeadlock, match="main of m"):
            world.run(lambda: False)


def test_condition_that_takes_too_long_is_stuck() -> None:
    async def main() -> None:
        while True:
            await pause(100)

    with Simulation("1") as world:
        world.machine("m").start(main)
        with pytest.raises(SimStuck, match="not within 3 s"):
            world.run(lambda: False, limit_s=3)


def test_what_nobody_caught_is_told() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await pause(1)

    with Simulation("1") as world:
        world.machine("m").start(main)
        world.run(1)

        assert len(world.errors) == 1
        assert "ZeroDivisionError" in world.errors[0]


def test_process_in_a_blocking_call_does_nothing_else_and_sends_after_it() -> None:
    ticks: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def tick() -> None:
            ticks.append(loop.time())
            loop.call_later(0.1, tick)

        tick()
        await asyncio.Event().wait()

    with Simulation("1") as world:
        pair = Pair(world)
        began = world.loop.now_ns
        other = world.machine("other").start(main)
        with world.loop.acting_as(pair.client):
            pair.client.block(500)
            pair.here[0].transport.write(b"synced")
            read = world.loop.time()
        with world.loop.acting_as(other):
            other.loop.call_soon(other.block, 300)
        world.run_for(0.4)
        before = bytes(pair.there[0].received)
        world.run_for(0.2)

        assert read == pytest.approx(began / 1e9 + 0.5)
        assert before == b""
        assert pair.there[0].received == b"synced"
        assert [tick - ticks[0] for tick in ticks] == pytest.approx([0, 0.3, 0.4, 0.5], abs=0.01)


def test_program_that_spins_is_found() -> None:
    async def main() -> None:
        await pause(100)
        while True:
            await pause(0)

    with Simulation("1") as world:
        world.loop.housekeeping_handles = world.loop._housekeeping_at = 1000
        world.machine("spinner").start(main)
        with pytest.raises(SimStuck, match="something spins; ready now: spinner"):
            world.run(10)
