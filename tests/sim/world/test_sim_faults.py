"""What a fault does to programs: processes that die or stop, machines without power, cut wires."""

import asyncio
import errno
import gc
import signal
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.sim.world.tcp_scripts import Recorder

from paceline.runtime import pause, spawn
from paceline_chaos.sim import Machine, Process, SimDeadlock, SimStuck, Simulation, State

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


def test_peer_of_a_killed_process_sees_the_end() -> None:
    with Simulation("1") as world:
        pair = Pair(world)
        pair.server.kill()
        world.run_for(1)

        assert pair.here[0].seen == ["made", "eof", ("lost", "NoneType")]
        assert pair.there[0].seen == ["made"]


def test_killed_process_with_unread_bytes_resets() -> None:
    with Simulation("1") as world:
        pair = Pair(world)
        pair.server.pause()
        pair.send(b"never read")
        world.run_for(1)
        pair.server.kill()
        world.run_for(1)

        assert pair.here[0].seen == ["made", ("lost", "ConnectionResetError")]


def test_bytes_that_the_kernel_took_arrive_after_the_kill() -> None:
    with Simulation("1") as world:
        pair = Pair(world)
        pair.send(b"last words")
        pair.client.kill()
        world.run_for(1)

        assert pair.there[0].received == b"last words"
        assert pair.there[0].seen == ["made", "eof", ("lost", "NoneType")]


def test_stopped_process_takes_bytes_up_to_the_window_and_goes_on_later() -> None:
    with Simulation("1") as world:
        pair = Pair(world)
        pair.server.pause()
        pair.send(b"x" * 1_000_000)
        world.run_for(5)
        unsent = pair.here[0].transport.get_write_buffer_size()
        received = len(pair.there[0].received)
        pair.server.resume()
        world.run_for(5)

        assert (received, unsent) == (0, 1_000_000 - 256 * 1024)
        assert len(pair.there[0].received) == 1_000_000
        assert pair.here[0].seen == ["made", "pause", "resume"]


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


def test_peer_of_a_machine_without_power_hears_nothing_until_it_boots() -> None:
    with Simulation("1") as world:
        pair = Pair(world)
        world.machine("server").power_off()
        pair.send(b"anybody?")
        world.run_for(30)
        in_the_dark = list(pair.here[0].seen)
        world.machine("server").boot()
        world.run_for(2)

        assert in_the_dark == ["made"]
        assert pair.here[0].seen == ["made", ("lost", "ConnectionResetError")]


def test_silent_peer_of_a_machine_that_rebooted_is_reset_when_it_speaks() -> None:
    with Simulation("1") as world:
        pair = Pair(world)
        world.machine("server").power_off()
        world.run_for(1)
        world.machine("server").boot()
        world.run_for(10)
        before = list(pair.here[0].seen)
        pair.send(b"anybody?")
        world.run_for(1)

        assert before == ["made"]
        assert pair.here[0].seen == ["made", ("lost", "ConnectionResetError")]


def test_one_way_cut_holds_one_direction_and_delivers_after_the_heal() -> None:
    with Simulation("1") as world:
        pair = Pair(world)
        world.cut("client", "server", is_one_way=True)
        pair.send(b"held ")
        world.run_for(1)
        pair.send(b"and in order")
        pair.answer(b"not held")
        world.run_for(1)
        during = bytes(pair.there[0].received), bytes(pair.here[0].received)
        world.heal()
        world.run_for(1.1)

        assert during == (b"", b"not held")
        assert pair.there[0].received == b"held and in order"
        assert pair.here[0].seen == ["made"]


def test_side_whose_acknowledgements_are_cut_stalls_after_the_window() -> None:
    with Simulation("1") as world:
        pair = Pair(world)
        world.cut("client", "server", is_one_way=True)
        pair.answer(b"x" * 1_000_000)
        world.run_for(5)
        during = len(pair.here[0].received)
        world.heal()
        world.run_for(5)

        assert during == 256 * 1024
        assert len(pair.here[0].received) == 1_000_000


def test_connection_breaks_when_nobody_acknowledges_for_a_quarter_of_an_hour() -> None:
    with Simulation("1") as world:
        pair = Pair(world)
        world.cut("client", "server")
        pair.send(b"x")
        world.run_for(890)
        before = list(pair.here[0].seen)
        world.run_for(20)

        assert before == ["made"]
        assert pair.here[0].seen == ["made", ("lost", "TimeoutError")]


def test_connecting_fails_as_linux_has_it() -> None:
    failures: dict[str, tuple[int | None, float]] = {}

    def program(host: str) -> Main:
        async def main() -> None:
            loop = asyncio.get_running_loop()
            began = loop.time()
            try:
                await loop.create_connection(Recorder, host, PORT)
            except OSError as error:
                failures[host] = error.errno, loop.time() - began

        return main

    with Simulation("1") as world:
        for name in ("up", "off", "behind"):
            world.machine(name)
        world.machine("off").power_off()
        client = world.machine("client")
        world.cut("behind", "client", is_one_way=True)
        for host in ("up", "off", "behind", "10.9.9.9", "client"):
            client.start(program(host))
        world.run(200)

    assert {host: code for host, (code, _) in failures.items()} == {
        "up": errno.ECONNREFUSED,
        "client": errno.ECONNREFUSED,
        "off": errno.ETIMEDOUT,
        "behind": errno.ETIMEDOUT,
        "10.9.9.9": errno.EHOSTUNREACH,
    }
    assert failures["off"][1] == pytest.approx(127, abs=0.1)
    assert failures["up"][1] < 0.01


def test_connecting_succeeds_at_the_next_try_after_a_heal() -> None:
    with Simulation("1") as world:
        there: list[Recorder] = []
        here: list[Recorder] = []
        world.machine("server").start(listen(there))
        world.machine("client")
        world.cut("client", "server")
        world.run(0.01)
        world.machine("client").start(dial(here))
        world.run(2)
        world.heal("client", "server")
        world.run(3.5)

        assert here[0].seen == ["made"]
        assert there[0].seen == ["made"]


def test_isolated_machine_is_reached_by_nobody_until_healed() -> None:
    with Simulation("1") as world:
        pair = Pair(world)
        world.isolate("server")
        pair.send(b"x")
        world.run_for(1)
        during = bytes(pair.there[0].received)
        world.heal("server")
        world.run_for(1.1)

        assert during == b""
        assert pair.there[0].received == b"x"


def test_reset_breaks_both_ends() -> None:
    with Simulation("1") as world:
        pair = Pair(world)
        count = world.reset("client", "server")
        world.run_for(1)

        assert count == 1
        assert pair.here[0].seen == ["made", ("lost", "ConnectionResetError")]
        assert pair.there[0].seen == ["made", ("lost", "ConnectionResetError")]


def test_delay_is_that_of_one_direction() -> None:
    with Simulation("1") as world:
        pair = Pair(world)
        world.delay("client", "server", base_ms=500, jitter_ms=0)
        pair.send(b"slow")
        pair.answer(b"quick")
        world.run_for(0.1)
        early = bytes(pair.there[0].received), bytes(pair.here[0].received)
        world.run_for(0.5)

        assert early == (b"", b"quick")
        assert pair.there[0].received == b"slow"


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


def test_listener_with_a_full_queue_lets_clients_try_again() -> None:
    there: list[Recorder] = []
    here: list[Recorder] = []

    async def serve() -> None:
        def accept() -> Recorder:
            there.append(Recorder())
            return there[-1]

        await asyncio.get_running_loop().create_server(accept, "0.0.0.0", PORT, backlog=2)
        await asyncio.Event().wait()

    with Simulation("1") as world:
        server = world.machine("server").start(serve)
        world.run(0.1)
        server.pause()
        for number in range(5):
            world.machine(f"client{number}").start(dial(here))
            world.run_for(0.01)
        connected = sum(end.made.done() for end in here)
        server.resume()
        world.run_for(4)

        assert connected == 2
        assert sum(end.made.done() for end in here) == 5
        assert len(there) == 5


class Chunks(Recorder):
    """Keeps what arrived at once."""

    def __init__(self) -> None:
        super().__init__()
        self.chunks: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        self.chunks.append(data)


def test_segments_are_split_and_merged_and_stay_in_order() -> None:
    there: list[Chunks] = []

    async def serve() -> None:
        def accept() -> Chunks:
            there.append(Chunks())
            return there[-1]

        await asyncio.get_running_loop().create_server(accept, "0.0.0.0", PORT)
        await asyncio.Event().wait()

    async def talk() -> None:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(Recorder, "server", PORT)
        for number in range(1000):
            transport.write(b"%03d" % number)
            await pause(0.2)

    with Simulation("1") as world:
        world.machine("server").start(serve)
        world.run(0.1)
        client = world.machine("client").start(talk)
        world.run(lambda: client.is_dead)
        world.run_for(1)

    assert b"".join(there[0].chunks) == b"".join(b"%03d" % number for number in range(1000))
    sizes = [len(chunk) for chunk in there[0].chunks]
    assert sum(size < 3 for size in sizes) > 50
    assert sum(size > 3 for size in sizes) > 50


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
