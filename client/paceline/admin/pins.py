"""Pins against retention: asked of the masters of broker groups (R26), for `AdminClient`.

A pin belongs to a broker group, for it is a record of that group's log. Setting one again renews or
moves it, giving one up twice is no harm: so everything here is tried again, at whoever leads, until
it is answered.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from paceline.admin.requests import AdminRequests
from paceline.errors import (
    GroupNotFoundError,
    PacelineError,
    QueueNotFoundError,
    TopicNotFoundError,
)
from paceline.net.cluster import Cluster
from paceline.net.master_http import MasterRequests
from paceline.queues import QueueName
from paceline.types import GroupName, TopicName
from paceline.wire.cluster import ClusterView
from paceline.wire.names import check_name, namespace_of
from paceline.wire.pins import PinsOfGroup, PinView


class _PinRequests:
    """Pins of one cluster, which must be known (`Cluster.watch`). `timeout_ms`: of each call."""

    def __init__(self, cluster: Cluster, *, timeout_ms: int) -> None:
        self._cluster = cluster
        self._masters = MasterRequests(cluster, timeout_ms=timeout_ms)

    async def all(self, group: str | None) -> dict[GroupName, PinsOfGroup]:
        """The pins of one broker group, or of all; GroupNotFoundError."""
        found: dict[GroupName, PinsOfGroup] = {}
        for name in self._groups(group):
            answer, _ = await self._masters.ask(name, "GET", "/v1/pins", None)
            found[name] = self._own_pins(PinsOfGroup.from_json(answer))
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
        path = self._path(owner)
        documents: dict[GroupName, dict[str, Any]] = {}
        if queues is None:
            documents = {name: {"lease_ms": lease_ms} for name in self._groups(group)}
        for name in sorted(queues or ()):
            self._check_queue(name)
            empty: dict[str, Any] = {"lease_ms": lease_ms, "queues": []}
            rows = documents.setdefault(name.group, empty)["queues"]
            offset = (queues or {})[name]
            at = {} if offset is None else {"offset": offset}
            topic = self._cluster.namespace.full_topic(name.topic)
            rows.append({"topic": topic, "queue": name.queue_id, **at})
        pinned: dict[GroupName, PinView] = {}
        for name_of_group, document in documents.items():
            try:
                answer, _ = await self._masters.ask(name_of_group, "PUT", path, document)
            except PacelineError as error:
                raise _partly(error, name_of_group, pinned) from error
            pinned[name_of_group] = self._own_pin(PinView.from_json(answer))
        return pinned

    async def remove(self, owner: str, *, group: str | None) -> frozenset[GroupName]:
        """The broker groups in which the owner had a pin; it has none any more."""
        path = self._path(owner)
        removed: set[GroupName] = set()
        for name in self._groups(group):
            answer, was_tried = await self._masters.ask(name, "DELETE", path, None)
            if answer["removed"] or was_tried:
                removed.add(name)
        return frozenset(removed)

    # -- inside -----------------------------------------------------------------------------------

    def _path(self, owner: str) -> str:
        full = self._cluster.namespace.full_group(check_name(owner, "owner"))
        return f"/v1/pins/{quote(full, safe='')}"

    def _own_pin(self, pin: PinView) -> PinView:
        return replace(pin, owner=self._cluster.namespace.own_group(pin.owner))

    def _own_pins(self, found: PinsOfGroup) -> PinsOfGroup:
        """Those of the client's namespace; of one in none all."""
        name = self._cluster.namespace.name
        pins = (pin for pin in found.pins if not name or namespace_of(pin.owner) == name)
        return replace(found, pins=tuple(map(self._own_pin, pins)))

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
        if not 0 <= name.queue_id < count:
            raise QueueNotFoundError(
                f"topic {name.topic} has no queue {name.group}/{name.queue_id}; group {name.group}"
                f" has {count} of its queues",
                queue=name.queue_id,
            )


def _partly(
    error: PacelineError, group: GroupName, pinned: Mapping[GroupName, PinView]
) -> PacelineError:
    """The same error, with the group and what was done before it."""
    rest = f"; pinned already in {', '.join(sorted(pinned))}" if pinned else ""
    details = {**error.details, "group": group, "pinned": sorted(pinned)}
    return type(error)(f"group {group}: {error.message}{rest}", **details)


class Pins:
    """`AdminClient.pins`."""

    def __init__(self, requests: AdminRequests) -> None:
        self._requests = requests

    async def all(self, group: str | None = None) -> dict[GroupName, PinsOfGroup]:
        """The pins of a broker group, or of all groups, as their masters have them."""
        return await (await self._pins()).all(group)

    async def add(
        self,
        owner: str,
        *,
        lease_ms: int,
        queues: Mapping[QueueName, int | None] | None = None,
        group: str | None = None,
    ) -> dict[GroupName, PinView]:
        """Keep retention from passing what `owner` will read, for `lease_ms` (1 s to 7 days).

        `queues`: offsets from which on each queue is kept, None for its first kept one. Without
        `queues` all that is kept of `group`, or of every group. Set again it is renewed, or moved:
        an owner has one pin in each broker group. OffsetOutOfRangeError: deleted already, or beyond
        the end (`start`, `end`). TopicNotFoundError, QueueNotFoundError, GroupNotFoundError,
        BadNameError, BadRequestError; details `pinned`: groups in which it is pinned all the same.
        """
        pins = await self._pins()
        return await pins.add(owner, lease_ms=lease_ms, queues=queues, group=group)

    async def remove(self, owner: str, *, group: str | None = None) -> frozenset[GroupName]:
        """Give the pins of `owner` up; the broker groups in which there was one."""
        return await (await self._pins()).remove(owner, group=group)

    async def _pins(self) -> _PinRequests:
        await self._requests.find_cluster()
        return _PinRequests(self._requests.cluster, timeout_ms=self._requests.timeout_ms)

    __call__ = all  # its former name, for one version: `await admin.add_pin()`
