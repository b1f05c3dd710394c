"""Pure: what makes a command of the controllers the same, however often it is asked (R38)."""

from typing import NamedTuple

SESSION_HEADER = "Paceline-Session"
SEQUENCE_HEADER = "Paceline-Sequence"
NOT_ADMITTED = ("UNKNOWN_SESSION", "STALE_SEQUENCE")
"""Reasons of refusals that tell nothing of what an earlier attempt has done: too much time has
passed since, or too many commands."""


class Once(NamedTuple):
    """A session of the controllers and a number in it: one command."""

    session: str
    sequence: int

    def next(self) -> "Once":
        return Once(self.session, self.sequence + 1)

    def headers(self) -> dict[str, str]:
        return {SESSION_HEADER: self.session, SEQUENCE_HEADER: str(self.sequence)}
