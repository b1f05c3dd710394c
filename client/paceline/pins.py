"""Pins against retention: asked of the masters of broker groups (R26), for `AdminClient`.

A pin belongs to a broker group, for it is a record of that group's log. Setting one again renews or
moves it, giving one up twice is no harm: so everything here is tried again, at whoever leads, until
it is answered.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from paceline.consumer.links import PASSING
from paceline.errors import (
    DeadlineError,
    GroupNotFoundError,
    NoMasterError,
    OutcomeUnknownError,
    PacelineError,
    QueueNotFoundError,
    TopicNotFoundError,
)
from paceline.net.cluster import Cluster
from paceline.retry import Backoff
from paceline.routing import QueueName, master_address
from paceline.runtime import pause
from paceline.types import GroupName, TopicName
from paceline.wire.cluster import ClusterView
from paceline.wire.names import check_name
from paceline.wire.pins import PinsOfGroup, PinView

_REQUEST_TIMEOUT_MS = 3_000
_BEHIND_MS = 1_500
"""For so long a broker may not know a topic yet that the client's view has."""


class PinAdmin:
    """Pins of one cluster, which must be known (`Cluster.watch`). `timeout_ms`: of each call."""

    def __init__(self, cluster: Cluster, *, timeout_ms: int) -> None:
        self._cluster = cluster
        self._timeout_ms = timeout_ms

    async def all(self, group: str | None) -> dict[GroupName, PinsOfGroup]:
        """The pins of one broker group, or of all; GroupNotFoundError."""
        found: dict[GroupName, PinsOfGroup] = {}
        for name in self._groups(group):
            answer, _ = await self._at_master(name, "GET", "/v1/pins", None)
            found[name] = PinsOfGroup.from_json(answer)
        return found

    async def add(
        self,
        owner: str,
        *,
        lease_ms: int,
        queues: Mapping[QueueName, int | None] | None,
        group: str | None,
    ) -> dict[GroupName, PinView]:
        """See `AdminClient.add_pin`."""
        path = _path(owner)
        documents: dict[GroupName, dict[str, Any]] = {}
        if queues is None:
            documents = {name: {"lease_ms": lease_ms} for name in self._groups(group)}
        for name in sorted(queues or ()):
            self._check_queue(name)
            empty: dict[str, Any] = {"lease_ms": lease_ms, "queues": []}
            rows = documents.setdefault(name.group, empty)["queues"]
            offset = (queues or {})[name]
            at = {} if offset is None else {"offset": offset}
            rows.append({"topic": name.topic, "queue": name.queue, **at})
        pinned: dict[GroupName, PinView] = {}
        for name_of_group, document in documents.items():
            try:
                answer, _ = await self._at_master(name_of_group, "PUT", path, document)
            except PacelineError as error:
                raise _partly(error, name_of_group, pinned) from error
            pinned[name_of_group] = PinView.from_json(answer)
        return pinned

    async def remove(self, owner: str, *, group: str | None) -> frozenset[GroupName]:
        """The broker groups in which the owner had a pin; it has none any more."""
        path = _path(owner)
        removed: set[GroupName] = set()
        for name in self._groups(group):
            answer, was_tried = await self._at_master(name, "DELETE", path, None)
            if answer["removed"] or was_tried:
                removed.add(name)
        return frozenset(removed)

    # -- inside -----------------------------------------------------------------------------------

    @property
    def _view(self) -> ClusterView:
        view = self._cluster.view
        assert view is not None, "the cluster is known"
        return view

    def _groups(self, group: str | None) -> list[GroupName]:
        if group is None:
            return sorted(self._view.groups)
        name = GroupName(group)
        if name not in self._view.groups:
            known = ", ".join(sorted(self._view.groups)) or "none yet"
            raise GroupNotFoundError(
                f"there is no broker group {group}; there is {known}", group=group
            )
        return [name]

    def _check_queue(self, name: QueueName) -> None:
        self._groups(name.group)
        topic = self._view.topics.get(TopicName(name.topic))
        if topic is None:
            raise TopicNotFoundError(f"topic {name.topic} does not exist", topic=name.topic)
        count = topic.queues.get(name.group, 0)
        if not 0 <= name.queue < count:
            raise QueueNotFoundError(
                f"topic {name.topic} has no queue {name.group}/{name.queue}; group {name.group}"
                f" has {count} of its queues",
                queue=name.queue,
            )

    async def _at_master(
        self, group: GroupName, method: str, path: str, document: Mapping[str, Any] | None
    ) -> tuple[dict[str, Any], bool]:
        """The answer of the group's master, and whether an earlier try may have done it too."""
        cluster = self._cluster
        backoff = Backoff(cluster.random, first_ms=20)
        began_ms = cluster.clock.monotonic_ms()
        was_tried = False
        last: PacelineError = NoMasterError(f"broker group {group} has no master", group=group)
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                while True:
                    address = master_address(self._view, group)
                    try:
                        if address is not None:
                            answer = await cluster.http.send(
                                method, address, path, document, timeout_ms=_REQUEST_TIMEOUT_MS
                            )
                            return answer, was_tried
                    except (TopicNotFoundError, QueueNotFoundError) as error:
                        last = error
                        if cluster.clock.monotonic_ms() - began_ms > _BEHIND_MS:
                            raise
                    except PASSING as error:
                        last = error
                        was_tried |= isinstance(error, DeadlineError | OutcomeUnknownError)
                        cluster.watch.doubt()
                    await pause(backoff.next_ms())
        except TimeoutError:
            raise DeadlineError(
                f"broker group {group} gave no answer within {self._timeout_ms} ms: {last.message}",
                group=group,
            ) from last


def _path(owner: str) -> str:
    return f"/v1/pins/{check_name(owner, 'owner')}"


def _partly(
    error: PacelineError, group: GroupName, pinned: Mapping[GroupName, PinView]
) -> PacelineError:
    """The same error, with the group and what was done before it."""
    rest = f"; pinned already in {', '.join(sorted(pinned))}" if pinned else ""
    details = {**error.details, "group": group, "pinned": sorted(pinned)}
    return type(error)(f"group {group}: {error.message}{rest}", **details)
