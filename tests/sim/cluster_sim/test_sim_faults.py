"""What connections see when processes die, machines lose power, and wires are cut."""

import asyncio
import errno

import pytest
from tests.sim.cluster_sim.pairs import PORT, Main, Pair, dial, listen
from tests.sim.cluster_sim.tcp_scripts import Recorder

from paceline.platform.runtime import pause
from paceline_chaos.sim import Simulation


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
