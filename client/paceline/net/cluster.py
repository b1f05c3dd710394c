"""What producers, consumers and the admin client share: the watch, HTTP, connections."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from paceline.errors import (
    ConfigError,
    DeadlineError,
    NotAuthorizedError,
    PacelineError,
    PeerError,
    TopicNotFoundError,
    UnauthenticatedError,
)
from paceline.net.connect import Bootstrap, connect_settings
from paceline.net.http import HttpClient, Proofs
from paceline.net.post_connection import PostConnection
from paceline.net.stream_connection import StreamConnection, UpgradeRefusedError, connect_stream
from paceline.net.watch import ClusterWatch
from paceline.platform.address import parse_address
from paceline.platform.ports import Clock, Random
from paceline.platform.runtime import SystemClock, SystemRandom
from paceline.types import ConsumerGroupName, GroupName, TopicId, TopicName
from paceline.wire.calls.request import Request, http_form
from paceline.wire.cluster import ClusterView, TopicView
from paceline.wire.controller_calls.topics import GetTopic
from paceline.wire.namespaces import Namespace, TopicNames
from paceline.wire.views.scope import Scope

log = logging.getLogger("paceline.client")

BrokerConnection: TypeAlias = StreamConnection | PostConnection

CONNECT_TIMEOUT_MS = 3_000
"""RocketMQ's connect timeout."""
_VISIBLE_TIMEOUT_MS = 1_000


class Cluster:
    """A client's view of one cluster. Made inside a running event loop; `close` when done.

    `bootstrap` is "host:port" of any controllers or brokers, several separated by commas, or
    `ConnectSettings` with that and credentials. Pass the same `Cluster` to several producers and
    consumers to let them share the watch.
    """

    def __init__(
        self,
        bootstrap: Bootstrap,
        *,
        clock: Clock | None = None,
        random: Random | None = None,
        source_host: str = "",
        proofs: Proofs | None = None,
        sees_all: bool = True,
    ) -> None:
        """`source_host`: local address that connections start from; empty: the system chooses.
        `proofs`: of the cluster's secret, for requests over HTTP by whoever runs the nodes.
        `sees_all`: the view has all topics and consumer groups; else those that are used."""
        self.clock: Clock = clock or SystemClock()
        self.random: Random = random or SystemRandom()
        settings = connect_settings(bootstrap)
        self._credentials = settings.credentials
        self._tls = None if settings.tls is None else settings.tls.context()
        self.http = HttpClient(
            source_host=source_host,
            credentials=settings.credentials,
            tls=self._tls,
            proofs=proofs,
        )
        self._source_host = source_host
        self._namespace = None if settings.namespace is None else Namespace(settings.namespace)
        """None: not known yet."""
        self._names = TopicNames()
        self._sees_all = sees_all
        self._topics: set[str] = set()
        self._consumer_groups: set[str] = set()
        """Used; only kept while it does not see all."""
        self.bootstrap = _addresses(settings.bootstrap)
        self.watch = ClusterWatch(self.bootstrap, self.http, self.random, to_own=self.own_view)
        self._see()

    @property
    def view(self) -> ClusterView | None:
        return self.watch.view

    @property
    def namespace(self) -> Namespace:
        """Where its names are; the default one of its user is known with the first view."""
        return self._namespace or Namespace()

    def own_view(self, view: ClusterView) -> ClusterView:
        """By the names of this client's namespace: the one it was given, or for good the one that
        its first view tells."""
        if self._namespace is None:
            self._namespace = Namespace(view.namespace)
            self._see()
        return self._namespace.view(view)

    def use(self, *, topics: Iterable[str] = (), consumer_groups: Iterable[str] = ()) -> None:
        """From the next complete view on these are in it, if there are any of that name."""
        topics, consumer_groups = set(topics), set(consumer_groups)
        if not self._sees_all and not (
            self._topics >= topics and self._consumer_groups >= consumer_groups
        ):
            self._topics |= topics
            self._consumer_groups |= consumer_groups
            self._see()

    def see_all(self) -> None:
        """From the next complete view on all topics and consumer groups are in it."""
        if not self._sees_all:
            self._sees_all = True
            self._see()

    def _see(self) -> None:
        names = self.namespace
        scope = Scope(
            topics=frozenset(TopicName(names.full_topic(name)) for name in self._topics),
            consumer_groups=frozenset(
                ConsumerGroupName(names.full_group(name)) for name in self._consumer_groups
            ),
        )
        self._sees_all = self._sees_all or scope.is_too_long
        self.watch.see(None if self._sees_all else scope)

    def start(self) -> None:
        """Begin to watch. Idempotent; must run on the event loop."""
        self.watch.start()

    async def close(self) -> None:
        await self.watch.close()
        await self.http.close()

    def topic(self, name: str) -> TopicView | None:
        """The topic, if the present view has it. It is used from now on."""
        if not self._sees_all and name not in self._topics:
            self.use(topics=[name])
        return None if self.view is None else self.view.topics.get(TopicName(name))

    def lacks(self, name: str) -> bool:
        """There is no such topic, as far as is known; False too while nothing is known of it."""
        return self.topic(name) is None and self.watch.is_complete

    async def wait_topic(self, name: str, *, timeout_ms: int) -> TopicView:
        """The topic, which may have been made a moment ago. NotAuthorizedError; TopicNotFoundError;
        PeerError."""
        topic = TopicName(name)
        self.use(topics=[topic])
        try:
            view = await self.watch.wait_for(
                lambda view: topic in view.topics, timeout_ms=timeout_ms
            )
        except DeadlineError:
            raise await self.no_topic(topic) from None
        return view.topics[topic]

    async def no_topic(self, name: str) -> TopicNotFoundError:
        """What to raise of a topic that the view does not have, if it is not what `check_visible`
        raises."""
        await self.check_visible(GetTopic(topic=name))
        return TopicNotFoundError(f"topic {name} does not exist", topic=name)

    async def check_visible(self, request: Request[Any]) -> None:
        """Raise NotAuthorizedError or UnauthenticatedError if that is what a controller answers.

        For what the view does not have: a view is without what its user may not see, so only a
        refusal says which right is missing. It is the same whether there is such a thing or not.
        """
        path = http_form(self.namespace.request(request)).path
        for address in () if self.view is None else self.view.controllers:
            try:
                await self.http.get(address, path, timeout_ms=_VISIBLE_TIMEOUT_MS)
            except (NotAuthorizedError, UnauthenticatedError):
                raise
            except PacelineError as error:
                log.debug("not_found", extra={"path": path, "error": error.message})
                if not isinstance(error, PeerError | DeadlineError):
                    return
            else:
                return

    def topic_name(self, topic_id: int) -> TopicName | None:
        """Name of a topic id in the present view."""
        view = self.view
        return None if view is None else self._names.of(view).get(TopicId(topic_id))

    async def connect(self, address: str, group: GroupName) -> BrokerConnection:
        """A connection to the broker at `address`, which must be one of `group` (else PeerError).

        A stream, or POSTs where the upgrade is refused. The caller closes it.
        """
        try:
            connection = await connect_stream(
                address,
                timeout_ms=CONNECT_TIMEOUT_MS,
                source_host=self._source_host,
                credentials=self._credentials,
                tls=self._tls,
                namespace=self.namespace,
            )
        except UpgradeRefusedError:
            return PostConnection(address, group, self.http, self.topic_name, self.namespace)
        view = self.view
        is_other = view is not None and connection.cluster_id not in ("", view.cluster_id)
        if is_other or connection.group != group:
            # Another process has taken the port of a broker that died.
            connection.close()
            raise PeerError(
                f"{address} is a broker of group {connection.group} in cluster"
                f" {connection.cluster_id}, not of {group}"
            )
        return connection


def _addresses(bootstrap: str | Sequence[str]) -> list[str]:
    found = bootstrap.split(",") if isinstance(bootstrap, str) else list(bootstrap)
    addresses = [str(parse_address(text)) for text in found if text.strip()]
    if not addresses:
        raise ConfigError("no bootstrap address; give host:port of a controller or broker")
    return addresses


class Wakeup:
    """A wait with a time limit that news can end early. One waiter."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self, milliseconds: float | None = None) -> bool:
        """Wait for `set` (then True), or for the time to pass (False); clears it."""
        try:
            async with asyncio.timeout(None if milliseconds is None else milliseconds / 1000):
                await self._event.wait()
        except TimeoutError:
            return False
        finally:
            self._event.clear()
        return True
