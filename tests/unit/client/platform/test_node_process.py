"""What every node does before its loop runs."""

import gc
import resource
import subprocess
import sys

from paceline.platform.node_process import raise_file_limit, settle_heap


def test_the_soft_limit_of_open_files_becomes_the_hard_one() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    hard = before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, before[0]), hard))
    try:
        raise_file_limit()
        soft, still_hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

    assert soft == min(hard, 1_048_576)
    assert still_hard == hard


def test_full_collections_pass_over_what_was_there_when_a_node_began_to_serve() -> None:
    frozen = gc.get_freeze_count()
    settle_heap()
    try:
        assert gc.get_freeze_count() > frozen + 10_000
        assert len(gc.get_objects()) < 1_000
    finally:
        gc.unfreeze()


PEAK = """
import asyncio
from paceline.platform import node_process
from paceline.server.byte_budget import ByteBudget
from paceline.platform.runtime import spawn

async def main():
    node_process.tune_malloc()
    node_process.TRIM_LOOK_MS = 1
    budget = ByteBudget()
    spawn(node_process.give_memory_back(budget), name="give")
    await asyncio.sleep(0.01)
    holder = budget.holder(None)
    assert holder.take(100 * 2**20)
    peak = [bytes(2**20) for _ in range(100)]
    stays = bytes(2**20)  # above them: the heap cannot shrink from its end
    held = node_process._anonymous_bytes()
    peak.clear()
    await asyncio.sleep(0.01)
    print(node_process._anonymous_bytes() > held - 2**20)
    holder.close()
    while node_process._anonymous_bytes() > held - 90 * 2**20:
        await asyncio.sleep(0.001)
    print(len(stays))

asyncio.run(main())
"""


def test_memory_of_a_peak_goes_back_to_the_system_when_it_is_over() -> None:
    told = subprocess.run(
        [sys.executable, "-c", PEAK], capture_output=True, text=True, timeout=20, check=False
    )

    assert told.stdout.split() == ["True", str(2**20)], told


SWITCHING = """
import sys
from paceline.platform.node_process import run_node

async def tell():
    print(sys.getswitchinterval())

run_node(tell())
"""


def test_a_thread_that_returns_from_the_disk_waits_little_for_a_busy_loop() -> None:
    told = subprocess.run(
        [sys.executable, "-c", SWITCHING], capture_output=True, text=True, check=True
    )

    assert float(told.stdout) <= 0.001
