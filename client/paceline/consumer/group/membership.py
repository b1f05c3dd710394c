"""Membership of a consumer group: who else is there, and which queues are ours (DESIGN 6).

One heartbeat is always under way at the coordinator: the master of broker group `crc32c(name) mod
n`. It names the queues we claim; its answer lists every member's claims. A queue is *ours to start*
only when an answer to a heartbeat that named our claim shows no other member with a claim on it.
So a queue changes hands without two owners: the old one keeps its claim until it has committed.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from crc32c import crc32c

from paceline.consumer.group.allocation import Allocation, queues_for
from paceline.consumer.group_settings import Permission
from paceline.errors import NoPermissionError, PacelineError
from paceline.filters import Filter, told
from paceline.net.backoff import Backoff
from paceline.net.cluster import Cluster, Wakeup
from paceline.net.group_links import PASSING, GroupLinks
from paceline.net.introduction import introduction
from paceline.net.refusals import NOT_ALLOWED
from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline.queues import QueueKey
from paceline.types import GroupName, QueueId, TopicId
from paceline.wire.calls import groups as wire
from paceline.wire.cluster import ClusterView

log = logging.getLogger("paceline.client")

_HEARTBEAT_TIMEOUT_MS = 3_000
_REFUSED_WAIT_MS = 1_000
"""Rights may be given meanwhile."""
_HEARTBEAT_WAIT_MS = 1_000
_LEAVE_TIMEOUT_MS = 1_000
LOST_AFTER_MS = 8_000
"""Without an answer for so long we stop working: brokers drop a silent member after 10 s."""


def coordinating_group(consumer_group: str, groups: Iterable[GroupName]) -> GroupName:
    """The broker group whose master coordinates a consumer group of that full name."""
    ordered = sorted(groups)
    return ordered[crc32c(consumer_group.encode()) % len(ordered)]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberInfo:
    """One member of a group, as it tells of itself."""

    group: str
    client_id: str
    topics: list[str]
    mode: str
    """How it consumes: concurrent, ordered, pull, simple."""
    filters: Mapping[str, Filter]
    """Of the topics that it does not want all of."""
    message_model: str = "clustering"

    @property
    def about(self) -> dict[str, Any]:
        """What people see of us: fields of a heartbeat."""
        return {
            "message_model": self.message_model,
            "mode": self.mode,
            "filters": {topic: told(wanted) for topic, wanted in self.filters.items()},
        }

    def introduction(self) -> dict[str, Any]:
        """What each broker that we connect to is told."""
        return introduction("consumer", self.group, self.client_id, self.topics, **self.about)


class Membership:
    """One member of one group; runs from `start` to `close`.

    `on_targets(targets)`: what allocation gives us now; the owner releases the rest. `on_owned(
    key)`: a claim is granted, the owner may start the queue. `on_lost()`: no coordinator has
    answered for `LOST_AFTER_MS`; everything must be dropped.
    """

    def __init__(
        self,
        cluster: Cluster,
        links: GroupLinks,
        me: MemberInfo,
        *,
        allocation: Allocation,
        on_targets: Callable[[set[QueueKey]], None],
        on_owned: Callable[[QueueKey], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._links = links
        self._me = me
        self._permission = Permission(me.group)
        self._allocation = allocation
        self._on_targets = on_targets
        self._on_owned = on_owned
        self._on_lost = on_lost
        self._claims: dict[QueueKey, bool] = {}  # -> whether it is granted
        self._members: list[wire.MemberRow] = []
        """As last heard."""
        self._generation = 0
        self._is_leaving = False
        self._task: asyncio.Task[None] | None = None
        self._changed = Wakeup()
        self._end_listening: Callable[[], None] = lambda: None

    def start(self) -> None:
        self._end_listening = self._cluster.watch.listen(self._on_view)
        self._task = spawn(self._run(), name=f"membership-{self._me.group}")

    async def close(self) -> None:
        """Leave the group; call when every queue is released."""
        self._end_listening()
        task, self._task = self._task, None
        await cancel_and_wait(task)
        view = self._cluster.view
        if view is None or not view.groups:
            return
        leaving = wire.Leave(group=self._me.group, client_id=self._me.client_id)
        try:
            await self._links.call(
                self._coordinator(view),
                leaving,
                timeout_ms=_LEAVE_TIMEOUT_MS,
            )
        except PacelineError as error:
            # It drops us by itself when our heartbeats stay away.
            log.info(
                "leave_failed", extra={"consumer_group": self._me.group, "error": error.message}
            )

    def stop_claiming(self) -> None:
        """The owner is about to leave: what it holds it will release, nothing is added."""
        self._is_leaving = True
        for key in [key for key, granted in self._claims.items() if not granted]:
            del self._claims[key]

    def release(self, key: QueueKey) -> None:
        """The queue is committed and given up: let the others have it."""
        if self._claims.pop(key, None) is not None:
            self._changed.set()

    # -- inside -----------------------------------------------------------------------------------

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        backoff = Backoff(self._cluster.random, first_ms=20)
        heard_at = loop.time()
        while True:
            view = await self._cluster.watch.wait_for(_has_groups, timeout_ms=1 << 30)
            claims = list(self._claims)
            answer = await self._heartbeat(self._coordinator(view), claims)
            if answer is None and list(self._claims) != claims:
                continue  # not a failure: what we claim changed, and is told at once
            if answer is not None:
                heard_at = loop.time()
                backoff.reset()
                self._permission.is_refused = False
                self._members = answer.members
                self._generation = answer.generation
                self._judge(claims)
                continue
            if loop.time() - heard_at > LOST_AFTER_MS / 1000 and self._claims:
                log.warning("coordinator_lost", extra={"consumer_group": self._me.group})
                self._claims.clear()
                self._on_lost()
            await self._changed.wait(backoff.next_ms())

    def _coordinator(self, view: ClusterView) -> GroupName:
        return coordinating_group(self._cluster.namespace.full_group(self._me.group), view.groups)

    async def _heartbeat(
        self, coordinator: GroupName, claims: list[QueueKey]
    ) -> wire.Rebalance | None:
        """One heartbeat; None when it failed or our claims changed meanwhile."""
        request = wire.Heartbeat(
            group=self._me.group,
            client_id=self._me.client_id,
            topics=self._me.topics,
            owned=[(key.topic_id, str(key.group), key.queue_id) for key in claims],
            generation=self._generation,
            wait_ms=_HEARTBEAT_WAIT_MS,
            **self._me.about,
        )
        link = self._links.link(coordinator)
        answers: list[wire.Rebalance] = []

        async def ask() -> None:
            try:
                connection = await link.wait_up(timeout_ms=_HEARTBEAT_TIMEOUT_MS)
                reply = await connection.call(request, timeout_ms=_HEARTBEAT_TIMEOUT_MS)
                answers.append(reply.answer)
            except NoPermissionError as error:  # switched off for a while
                log.debug("heartbeat_refused", extra={"error": error.message})
                self._permission.is_refused = True
                if self._cluster.view is not None:
                    self._aim(self._cluster.view)
            except NOT_ALLOWED as error:
                self._links.refusals.heard(error)
                await pause(_REFUSED_WAIT_MS)
            except PASSING as error:
                log.debug("heartbeat_failed", extra={"error": error.message})
            finally:
                self._changed.set()

        task = spawn(ask(), name="heartbeat")
        try:
            while not task.done():
                await self._changed.wait()
                if list(self._claims) != claims:
                    break
        finally:
            await cancel_and_wait(task)
        return answers[0] if answers else None

    def _on_view(self, view: ClusterView) -> None:
        if self._members:
            self._aim(view)

    def _judge(self, claims: list[QueueKey]) -> None:
        """Take an answer to a heartbeat that named `claims`."""
        view = self._cluster.view
        assert view is not None
        targets = self._aim(view)
        others = {
            QueueKey(TopicId(topic_id), GroupName(group), QueueId(queue))
            for member in self._members
            if member.client_id != self._me.client_id
            for topic_id, group, queue in member.owned
        }
        for key in claims:
            if self._claims.get(key) is not False:
                continue
            if key not in targets:
                del self._claims[key]
                self._changed.set()
            elif key not in others:
                self._claims[key] = True
                self._on_owned(key)

    def _aim(self, view: ClusterView) -> set[QueueKey]:
        """Claim what allocation gives us; the owner hears what it should hold."""
        targets: set[QueueKey] = set()
        if self._permission.is_given(view):
            targets = queues_for(view, self._members, self._me.client_id, self._allocation)
        new = set() if self._is_leaving else targets - set(self._claims)
        for key in sorted(new):
            self._claims[key] = False
            self._changed.set()
        for key in [key for key, granted in self._claims.items() if not granted]:
            if key not in targets:
                del self._claims[key]
                self._changed.set()
        self._on_targets(targets)
        return targets


def _has_groups(view: ClusterView) -> bool:
    return bool(view.groups)
