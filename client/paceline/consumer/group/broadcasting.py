"""Broadcasting: every member of the group gets every message of its topics.

No queue is shared, so nothing is claimed: all queues in the view are ours, whoever else is there.
The coordinator hears of us for people to see; it need not be reachable.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from paceline.consumer.group.membership import MemberInfo, coordinating_group
from paceline.consumer.group_settings import Permission
from paceline.errors import NoPermissionError, PacelineError
from paceline.net.cluster import Cluster
from paceline.net.group_links import PASSING, GroupLinks
from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline.queues import QueueKey, shared_queues_of
from paceline.types import TopicName
from paceline.wire.calls import groups as wire
from paceline.wire.calls.request import Request
from paceline.wire.cluster import ClusterView

log = logging.getLogger("paceline.client")

_HEARTBEAT_MS = 1_000
_TIMEOUT_MS = 3_000


class BroadcastMembership:
    """What `Membership` is to a group that shares its queues; the same callbacks."""

    def __init__(
        self,
        cluster: Cluster,
        links: GroupLinks,
        me: MemberInfo,
        *,
        on_targets: Callable[[set[QueueKey]], None],
        on_owned: Callable[[QueueKey], None],
    ) -> None:
        self._cluster = cluster
        self._links = links
        self._me = me
        self._permission = Permission(me.group, is_broadcasting=True)
        self._on_targets = on_targets
        self._on_owned = on_owned
        self._owned: set[QueueKey] = set()
        self._is_leaving = False
        self._task: asyncio.Task[None] | None = None
        self._end_listening: Callable[[], None] = lambda: None

    def start(self) -> None:
        self._end_listening = self._cluster.watch.listen(self._aim)
        self._task = spawn(self._run(), name=f"membership-{self._me.group}")

    async def close(self) -> None:
        """Call when every queue is released."""
        self._end_listening()
        task, self._task = self._task, None
        await cancel_and_wait(task)
        leaving = wire.Leave(group=self._me.group, client_id=self._me.client_id)
        await self._tell(leaving, timeout_ms=_HEARTBEAT_MS)

    def stop_claiming(self) -> None:
        self._is_leaving = True

    def release(self, key: QueueKey) -> None:
        """Given up, or not started: it comes again with the next second, if it is still there."""
        self._owned.discard(key)

    # -- inside -----------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            view = self._cluster.view
            if view is not None:
                self._aim(view)
            heartbeat = wire.Heartbeat(
                group=self._me.group,
                client_id=self._me.client_id,
                topics=self._me.topics,
                owned=[],
                generation=0,
                **self._me.about,
            )
            await self._tell(heartbeat, timeout_ms=_TIMEOUT_MS)
            await pause(_HEARTBEAT_MS)

    def _aim(self, view: ClusterView) -> None:
        topics = self._me.topics if self._permission.is_given(view) else []
        found = [view.topics.get(TopicName(topic)) for topic in topics]
        targets = {key for topic in found if topic is not None for key in shared_queues_of(topic)}
        self._on_targets(targets)
        if self._is_leaving:
            return
        for key in sorted(targets - self._owned):
            self._owned.add(key)
            self._on_owned(key)

    async def _tell(self, request: Request[Any], *, timeout_ms: int) -> None:
        view = self._cluster.view
        if view is None or not view.groups:
            return
        full = self._cluster.namespace.full_group(self._me.group)
        coordinator, name = coordinating_group(full, view.groups), request.call_name()
        try:
            connection = await self._links.link(coordinator).wait_up(timeout_ms=timeout_ms)
            await connection.call(request, timeout_ms=timeout_ms)
            self._permission.is_refused = False
        except NoPermissionError as error:
            log.debug("heartbeat_refused", extra={"error": error.message})
            self._permission.is_refused = True
            self._aim(view)
        except PASSING as error:
            log.debug("broadcast_not_told", extra={"call": name, "error": error.message})
        except PacelineError as error:
            if not self._links.refusals.heard(error):
                log.warning("broadcast_refused", extra={"call": name, "error": error.message})
