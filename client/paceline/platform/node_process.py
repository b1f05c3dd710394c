"""What processes of a cluster have in common: loop, signals, exit codes, the boot id."""

import asyncio
import contextlib
import ctypes
import gc
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar

import click

from paceline.errors import ConfigError, PacelineError
from paceline.platform.address import Address
from paceline.platform.event_loop import run_loop
from paceline.platform.runtime import pause
from paceline.server.byte_budget import ByteBudget

EXIT_REFUSED = 2
"""The process did not start, or had to stop, for the reason that its last line names."""
EXIT_BROKEN = 70
"""It ended by a bug (EX_SOFTWARE of sysexits.h)."""
_MIB = 1024 * 1024
_FILES_MAX = 1_048_576
_PR_SET_PDEATHSIG = 1
# M_TRIM_THRESHOLD, M_TOP_PAD and M_MMAP_THRESHOLD of glibc's malloc.h. Without them every block of
# more than 128 KiB goes back to the kernel and is faulted in anew (DESIGN 3, measured 1.5 to 7 x).
_MALLOC_OPTIONS = ((-1, 512 * _MIB), (-2, 16 * _MIB), (-3, 128 * _MIB))
TRIM_LOOK_MS = 5000
TRIM_REST_BYTES = 16 * _MIB
"""Who never held more than one large batch since the last look is at rest."""
TRIM_GROWN_BYTES = 32 * _MIB

_SWITCH_INTERVAL_S = 0.0005
"""A thread that comes back from a sync of the disk waits for so long, several times, while the
event loop computes. With Python's 5 ms, p99 of sends beside a client that kept the loop busy was
126 ms, and is 37 to 55."""

T = TypeVar("T")


class Served(Protocol):
    """A broker or a gateway."""

    ended: asyncio.Event
    """Set when the process must stop."""
    refusal: str | None
    """Why it must; None: it was asked to."""

    async def start(self) -> Any: ...

    async def stop(self) -> None: ...

    def reload_files(self) -> None:
        """Look at secrets and certificates now."""

    def fault(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What no task and no callback caught."""


async def serve(served: Served) -> None:
    """Run it until SIGTERM or SIGINT. Raises ConfigError: why it had to stop."""
    asyncio.get_running_loop().set_exception_handler(served.fault)
    obey_signals(served.ended, served.reload_files)
    try:
        await served.start()
        await served.ended.wait()
    finally:
        await served.stop()
    if served.refusal is not None:
        raise ConfigError(served.refusal)


def obey_signals(ended: asyncio.Event, reload_files: Callable[[], None]) -> None:
    """SIGTERM and SIGINT set `ended`, SIGHUP has files looked at."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, ended.set)
    loop.add_signal_handler(signal.SIGHUP, reload_files)


async def listening(starting: Awaitable[T], address: Address) -> T:
    """What `starting` gives; ConfigError where it raises OSError."""
    try:
        return await starting
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {address}: {error.strerror or error}; is another process there?"
        ) from error


def run_node(work: Coroutine[Any, Any, None]) -> None:
    """Run a node's main coroutine, on uvloop where it exists."""
    if not __debug__:
        work.close()
        raise SystemExit("paceline checks its invariants with assert: do not run it with python -O")
    raise_file_limit()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    run_loop(work)


def raise_file_limit() -> None:
    """As many open files as the system lets us have.

    A segment takes two (its file and its map), so the usual soft limit of 1024 would end a broker,
    and the whole group with it, at some 500 segments.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, _FILES_MAX)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    with contextlib.suppress(OSError, ValueError):  # macOS: above kern.maxfilesperproc
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def run_command(command: click.Command, arguments: list[str]) -> int:
    """Run a click command; its exit code. An operating error is one sentence on stderr and 2."""
    try:
        command.main(arguments, standalone_mode=False)
    except PacelineError as error:
        click.echo(f"{command.name}: {error.message}", err=True)
        return EXIT_REFUSED
    except click.ClickException as error:
        error.show()
        return EXIT_REFUSED
    except (click.Abort, KeyboardInterrupt):
        return 130
    return 0


def be_program(log_path: Path | None, program: Callable[[], int]) -> NoReturn:
    """In a forked child: input from nowhere, all output into a log file (None: where the parent's
    goes), then the program; its value is the exit code. Never returns: what the parent had on its
    stack is not this process's.
    """
    status = EXIT_BROKEN
    try:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        if log_path is not None:
            log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.close(log)
        status = program()
    except SystemExit as wanted:
        status = wanted.code if isinstance(wanted.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def end_with_parent() -> None:
    """In a child process: leave Ctrl-C to the parent, and end when the parent does (Linux)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def cores_here() -> int:
    """Cores that this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def tune_malloc() -> None:
    """Keep big buffers mapped (glibc only; elsewhere nothing happens)."""
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in _MALLOC_OPTIONS:
            mallopt(option, value)


async def give_memory_back(budget: ByteBudget) -> None:
    """For ever: once little has been held for a while, let the system have what malloc keeps since
    a peak (`tune_malloc`). Measured: 15 ms for 300 MiB, and nothing is faulted in anew under load.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    lowest = _anonymous_bytes() if trim is not None else 0
    while trim is not None:
        await pause(TRIM_LOOK_MS)
        has_rested, budget.peak_bytes = budget.peak_bytes < TRIM_REST_BYTES, budget.used_bytes
        now = _anonymous_bytes()
        if has_rested and now > lowest + TRIM_GROWN_BYTES:
            trim(0)
            now = lowest = _anonymous_bytes()
        lowest = min(lowest, now)


def _anonymous_bytes() -> int:
    """Memory of this process that no file backs."""
    resident, shared = Path("/proc/self/statm").read_text().split()[1:3]
    return (int(resident) - int(shared)) * resource.getpagesize()


def settle_heap() -> None:
    """What a node has when it is ready to serve, code above all, stays: full collections need not
    walk it again. One of them stopped a broker's loop for some 45 ms. Not collected before it: that
    would take as long, of the start. Young objects are collected once there are 10,000 more: with
    Python's 700, collections were a third of the time of a controller's command.
    """
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


def boot_id() -> str:
    """An id of this boot of this kernel: another one means that the page cache was lost (R13)."""
    path = Path("/proc/sys/kernel/random/boot_id")
    if path.exists():
        return path.read_text().strip()
    told = subprocess.run(
        ["sysctl", "-n", "kern.boottime"], capture_output=True, text=True, check=False
    )
    return told.stdout.strip() or "unknown"
