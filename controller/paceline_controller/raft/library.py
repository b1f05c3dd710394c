"""A private copy of PySyncObj's main module, with its seams bound to this node's ports.

The library imports its clock, generator, poller, journal, serializer and pickle by name into
`pysyncobj.syncobj`. Loading that file once per node into a module object of its own lets each node
have its own seams without patching anything that is shared: no process-wide state, several nodes
in one process, a virtual clock in one of them. What is replaced:

- clock and generator: the ports; - poller, pipe, DNS, sleep: nothing (the event loop does it);
- journal and serializer: ours (F2, F3, P12); - pickle: refuses everything (F6);
- logger: the library logs and goes on where a node must stop, so those calls raise.
"""

import importlib.util
import logging
from collections.abc import Callable
from typing import Any, NoReturn
from zlib import crc32

import pysyncobj.version
from pysyncobj.node import Node

from paceline.errors import ConfigError
from paceline.platform.ports import Clock, Random
from paceline_controller.raft.log.journal import Journal
from paceline_controller.raft.log.snapshot import SnapshotStore
from paceline_controller.raft.settings import RaftSettings

log = logging.getLogger("paceline.raft")

VERSION = "0.3.17"
"""The overrides hang on private names: any other version is another library."""


class RaftInvariantError(AssertionError):
    """The replicated log is not what it must be: the process stops (never continues)."""


class PeerNode(Node):  # type: ignore[misc]  # the library is untyped
    """A member of the quorum. Sets of nodes are iterated: a stable hash makes runs repeatable."""

    def __hash__(self) -> int:
        return crc32(self.id.encode())


class _LibraryClock:
    """Seconds of running time, creeping at each read: the library's send loops end by the clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = 0.0

    def __call__(self) -> float:
        self._last = max(self._clock.monotonic_ms() / 1000, self._last + 2e-6)
        return self._last


class _LibraryRandom:
    def __init__(self, random: Random) -> None:
        self._random = random

    def random(self) -> float:
        return self._random.uniform(0.0, 1.0)


class _NullPoller:
    def poll(self, timeout: float) -> None:
        """The event loop polls."""


class _NoResolver:
    def setTimeouts(self, *_: object) -> None:  # noqa: N802 - the library's name
        """Addresses are the transport's business."""

    def setPreferredAddrFamily(self, *_: object) -> None:  # noqa: N802
        """As above."""


class _NoPickle:
    """No path of ours reaches it; one that does must not unpickle."""

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        def refuse(*_: object) -> NoReturn:
            raise RaftInvariantError(f"the library called pickle.{name}")

        return refuse


class _LibraryLogger:
    """Errors of the library are raised, the rest is passed on."""

    def critical(self, message: str, *args: object) -> None:
        # "truncating already-applied log entries": the override of __deleteEntriesFrom, which the
        # library calls next, knows whether entries really differ, and stops the node if so.
        log.debug("raft_library_critical", extra={"text": message % args})

    def exception(self, message: str, *args: object) -> NoReturn:
        raise RaftInvariantError(message % args)

    def error(self, message: str, *args: object) -> NoReturn:
        raise RaftInvariantError(message % args)

    def warning(self, message: str, *args: object) -> None:
        log.warning("raft_library_warning", extra={"text": message % args})

    def info(self, message: str, *args: object) -> None:
        log.debug("raft_library_info", extra={"text": message % args})


def load_library(
    *, clock: Clock, random: Random, journal: Journal, snapshots: SnapshotStore
) -> Any:
    """The module `pysyncobj.syncobj`, loaded anew for one node. ConfigError on another version."""
    if pysyncobj.version.VERSION != VERSION:
        raise ConfigError(
            f"pysyncobj {pysyncobj.version.VERSION} is installed, exactly {VERSION} is needed"
        )
    spec = importlib.util.find_spec("pysyncobj.syncobj")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)  # Any: the library is untyped
    spec.loader.exec_module(module)
    module.monotonicTime = _LibraryClock(clock)
    module.random = _LibraryRandom(random)
    module.createPoller = lambda _: _NullPoller()
    module.globalDnsResolver = _NoResolver
    module.PIPE_NOTIFIER_ENABLED = False
    module.createJournal = lambda _: journal
    module.Serializer = lambda *_: snapshots
    module.pickle = _NoPickle()
    module.logger = _LibraryLogger()
    return module


def library_settings(library: Any, settings: RaftSettings) -> Any:
    """The library's configuration object."""
    return library.SyncObjConf(
        autoTick=False,
        useFork=False,
        dynamicMembershipChange=False,
        commandsWaitLeader=False,
        appendEntriesUseBatch=False,
        appendEntriesBatchSizeBytes=settings.append_bytes,
        appendEntriesPeriod=settings.append_ms / 1000,
        raftMinTimeout=settings.election_min_ms / 1000,
        raftMaxTimeout=settings.election_max_ms / 1000,
        leaderFallbackTimeout=settings.leader_fallback_ms / 1000,
        connectionTimeout=max(settings.silence_ms, settings.election_max_ms) / 1000,
        connectionRetryTime=settings.redial_max_ms / 1000,
        journalFile=None,
        fullDumpFile=None,
    )
