"""What a cluster refuses a client is told in the log, raised by polls that found nothing, and told
to the application where no poll could raise it.

A consumer or producer that lacks a right goes on trying: somebody may give it. Without a word it
would stand still, and nobody would know why.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TypeAlias

from paceline.errors import ConfigError, NotAuthorizedError, PacelineError, UnauthenticatedError
from paceline.platform.ports import Clock

log = logging.getLogger("paceline.client")

NOT_ALLOWED = (NotAuthorizedError, UnauthenticatedError, ConfigError)
"""Errors that stay until somebody changes rights or credentials."""
TOLD_AGAIN_MS = 60_000
"""A reason is told again if it was not heard for so long."""

OnRefused: TypeAlias = Callable[[PacelineError], None]


class Refusals:
    """Of one producer or consumer."""

    def __init__(self, clock: Clock, on_refused: OnRefused | None = None) -> None:
        """`on_refused` is called with what is told in the log, from the event loop."""
        self._clock = clock
        self._on_refused = on_refused
        self._told: dict[str, int] = {}
        """Reason -> when it was heard last, ms of the monotonic clock."""
        self._last: PacelineError | None = None

    def heard(self, error: PacelineError) -> bool:
        """An attempt has failed; whether it was refused for want of a right or a key."""
        if not isinstance(error, NOT_ALLOWED):
            return False
        now_ms = self._clock.monotonic_ms()
        for reason in [r for r, at_ms in self._told.items() if at_ms < now_ms - TOLD_AGAIN_MS]:
            del self._told[reason]
        if error.message not in self._told:
            log.warning("not_authorized: %s", error.message)
            if self._on_refused is not None:
                asyncio.get_running_loop().call_soon(self._on_refused, error)
        self._told[error.message] = now_ms
        self._last = error
        return True

    def raise_heard(self) -> None:
        """Raise what was heard last, if that was not raised yet: for polls that found nothing."""
        error, self._last = self._last, None
        if error is not None:
            raise error

    def passed(self) -> None:
        """Something was allowed: polls raise nothing of what was heard before."""
        self._last = None
