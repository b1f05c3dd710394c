"""Starts nodes without their imports: one process that has imported both programs forks them all.

A fresh interpreter costs half a second of CPU for imports alone, and up to four seconds when six of
them start at once on two cores: scenarios that start many nodes would measure that. So the harness
forks itself once, before it has a loop, a thread or a file of a run; that process forks a node for
every request. A node is forked twice, so that the process between the two ends and the harness, as
the nearest subreaper, becomes the node's parent: it reaps and signals nodes by process id as it
would its own children, and they die with it.
"""

import contextlib
import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

import orjson

from paceline.errors import PacelineError
from paceline.platform.node_process import be_program, run_command
from paceline_chaos.processes.node import node as program

Main = Callable[[list[str]], int]

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_REQUEST_BYTES_MAX = 1 << 16
_START_TIMEOUT_S = 30.0
_IMPORTED_LATE = ("uvloop", "concurrent.futures.thread", "encodings.idna")
"""What nodes import only when they run."""


class NodeProcess:
    """One node, a child of this process; the little of `subprocess.Popen` that a harness needs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        """Negative: ended by this signal."""

    def poll(self) -> int | None:
        """The exit code; None: it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout_s: float) -> int | None:
        """As `poll`, after waiting for the end for so long at most."""
        if self.returncode is None:
            handle = os.pidfd_open(self.pid)
            try:
                select.select([handle], [], [], timeout_s)
            finally:
                os.close(handle)
        return self.poll()

    def send_signal(self, number: signal.Signals) -> None:
        """Nothing happens if it has ended: until it is reaped its number is nobody else's."""
        if self.poll() is None:
            os.kill(self.pid, number)


class ForkServer:
    """Make it before anything that a fork must not copy; `close` at the end."""

    def __init__(self, main: Main | None = None) -> None:
        """`main`: what nodes run, with their arguments, to their exit code; `processes.node` if it
        is not given. What it imports has to be imported by now, or every node imports it."""
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        harness = os.getpid()
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.settimeout(_START_TIMEOUT_S)
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            self._channel.close()
            _serve(theirs, harness, main or _main)
        theirs.close()

    def start(self, name: str, arguments: Sequence[str], log_path: Path) -> NodeProcess:
        """A node with these arguments of its program; it exists on return."""
        request = {"name": name, "arguments": list(arguments), "log": str(log_path)}
        try:
            self._channel.send(orjson.dumps(request))
            said = self._channel.recv(_REQUEST_BYTES_MAX)
        except OSError as error:
            raise PacelineError(f"no node can be started any more: {error}") from error
        if not said:
            raise PacelineError("no node can be started any more: the process that forks has ended")
        return NodeProcess(int(said))

    def close(self) -> None:
        """No more starts; nodes that run go on."""
        self._channel.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


# -- the process that forks ------------------------------------------------------------------------


def _main(arguments: list[str]) -> int:
    return run_command(program.command, arguments)


def _serve(channel: socket.socket, harness: int, main: Main) -> NoReturn:
    """Forks until the harness closes its end; never returns."""
    try:
        end_with_parent()
        for name in _IMPORTED_LATE:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        # What was imported lives for ever: no collection of a node goes through it, or copies it.
        gc.collect()
        gc.freeze()
        while request := channel.recv(_REQUEST_BYTES_MAX):
            between = os.fork()
            if between == 0:
                _fork_node(channel, harness, main, orjson.loads(request))
            os.waitpid(between, 0)
    finally:
        os._exit(0)


def _fork_node(
    channel: socket.socket, harness: int, main: Main, request: dict[str, object]
) -> NoReturn:
    """In the process between: its end hands the node over to the harness."""
    between = os.getpid()
    if os.fork() == 0:
        run = partial(_run_node, channel, harness, between, main, request)
        be_program(Path(str(request["log"])), run)
    os._exit(0)


def _run_node(
    channel: socket.socket, harness: int, between: int, main: Main, request: dict[str, object]
) -> int:
    """In the node: own parent, session and name; then the program."""
    while os.getppid() == between:
        select.select([], [], [], 0.0005)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != harness:
        return 1
    os.setsid()
    _prctl(_PR_SET_NAME, str(request["name"]).encode())
    channel.send(b"%d" % os.getpid())
    channel.close()
    arguments = request["arguments"]
    assert isinstance(arguments, list)
    return main(arguments)


# -- parents ---------------------------------------------------------------------------------------


def end_with_parent() -> None:
    """SIGKILL when the parent ends (Linux), also when it has ended already."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the harness's to handle
    parent = os.getppid()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent == 1 or os.getppid() != parent:
        os._exit(1)


def _prctl(option: int, value: int | bytes) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value)
