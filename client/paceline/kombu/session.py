"""The clients of a process for kombu and Celery: one thread with an event loop, whatever is asked.

kombu's connections and channels are made and closed all the time, in any thread; what they need of
a cluster is shared by all that name the same one. A process that was forked off has none of it and
makes its own when it first asks (Celery's prefork pool). With gevent's patches the thread is a
greenlet, and there is one of it as well.
"""

import atexit
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from paceline.admin.client import AdminClient
from paceline.blocking.twin import LoopThread
from paceline.consumer.pull import PullConsumer
from paceline.errors import PacelineError
from paceline.net.cluster import Cluster
from paceline.net.connect import ConnectSettings
from paceline.net.group_links import GroupLinks
from paceline.producer.producer import Producer
from paceline.wire.cluster import ClusterView

log = logging.getLogger("paceline.client")

ResultT = TypeVar("ResultT")
_START_MS = 10_000


class Clients:
    """What lives on the loop: one watch of the cluster, and clients that share it."""

    def __init__(self, settings: ConnectSettings) -> None:
        self.cluster = Cluster(settings)
        self.producer = Producer(self.cluster)
        self.admin = AdminClient(self.cluster)
        self.reader = PullConsumer(self.cluster)
        """Asks for ranges and offsets; it reads nothing."""
        self.links = GroupLinks(self.cluster)

    @property
    def view(self) -> ClusterView:
        """The newest that was heard of; there is one once the clients are started."""
        view = self.cluster.view
        assert view is not None
        return view

    async def start(self) -> None:
        """PeerError when no address answers."""
        try:
            await self.producer.start(timeout_ms=_START_MS)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        await self.producer.close()
        await self.reader.close()
        await self.links.close()
        await self.cluster.close()


class Session:
    """One cluster, for this process. Made by `session_of`; all methods may be called from any
    thread but the loop's own."""

    def __init__(self, thread: LoopThread, settings: ConnectSettings) -> None:
        self._thread = thread
        self._settings = settings
        self._clients: Clients | None = None
        self._starting = threading.Lock()

    @property
    def clients(self) -> Clients:
        """Started. PeerError when no address answers."""
        found = self._clients
        if found is None:
            with self._starting:
                found = self._clients
                if found is None:
                    found = self._clients = self._thread.call(self._made)
        return found

    async def _made(self) -> Clients:
        clients = Clients(self._settings)
        await clients.start()
        return clients

    def call(self, work: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """What `await work()` returns on the loop, or what it raises."""
        return self._thread.call(work)

    def soon(self, work: Callable[[], object]) -> None:
        """Have `work()` called on the loop; calls are carried out in their order."""
        self._thread.soon(work)

    def close(self) -> None:
        if self._clients is not None:
            self._thread.call(self._clients.close)
            self._clients = None


async def logged(work: Coroutine[Any, Any, None], name: str) -> None:
    """For what nobody waits for: what a cluster refuses is a warning."""
    try:
        await work
    except PacelineError as error:
        about = {"work": name, "code": error.code, "error": error.message}
        log.warning("kombu_work_failed", extra=about)


class _Process:
    """Of this process: its thread and sessions."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew: what there was belongs to the parent, even the lock, or has ended."""
        self.lock = threading.Lock()
        self.thread: LoopThread | None = None
        self.sessions: dict[str, Session] = {}


_PROCESS = _Process()


def session_of(url: str, settings: ConnectSettings) -> Session:
    """The session of this process for a cluster, as `url` names it."""
    with _PROCESS.lock:
        found = _PROCESS.sessions.get(url)
        if found is None:
            if _PROCESS.thread is None:
                _PROCESS.thread = LoopThread("paceline-kombu")
            found = _PROCESS.sessions[url] = Session(_PROCESS.thread, settings)
        return found


def close_sessions() -> None:
    """End all of it; what was asked for and not waited for is finished first."""
    thread, sessions = _PROCESS.thread, _PROCESS.sessions
    _PROCESS.forget()
    for session in sessions.values():
        session.close()
    if thread is not None:
        thread.stop()


os.register_at_fork(after_in_child=_PROCESS.forget)
atexit.register(close_sessions)
