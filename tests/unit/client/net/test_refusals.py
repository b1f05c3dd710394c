"""What a client is refused for want of rights: once in the log, once for polls."""

import logging

import pytest

from paceline.errors import DeadlineError, NotAuthorizedError, UnauthenticatedError
from paceline.net.refusals import TOLD_AGAIN_MS, Refusals
from paceline.platform.runtime import ManualClock, pause


def test_each_reason_is_logged_once_and_again_after_a_while_without(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    refusals = Refusals(clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            refusals.heard(NotAuthorizedError("no right"))
            refusals.heard(UnauthenticatedError("no key"))
            clock.advance(TOLD_AGAIN_MS // 2)
    assert caplog.messages == ["not_authorized: no right", "not_authorized: no key"]

    clock.advance(TOLD_AGAIN_MS + 1)
    refusals.heard(NotAuthorizedError("no right"))
    assert caplog.messages[2:] == ["not_authorized: no right"]


def test_polls_raise_the_last_one_once_and_nothing_that_has_passed() -> None:
    refusals = Refusals(ManualClock())
    assert not refusals.heard(DeadlineError("slow"))
    refusals.raise_heard()

    assert refusals.heard(NotAuthorizedError("no right"))
    with pytest.raises(NotAuthorizedError):
        refusals.raise_heard()
    refusals.raise_heard()

    refusals.heard(NotAuthorizedError("no right"))
    refusals.passed()
    refusals.raise_heard()


async def test_the_application_is_told_what_the_log_is_told() -> None:
    told: list[str] = []
    refusals = Refusals(ManualClock(), lambda error: told.append(error.message))

    for _ in range(3):
        refusals.heard(NotAuthorizedError("no right"))
    assert told == [], "what it raises would end the task that has heard it"
    await pause(0)

    assert told == ["no right"]
