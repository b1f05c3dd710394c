"""Equal seeds do equal things: over processes, hashes of strings, heaps, and worlds before them."""

import asyncio
import gc
import os
import random
import socket
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest
from tests.sim.cluster_sim.digests import digest, serve, use

from paceline.platform.runtime import pause
from paceline_chaos.sim import Simulation, first_difference

ROOT = Path(__file__).parents[3]


def test_digests_are_those_of_the_seed_alone() -> None:
    """Three processes with other hashes and heaps; several worlds in each, in other orders."""
    runs = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.sim.cluster_sim.digests", noise, *seeds],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed, noise, seeds in (
            ("0", "0", ("a", "b")),
            ("77", "30000", ("b", "a")),
            ("random", "7000", ("b", "b", "a")),
        )
    ]
    here = {seed: f"{seed} {digest(seed)}" for seed in ("a", "b")}
    lines = {line for run in runs for line in run.communicate()[0].splitlines()}

    assert lines == set(here.values())
    assert here["a"].split()[-1] != here["b"].split()[-1]


def test_logs_of_other_seeds_part_and_those_of_equal_seeds_do_not() -> None:
    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for wait in range(20):
                group.create_task(pause(wait * 10))

    def log(seed: str) -> list[str]:
        with Simulation(seed, keeps_log=True) as world:
            for name in ("one", "two", "three"):
                world.machine(name).start(main)
            world.run(1)
            assert world.loop.trace.log is not None
            return world.loop.trace.log

    assert first_difference(log("a"), log("a")) is None
    assert "main of" in (first_difference(log("a"), log("b")) or "")


def test_python_is_as_it_was_after_a_simulation() -> None:
    def seams() -> tuple[object, ...]:
        clocks = [vars(time)[name] for name in ("time", "monotonic", "sleep", "perf_counter")]
        return *clocks, os.urandom, socket.socket, threading.Thread.start

    before = seams()
    random.seed("before")
    expected = random.Random("before").random()

    with Simulation("1") as world:
        inside = seams()
        random.random()  # noqa: TID251 - what libraries do
        world.run(5)

    assert all(one is not other for one, other in zip(before, inside, strict=True))
    assert seams() == before
    assert gc.isenabled()
    assert random.random() == expected  # noqa: TID251 - the state of before


def test_nothing_of_a_simulation_is_held_after_it() -> None:
    with Simulation("1") as world:
        process = world.machine("m").start(serve)
        world.machine("c").start(use(["m"]))
        world.run(1)
        process.kill()
        world.machine("m").start(serve)
    gone = weakref.ref(world.loop)

    del world, process
    gc.collect()

    assert gone() is None


def test_process_that_never_ran_ends_silently() -> None:
    with Simulation("1") as world:
        world.machine("m").start(serve).kill()
        world.machine("n").start(serve)


def test_time_is_virtual_inside() -> None:
    seen: list[float] = []

    async def main() -> None:
        began = time.monotonic()  # noqa: TID251 - as libraries read it
        await pause(3_600_000)
        seen.append(time.monotonic() - began)  # noqa: TID251 - as libraries read it

    with Simulation("1") as world:
        world.machine("m").start(main)
        world.run(4000)

    assert seen == pytest.approx([3600], abs=0.001)


@pytest.mark.parametrize(
    "escape",
    [
        lambda: threading.Thread(target=list).start(),
        lambda: subprocess.Popen(["true"]),
        lambda: vars(time)["sleep"](1),
        lambda: socket.create_connection(("127.0.0.1", 1)),
        lambda: socket.socketpair(),
        lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
    ],
)
def test_real_system_is_out_of_reach(escape: object) -> None:
    async def main() -> None:
        assert callable(escape)
        escape()

    with Simulation("1") as world:
        process = world.machine("m").start(main)
        world.run(1)

        assert isinstance(process.error, RuntimeError | AssertionError)
