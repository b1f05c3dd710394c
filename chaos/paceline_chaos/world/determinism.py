"""Proves that a seed is one run: the same digest however the Python process around it looks.

A plain second run proves little: sets and heaps happen to look the same. So each seed runs in
fresh interpreters with hash seeds 0, 1 and random, with rubbish on the heap, and after another
world in the same process.
"""

import subprocess
import sys
from collections.abc import Mapping

WAYS: Mapping[str, tuple[str, str]] = {
    "hash 0": ("0", "plain"),
    "hash 1": ("1", "noise"),
    "hash random": ("random", "noise"),
    "second world": ("0", "after"),
}
"""Way -> PYTHONHASHSEED and what happens before the world."""
_LOAD_MS = 8_000
_PROGRAM = """
import os, sys
from paceline_chaos.world.run import run_world
way, seed, load_ms = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rubbish = []
if way == "noise":
    for number in range(int.from_bytes(os.urandom(2), "big")):
        rubbish.append([object() for _ in range(number % 17)])
    del rubbish[::3]
if way == "after":
    run_world(seed + 1, load_ms=load_ms)
sys.stdout.write(run_world(seed, load_ms=load_ms).digest)
"""


def digests_of(seed: int, *, load_ms: int = _LOAD_MS) -> dict[str, str]:
    """Way -> digest of the seed's world."""
    processes = {
        way: subprocess.Popen(
            ["env", f"PYTHONHASHSEED={hash_seed}", sys.executable, "-c", _PROGRAM]
            + [before, str(seed), str(load_ms)],
            stdout=subprocess.PIPE,
        )
        for way, (hash_seed, before) in WAYS.items()
    }
    found = {way: process.communicate()[0].decode() for way, process in processes.items()}
    assert all(process.returncode == 0 for process in processes.values()), found
    return found
