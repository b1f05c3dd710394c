"""A consumer's links to the masters of the broker groups, and calls that survive failovers.

The link of a group without a master leads to its acting one, if it has one (R36).
"""

import asyncio
from collections.abc import Callable

from paceline.errors import (
    DeadlineError,
    FencedEpochError,
    InSyncReplicasNotEnoughError,
    NoMasterError,
    NotMasterError,
    NotYetAvailableError,
    OutcomeUnknownError,
    OutOfMemoryError,
    OverloadedError,
    PacelineError,
    PeerError,
    QueueNotFoundError,
    ShuttingDownError,
    TopicNotFoundError,
)
from paceline.net.backoff import Backoff
from paceline.net.cluster import Cluster
from paceline.net.introduction import Who
from paceline.net.master_link import MasterLink
from paceline.net.refusals import NOT_ALLOWED, OnRefused, Refusals
from paceline.platform.runtime import pause
from paceline.types import GroupName
from paceline.wire.calls.request import AnswerT, Reply, Request

PASSING = (
    DeadlineError,
    FencedEpochError,
    InSyncReplicasNotEnoughError,
    NoMasterError,
    NotMasterError,
    NotYetAvailableError,
    OutcomeUnknownError,
    OutOfMemoryError,
    OverloadedError,
    PeerError,
    ShuttingDownError,
)
"""Errors that another attempt, perhaps at another master, may not meet."""
_BEHIND_S = 1.5
"""Brokers wait up to 1 s for news themselves (DESIGN 6)."""


class GroupLinks:
    """One `MasterLink` for each broker group, made when it is first used."""

    def __init__(
        self, cluster: Cluster, who: Who | None = None, on_refused: OnRefused | None = None
    ) -> None:
        """`who`: what the brokers are told of us (None: nothing); `on_refused`: of `Refusals`."""
        self.cluster = cluster
        self._who = who
        self.refusals = Refusals(cluster.clock, on_refused)
        self._links: dict[GroupName, MasterLink] = {}

    def link(self, group: GroupName) -> MasterLink:
        """The started link of a group."""
        link = self._links.get(group)
        if link is None:
            link = self._links[group] = MasterLink(
                self.cluster,
                group,
                is_for_reading=True,
                who=self._who,
                refusals=self.refusals,
            )
            link.start()
        return link

    async def close(self) -> None:
        for link in list(self._links.values()):
            await link.close()

    async def call(
        self,
        group: GroupName,
        request: Request[AnswerT],
        *,
        timeout_ms: int,
        attempt_ms: int | None = None,
        on_unknown: Callable[[PacelineError], None] | None = None,
    ) -> Reply[AnswerT]:
        """Carry out a call that may be repeated, at whoever is master of `group`.

        Only for calls that change nothing more when they happen twice. Raises what cannot pass, or
        DeadlineError with the last reason; `attempt_ms` bounds one attempt. OutcomeUnknownError:
        the client lacks a right, or its key does not count, and whether an attempt before was
        carried out is not known. `on_unknown` is told of each attempt of which that is not known.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        backoff = Backoff(self.cluster.random)
        link = self.link(group)
        last: PacelineError | None = None
        unknown: PacelineError | None = None
        behind_since: float | None = None
        while (left_ms := (deadline - loop.time()) * 1000) > 0:
            try:
                connection = await link.wait_up(timeout_ms=left_ms)
                reply = await connection.call(
                    request, timeout_ms=max(1, int(min(left_ms, attempt_ms or left_ms)))
                )
                epoch = reply.envelope.epoch
                if not link.saw_epoch(epoch):
                    raise OutcomeUnknownError(
                        f"an answer of epoch {epoch}, group {group} is at {link.epoch_seen}"
                    )
                return reply
            except (TopicNotFoundError, QueueNotFoundError) as error:
                # A broker may be behind the view that we have, for a moment.
                last, now = error, loop.time()
                behind_since = behind_since or now
                if now - behind_since > _BEHIND_S:
                    raise
                await pause(min(backoff.next_ms(), max(0, left_ms)))
            except NOT_ALLOWED as error:
                if unknown is None or _is_read(request):
                    raise
                raise OutcomeUnknownError(
                    f"whether {request.call_name()} was carried out is not known: an attempt"
                    f" failed ({unknown.message}), and the next one was refused: {error.message}"
                ) from error
            except PASSING as error:
                last = error
                if not error.is_definite:
                    unknown = error
                    if on_unknown is not None:
                        on_unknown(error)
                await pause(min(backoff.next_ms(), max(0, left_ms)))
        why = "" if last is None else f": {last.message}"
        raise DeadlineError(
            f"{request.call_name()} at group {group} did not succeed within {timeout_ms} ms{why}"
        ) from last


def _is_read(request: Request[AnswerT]) -> bool:
    """It changes nothing, whether it was carried out or not."""
    return any(route.method == "GET" for route in request.routes)
