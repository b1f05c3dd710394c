"""Single HTTP requests to whoever is master of a broker group, repeated until they are answered.

Only for requests that do no harm when they are carried out twice.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from paceline.errors import (
    DeadlineError,
    GroupNotFoundError,
    NoMasterError,
    OutcomeUnknownError,
    PacelineError,
    QueueNotFoundError,
    TopicNotFoundError,
)
from paceline.net.backoff import Backoff
from paceline.net.cluster import Cluster
from paceline.net.group_links import PASSING
from paceline.platform.runtime import pause
from paceline.queues import master_address
from paceline.types import GroupName
from paceline.wire.calls.request import Request

_REQUEST_TIMEOUT_MS = 3_000
_BEHIND_MS = 1_500
"""For so long a broker may not know a topic yet that the client has in its view, or the client a
broker group."""


async def check_broker_group(cluster: Cluster, group: GroupName) -> None:
    """GroupNotFoundError unless the view has the broker group, which may be new. PeerError."""
    try:
        await cluster.watch.wait_for(lambda view: group in view.groups, timeout_ms=_BEHIND_MS)
    except DeadlineError:
        known = sorted(cluster.view.groups) if cluster.view is not None else []
        there = f"there is {', '.join(known)}" if known else "there is none yet"
        raise GroupNotFoundError(
            f"there is no broker group {group}; {there}", group=group
        ) from None


class MasterRequests:
    """Requests of one cluster, which must be known (`Cluster.watch`). `timeout_ms`: of each."""

    def __init__(self, cluster: Cluster, *, timeout_ms: int) -> None:
        self._cluster = cluster
        self._timeout_ms = timeout_ms

    async def call(self, group: GroupName, request: Request[Any]) -> dict[str, Any]:
        """The answer to a call, by the client's names."""
        namespace = self._cluster.namespace
        document = namespace.request(request).to_json()
        answer, _ = await self.ask(group, "POST", "/v1/call", document)
        own: dict[str, Any] = namespace.answer(request, answer)
        return own

    async def ask(
        self, group: GroupName, method: str, path: str, document: Mapping[str, Any] | None
    ) -> tuple[dict[str, Any], bool]:
        """The answer of the group's master, and whether an earlier try may have done it too.

        GroupNotFoundError: there is no such broker group.
        """
        cluster = self._cluster
        await check_broker_group(cluster, group)
        backoff = Backoff(cluster.random, first_ms=20)
        began_ms = cluster.clock.monotonic_ms()
        was_tried = False
        last: PacelineError = NoMasterError(f"broker group {group} has no master", group=group)
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                while True:
                    address = self._address(group)
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

    def _address(self, group: GroupName) -> str | None:
        view = self._cluster.view
        assert view is not None, "the cluster is known"
        return master_address(view, group)
