"""Calls to the masters of broker groups, which are repeated until their outcome is definite."""

from typing import Any, cast

import pytest

from paceline.errors import (
    NotAuthorizedError,
    OutcomeUnknownError,
    PacelineError,
    PeerError,
    TopicNotFoundError,
)
from paceline.net.cluster import Cluster
from paceline.net.group_links import GroupLinks
from paceline.net.master_link import MasterLink
from paceline.platform.runtime import SystemClock
from paceline.types import GroupName
from paceline.wire.calls.pop import Ack

LOST, REFUSED = PeerError("the connection was lost"), NotAuthorizedError("ann may not Sub on g")


class Link:
    """A master that fails as it is told, one attempt after the other."""

    def __init__(self, *errors: PacelineError) -> None:
        self._errors = list(errors)

    async def wait_up(self, *, timeout_ms: float) -> "Link":
        return self

    async def call(self, request: Any, *, timeout_ms: int) -> Any:
        raise self._errors.pop(0)


class Links(GroupLinks):
    """All groups have that master."""

    def __init__(self, *errors: PacelineError) -> None:
        super().__init__(Cluster(["127.0.0.1:1"], clock=SystemClock()))
        self._only = Link(*errors)

    def link(self, group: GroupName) -> MasterLink:
        return cast(MasterLink, self._only)


async def acknowledged(links: GroupLinks) -> None:
    await links.call(GroupName("g1"), Ack(group="g", handles=["h"]), timeout_ms=60_000)


async def test_a_refusal_after_an_answer_was_lost_says_nothing_of_the_attempt_before() -> None:
    with pytest.raises(OutcomeUnknownError, match="ann may not Sub on g"):
        await acknowledged(Links(LOST, REFUSED))


async def test_a_refusal_alone_is_told_as_it_is() -> None:
    with pytest.raises(NotAuthorizedError):
        await acknowledged(Links(REFUSED))


async def test_a_broker_that_was_long_in_coming_has_its_time_to_hear_of_a_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its time begins with its first answer: the whole of the group may just have started."""
    monkeypatch.setattr("paceline.net.group_links._BEHIND_S", 0.0)

    with pytest.raises(NotAuthorizedError):
        await acknowledged(Links(TopicNotFoundError("no topic 'later'"), REFUSED))
