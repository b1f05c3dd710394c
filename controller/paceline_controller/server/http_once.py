"""Shell: commands over HTTP exactly once: the caller names (session, sequence) in two headers.

Whoever asks the same again, of whichever controller, gets the first result (R38). Without the
headers a repetition is another command.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from paceline.errors import BadRequestError, ConflictError, OverloadedError, PacelineError
from paceline.security.access import Asker
from paceline.wire.calls.request import Request
from paceline.wire.commands import (
    NOT_ADMITTED,
    SEQUENCE_HEADER,
    SESSION_HEADER,
    TOKEN_PATTERN,
    Once,
)
from paceline.wire.users import ANONYMOUS
from paceline_controller.server.http_answers import checked
from paceline_controller.state.machine import SESSIONS_MAX, Machine

SEQUENCE_DIGITS_MAX = 15
SESSIONS_OF_USER_MAX = 1_000
"""Sessions that one user may have, who is no super user. Each client and each command of the CLI
opens one, and it is kept for ten minutes: more than one and a half a second all the time."""
SESSIONS_OF_NORMAL_USERS_MAX = SESSIONS_MAX * 4 // 10
"""Sessions that may be open for a normal user to open one more. A tenth is left to super users, who
must be able to stop him, and half to brokers (quorum_calls.py)."""
OWNERS_MAX = 10_000
"""Users, and addresses of strangers, whose sessions are counted; then those without are dropped."""


class SessionsOfUsers:
    """How many of the cluster's sessions each user has opened through this leader.

    The replicated state does not say whose a session is, so the count begins anew with each leader.
    What all normal users have together is bounded by the state.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._opened: dict[str, set[str]] = {}
        self._opening: set[str] = set()

    @contextmanager
    def opening(self, asker: Asker, session: str) -> Iterator[None]:
        """While it is opened. OverloadedError if the user has as many as it may, or all normal
        users have."""
        if not asker.sees_less:
            yield
            return
        user, source = asker.principal.user, asker.principal.source
        who = f"{user} from {source}" if user == ANONYMOUS else user
        self._check(who, session)
        self._opened.setdefault(who, set()).add(session)
        self._opening.add(session)
        try:
            yield
        finally:
            self._opening.discard(session)

    def _check(self, who: str, session: str) -> None:
        opened = self._opened.get(who, set())
        if session in opened:
            return  # it is asked for again
        if len(opened) >= SESSIONS_OF_USER_MAX:
            self._opened[who] = opened = self._living(opened)
            if len(opened) >= SESSIONS_OF_USER_MAX:
                raise OverloadedError(
                    f"{who} has {SESSIONS_OF_USER_MAX} sessions for writes, as many as one user may"
                    " have; each is kept for ten minutes after its last use: let a program use one"
                    " client again and again",
                    retry_after_ms=10_000,
                )
        if self._machine.sessions_count >= SESSIONS_OF_NORMAL_USERS_MAX:
            raise OverloadedError("too many sessions are open", retry_after_ms=1000)
        if len(self._opened) >= OWNERS_MAX:
            living = {name: self._living(sessions) for name, sessions in self._opened.items()}
            self._opened = {name: sessions for name, sessions in living.items() if sessions}

    def _living(self, sessions: set[str]) -> set[str]:
        return {
            each for each in sessions if each in self._opening or self._machine.has_session(each)
        }


def once_of(request: web.Request) -> Once | None:
    """What the caller named, if it did. Raises BadRequestError."""
    session, text = request.headers.get(SESSION_HEADER), request.headers.get(SEQUENCE_HEADER)
    if session is None and text is None:
        return None
    if session is None or re.fullmatch(TOKEN_PATTERN, session) is None:
        raise BadRequestError(f"{SESSION_HEADER} must match {TOKEN_PATTERN}", field=SESSION_HEADER)
    is_number = text is not None and text.isascii() and text.isdecimal()
    if text is None or not is_number or len(text) > SEQUENCE_DIGITS_MAX:
        raise BadRequestError(f"{SEQUENCE_HEADER} must be an integer from 0", field=SEQUENCE_HEADER)
    return Once(session, int(text))


def refuse_once(call: Request[Any], once: Once | None) -> None:
    """For requests that are more than one command. Raises BadRequestError.

    A repetition of theirs is safe by naming what it was decided on (docs/protocol/controller.md).
    """
    if once is not None:
        raise BadRequestError(
            f"{call.call_name()} is no single command: ask without {SESSION_HEADER}, "
            "and name the epoch, term or generation that you know",
            field=SESSION_HEADER,
        )


def settled(result: dict[str, Any], once: Once | None) -> dict[str, Any]:
    """Details of a refusal name the sequence it settles, with all attempts there were of it."""
    try:
        return checked(result)
    except PacelineError as error:
        if once is not None and result["reason"] not in NOT_ADMITTED:
            error.details["sequence"] = once.sequence
        raise


def topic_answer(result: dict[str, Any]) -> dict[str, Any]:
    """The topic as the command left it."""
    if "topic" not in result:
        raise ConflictError("this sequence was another command", field=SEQUENCE_HEADER)
    return {**result["topic"], "version": result["version"]}
