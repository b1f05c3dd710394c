"""What every job of a workload is given, and the few helpers that all share.

Jobs know the cluster by its bootstrap addresses only, and the world by the ports they are given:
the same code runs on a virtual loop and against real processes.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

from paceline.admin.client import AdminClient
from paceline.errors import NotLeaderError, PacelineError
from paceline.net.cluster import Cluster
from paceline.net.connect import ClientTls, ConnectSettings, Credentials
from paceline.platform.disk_memory import MemoryDisk
from paceline.platform.ports import Clock, Disk, Random
from paceline.platform.runtime import SeededRandom, pause
from paceline.platform.secret import ClusterSecrets
from paceline_chaos.history.model import Queue
from paceline_chaos.history.recorder import Recorder

T = TypeVar("T")
Close: TypeAlias = Callable[[], Awaitable[None]]

CALL_TIMEOUT_MS = 4_000
"""After that a client gives an operation up and records what it knows."""
TOOL_TIMEOUT_MS = 10_000
"""After that an operator's tool does."""


class IntendedError(Exception):
    """What a listener raises on purpose: the consumer logs it, and the message comes again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """The surroundings of one client."""

    client: str
    bootstrap: Sequence[str]
    recorder: Recorder
    clock: Clock
    random: Random
    topic: str
    """Exists before clients start."""
    body_bytes_max: int
    think_ms: float
    """Mean pause between two requests of one worker."""
    is_over: Callable[[], bool]
    """True: begin nothing new."""
    source_host: str = ""
    """Local address that connections start from; empty: the system chooses."""
    address: str = ""
    """Of its machine, as gateways see it; empty: unknown."""
    secrets: ClusterSecrets | None = None
    """Of the cluster, for gateways where there are users and rights; None: there are none."""
    seed: str = ""
    """Of the run; `apart` seeds its generators with it."""
    life: int = 1
    """Which start of this client it is: what it names must differ from what it named before."""
    disk: Disk = field(default_factory=MemoryDisk)
    """Of the machine that the client runs on: what was fsynced there its next life finds."""
    node_names: Mapping[str, str] = field(default_factory=dict)
    """Client address of a node -> what the history calls it, where that is known."""
    credentials: Credentials | None = None
    """What it shows to the cluster; None: nothing."""
    tls: ClientTls | None = None
    """None: connections are not encrypted."""
    keys: dict[str, list[str]] = field(default_factory=dict)
    """User -> its access keys, the newest last, as an operator has given them out: shared by all.
    Some may be revoked."""
    brokers: Sequence[tuple[str, str]] = ()
    """Client address and replication address of each: for who floods them."""

    def cluster(self) -> Cluster:
        """For one library client, with a view of what it uses; the caller closes it."""
        return Cluster(
            ConnectSettings(self.bootstrap, self.credentials, self.tls),
            clock=self.clock,
            random=self.random,
            source_host=self.source_host,
            sees_all=False,
        )

    def apart(self, name: str) -> "Around":
        """With a stream of chance of its own: what the client's other jobs draw stays as it is."""
        return replace(self, random=SeededRandom(f"{self.seed}/{self.alias}/{name}"))

    def turns(self, count: int) -> Iterator[int]:
        """So many, or fewer if it is over."""
        for number in range(count):
            if self.is_over():
                return
            yield number

    def session(self, *closes: Close) -> "Session":
        """For `async with`: what it closes, in this order, when it ends."""
        return Session(self, closes)

    async def as_admin(
        self, work: Callable[[AdminClient], Awaitable[T]], *, timeout_ms: int = TOOL_TIMEOUT_MS
    ) -> T:
        """Have an administrator with a view of his own do something."""
        cluster = self.cluster()
        try:
            async with AdminClient(cluster, timeout_ms=timeout_ms) as admin:
                return await work(admin)
        finally:
            await cluster.close()

    @property
    def alias(self) -> str:
        """Name of this life of the client."""
        return self.client if self.life == 1 else f"{self.client}.{self.life}"

    def node(self, address: str) -> str:
        """What the history calls the node at a client address."""
        return self.node_names.get(address, address)

    async def think(self) -> None:
        """Pause as a client does between two requests."""
        await pause(self.random.uniform(0.0, 2 * self.think_ms))

    def whole(self, low: int, high: int) -> int:
        """A whole number in [low, high]."""
        return min(high, low + int(self.random.uniform(0.0, high - low + 1)))

    def happens(self, probability: float) -> bool:
        return self.random.uniform(0.0, 1.0) < probability

    def choice(self, values: Sequence[T]) -> T:
        return values[self.whole(0, len(values) - 1)]

    async def try_again(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """The result of `work()`, repeated through operating errors; None once it is over."""
        while not self.is_over():
            try:
                return await work()
            except PacelineError:
                await pause(self.random.uniform(50, 300))
        return None


class Session:
    """A client at work. If nobody answers it ends, and whoever began it may begin another one.

    No generator: what is freed with a dead process must not call the loop.
    """

    def __init__(self, around: Around, closes: Sequence[Close]) -> None:
        self._around = around
        self._closes = closes

    async def __aenter__(self) -> None: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        is_over = isinstance(error, PacelineError)
        try:
            if is_over:
                await self._around.think()
        finally:
            for close in self._closes:
                await close()
        return is_over


def queues_in(cluster: Cluster, topic: str) -> list[Queue]:
    """All queues of a topic in the cluster's present view."""
    found = cluster.topic(topic)
    if found is None:
        return []
    return [
        Queue(topic, str(group), queue)
        for group in sorted(found.queues)
        for queue in range(found.queues[group])
    ]


def addresses_of(cluster: Cluster, group: str) -> list[str]:
    """Client addresses of all brokers of a group in the present view."""
    view = cluster.view
    if view is None:
        return []
    return [
        replica.client_address
        for name in view.groups
        if name == group
        for _, replica in sorted(view.groups[name].replicas.items())
    ]


async def ask_leader(
    cluster: Cluster, around: Around, path: str, *, timeout_ms: int = CALL_TIMEOUT_MS
) -> dict[str, Any]:
    """A GET that only the leading controller answers. Raises the last controller's error."""
    view = cluster.view
    controllers = list(around.bootstrap) if view is None else list(view.controllers)
    address = around.choice(controllers)
    for _ in range(len(controllers) + 2):
        try:
            return await cluster.http.get(address, path, timeout_ms=timeout_ms)
        except NotLeaderError as error:
            last = error
            named = error.details.get("leader")
            address = named if isinstance(named, str) and named else around.choice(controllers)
            await pause(around.random.uniform(5, 50))
    raise last
