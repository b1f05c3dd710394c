"""`python -m tests.parts`: what `make test` runs after `make check`; with names, those parts alone.

A real cluster waits more than it computes, and minds the time; a simulated one computes and has no
time but its own. So real clusters run side by side, Spark beside them, and simulations take at the
lowest priority what those leave of the machine. What judges a time of this machine runs last, with
no other cluster beside it (marker `alone`).
"""

import argparse
import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.process.harness import end_with_parent

from paceline.platform.runtime import SystemClock

ROOT = Path(__file__).parents[1]
NICE = 19
"""A sixtieth of a processor where clusters want it whole."""
STOP_TIMEOUT_S = 30
"""After an interrupt: clusters stop, which they do within 20 s."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One call of pytest."""

    title: str
    folders: tuple[str, ...]
    marks: str = ""
    """What `-m` selects; the tests of a folder that one part leaves out are another one's."""
    options: tuple[str, ...] = ()
    is_background: bool = False
    """It runs at a low priority."""
    is_shown_at_end: bool = False
    """Its output, in one piece: others tell theirs meanwhile."""

    @property
    def arguments(self) -> list[str]:
        marks = ["-m", self.marks] if self.marks else []
        return [*self.options, *marks, *self.folders]


def parts(*, jobs: str = "auto", clusters: str = "2") -> dict[str, Part]:
    """`jobs`: processes for tests; `clusters`: for tests with a real cluster each."""
    computing = ("-n", jobs, "--dist", "worksteal")
    waiting = str(int(clusters) + 1)  # clients that poll leave room for one more
    return {
        "simulated": Part(
            title="Simulated clusters",
            folders=("tests/sim",),
            marks="not real_time",
            # A test that computes for half a minute takes minutes beside others with priority.
            options=(*computing, "--timeout", "1800"),
            is_background=True,
            is_shown_at_end=True,
        ),
        "processes": Part(
            title="Real processes",
            folders=("tests/process",),
            marks="not alone",
            options=("-n", clusters, "--dist", "loadgroup"),
        ),
        "real_time": Part(
            title="Controllers' Raft over sockets",
            folders=("tests/sim",),
            marks="real_time",
            options=computing,
        ),
        "spark": Part(
            title="Spark",
            folders=("tests/spark",),
            options=("--timeout", "400"),
            is_shown_at_end=True,
        ),
        "interop": Part(
            title="RocketMQ's own clients and servers",
            folders=("tests/interop",),
            marks="not python_client",
            options=("-n", waiting, "--dist", "loadgroup", "--timeout", "600"),
        ),
        "python_client": Part(
            title="RocketMQ's Python client",
            folders=("tests/interop",),
            marks="python_client",
            options=("-n", clusters, "--dist", "loadgroup", "--timeout", "600"),
            is_shown_at_end=True,
        ),
        "alone": Part(
            title="Real processes whose time counts",
            folders=("tests/process",),
            marks="alone",
        ),
    }


async def run_all(known: dict[str, Part]) -> bool:
    """Every part once; what has begun ends, and after a failure nothing more begins."""

    async def clusters() -> bool:
        side_by_side = await asyncio.gather(
            run_in_turn([known["processes"], known["real_time"]]),
            run_in_turn([known["spark"], known["python_client"]]),
        )
        return all(side_by_side) and await run(known["alone"])

    return all(await asyncio.gather(run(known["simulated"]), clusters()))


async def run_in_turn(chosen: Sequence[Part]) -> bool:
    """One after the other, up to the first that fails."""
    for part in chosen:
        if not await run(part):
            return False
    return True


async def run(part: Part) -> bool:
    """Whether all of its tests passed. Interrupted, it interrupts pytest, which stops clusters."""
    clock = SystemClock()
    began_ms = clock.monotonic_ms()
    if not part.is_shown_at_end:
        say(part.title)
    with tempfile.TemporaryFile() as kept:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "pytest", "-q", *part.arguments),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=kept if part.is_shown_at_end else None,
            stderr=subprocess.STDOUT if part.is_shown_at_end else None,
            start_new_session=True,
            preexec_fn=_in_background if part.is_background else end_with_parent,
        )
        try:
            status = await process.wait()
        finally:
            if process.returncode is None:
                await _interrupt(process)
        if part.is_shown_at_end:
            kept.seek(0)
            say(f"\n{part.title}\n{kept.read().decode(errors='replace')}")
    is_good = status == 0
    seconds = (clock.monotonic_ms() - began_ms) // 1000
    say(f"{part.title}: {'passed' if is_good else 'FAILED'} after {seconds} s")
    return is_good


async def _interrupt(process: asyncio.subprocess.Process) -> None:
    """As Ctrl-C does: its workers hear of it too."""
    os.killpg(process.pid, signal.SIGINT)
    try:
        await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
    except TimeoutError:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _in_background() -> None:
    """In the child before exec: whoever else wants a processor gets it first."""
    end_with_parent()
    os.nice(NICE)
    # Where Linux shares processors out between sessions first, the session counts.
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(NICE))


def say(what: str) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the parts of `make test`.")
    parser.add_argument("--jobs", default="auto", help="processes for simulations")
    parser.add_argument("--clusters", default="2", help="real clusters at a time")
    parser.add_argument("part", nargs="*", help="all by default: " + ", ".join(parts()))
    given = parser.parse_args()
    known = parts(jobs=given.jobs, clusters=given.clusters)
    if unknown := [name for name in given.part if name not in known]:
        parser.error(f"no part is called {unknown[0]!r}; known: {', '.join(known)}")
    chosen = [known[name] for name in given.part]
    try:
        is_good = asyncio.run(run_in_turn(chosen) if chosen else run_all(known))
    except KeyboardInterrupt:
        return 130
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
