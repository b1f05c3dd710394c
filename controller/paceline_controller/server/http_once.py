"""Shell: commands over HTTP exactly once: the caller names (session, sequence) in two headers.

Whoever asks the same again, of whichever controller, gets the first result (R38). Without the
headers a repetition is another command.
"""

import re
from typing import Any

from aiohttp import web

from paceline.errors import BadRequestError, ConflictError, OverloadedError, PacelineError
from paceline.wire.once import NOT_ADMITTED, SEQUENCE_HEADER, SESSION_HEADER, Once
from paceline.wire.session_commands import TOKEN_PATTERN, OpenSession
from paceline_controller.server.http_answers import checked, json_answer
from paceline_controller.state import Machine
from paceline_controller.state.machine import SESSIONS_MAX

SEQUENCE_DIGITS_MAX = 15


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


def refuse_once(request: web.Request) -> None:
    """For routes that are more than one command. Raises BadRequestError.

    A repetition of theirs is safe by naming what it was decided on (docs/protocol/controller.md).
    """
    if once_of(request) is not None:
        raise BadRequestError(
            f"{request.method} {request.path} is no single command: ask without {SESSION_HEADER}, "
            "and name the epoch, term or generation that you know",
            field=SESSION_HEADER,
        )


def earlier(request: web.Request, machine: Machine) -> dict[str, Any] | None:
    """The result of that very command, if this leader's log has it; a refusal is raised again.

    It comes before all other judgement: what was there for the first attempt may be gone, by it.
    """
    once = once_of(request)
    result = None if once is None else machine.result_of(once.session, once.sequence)
    return None if result is None else settled(result, once)


def settled(result: dict[str, Any], once: Once | None) -> dict[str, Any]:
    """Details of a refusal name the sequence it settles, with all attempts there were of it."""
    try:
        return checked(result)
    except PacelineError as error:
        if once is not None and result["reason"] not in NOT_ADMITTED:
            error.details["sequence"] = once.sequence
        raise


def opening(request: web.Request, machine: Machine) -> tuple[Once, OpenSession]:
    """The command that opens the session in the headers, by sequence 0."""
    once = once_of(request)
    if once is None or once.sequence != 0:
        raise BadRequestError(
            f"{SESSION_HEADER} names the session, {SEQUENCE_HEADER} is 0", field=SEQUENCE_HEADER
        )
    if machine.sessions_count >= SESSIONS_MAX // 2:
        # The other half is the brokers': without a session they cannot even register.
        raise OverloadedError("too many sessions are open", retry_after_ms=1000)
    return once, OpenSession()


def topic_answer(result: dict[str, Any], *, status: int = 200) -> web.Response:
    """The topic as the command left it."""
    if "topic" not in result:
        raise ConflictError("this sequence was another command", field=SEQUENCE_HEADER)
    return json_answer({**result["topic"], "version": result["version"]}, status=status)
