"""What a cluster refuses a client is told in the log, once for each reason.

A consumer or producer that lacks a right goes on trying: somebody may give it. Without a word it
would stand still, and nobody would know why.
"""

import logging

from paceline.errors import ConfigError, NotAuthorizedError, PacelineError, UnauthenticatedError

log = logging.getLogger("paceline.client")

NOT_ALLOWED = (NotAuthorizedError, UnauthenticatedError, ConfigError)
"""Errors that stay until somebody changes rights or credentials."""


class Refusals:
    """Owned by whoever tries again."""

    def __init__(self) -> None:
        self.last: PacelineError | None = None
        """Why it was not let in or refused; None: it was not, or it has passed."""

    def heard(self, error: PacelineError) -> None:
        """An attempt has failed."""
        if not isinstance(error, NOT_ALLOWED):
            return
        if self.last is None or self.last.message != error.message:
            log.warning("not_authorized: %s", error.message)
        self.last = error

    def passed(self) -> None:
        """An attempt went well."""
        self.last = None
