"""Proves that a seed is one run: the same digest however the Python process around it looks.

A plain second run proves little: sets and heaps happen to look the same. So a seed runs again in a
fresh interpreter with another hash seed, with rubbish on its heap and, every fourth seed, after
another world in the same process. `digests_of` takes one seed through all ways, for the tests;
`rerun` takes it through one, for the mass of seeds.
"""

import multiprocessing
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from paceline_chaos.cluster_sim.topology import LOAD_MS

WAYS: Mapping[str, tuple[str, str]] = {
    "hash 0": ("0", "plain"),
    "hash 1": ("1", "noise"),
    "hash random": ("random", "noise"),
    "second world": ("0", "after"),
}
"""Way -> PYTHONHASHSEED and what happens before the world."""
_TIMEOUT_S = 600
_SHORT_LOAD_MS = 8_000
"""For tests that take every way."""
_HASH_SEED_MAX = 2**32 - 1
_PROGRAM = """
import os, sys, orjson
{prelude}
from paceline_chaos.cluster_sim.run import run_world
before, seed, load_ms = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rubbish = []
if "noise" in before:
    for number in range(int.from_bytes(os.urandom(2), "big")):
        rubbish.append([object() for _ in range(number % 17)])
    del rubbish[::3]
if "after" in before:
    run_world(seed + 1, load_ms=load_ms)
result = run_world(seed, load_ms=load_ms)
counted = {name: result.counters[name] for name in ("operations", "faults")}
sys.stdout.buffer.write(orjson.dumps({"digest": result.digest, **counted}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """A seed that was run twice, in two ways."""

    seed: int
    way: str
    """Of the second run."""
    digest: str
    """Empty if the harness broke; stderr has the traceback."""
    digest_again: str
    operations: int
    faults: int

    @property
    def is_same(self) -> bool:
        return self.digest == self.digest_again != ""


def rerun(seed: int, *, load_ms: int = LOAD_MS, prelude: str = "") -> Rerun:
    """Run a seed plainly and in another way, one after the other.

    `prelude`: code that both interpreters run first; a test breaks something with it.
    """
    hash_seed = str(1 + seed * 7919 % _HASH_SEED_MAX)
    before = "noise after" if seed % 4 == 3 else "noise"
    first = _said(_start("0", "plain", seed, load_ms, prelude))
    again = _said(_start(hash_seed, before, seed, load_ms, prelude))
    return Rerun(
        seed=seed,
        way=f"PYTHONHASHSEED={hash_seed}, {before}",
        digest=first["digest"],
        digest_again=again["digest"],
        operations=first["operations"],
        faults=first["faults"],
    )


def rerun_many(seeds: Iterable[int], *, processes: int | None = None) -> Iterator[Rerun]:
    """As they come, in any order; `processes`: as many as there are cores."""
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(rerun, seeds)


def digests_of(seed: int, *, load_ms: int = _SHORT_LOAD_MS) -> dict[str, str]:
    """Way -> digest of the seed's world, all ways at once."""
    started = {
        way: _start(hash_seed, before, seed, load_ms, "")
        for way, (hash_seed, before) in WAYS.items()
    }
    return {way: _said(process)["digest"] for way, process in started.items()}


def _start(
    hash_seed: str, before: str, seed: int, load_ms: int, prelude: str
) -> subprocess.Popen[bytes]:
    program = _PROGRAM.replace("{prelude}", prelude)
    return subprocess.Popen(
        ["env", f"PYTHONHASHSEED={hash_seed}", sys.executable, "-c", program]
        + [before, str(seed), str(load_ms)],
        stdout=subprocess.PIPE,
    )


def _said(process: subprocess.Popen[bytes]) -> dict[str, Any]:  # JSON
    """What an interpreter has found out; no digest if the harness broke."""
    with process:
        try:
            text = process.communicate(timeout=_TIMEOUT_S)[0]
        finally:
            process.kill()
    broken: dict[str, Any] = {"digest": "", "operations": 0, "faults": 0}
    said: dict[str, Any] = broken if process.returncode else orjson.loads(text)
    return said
