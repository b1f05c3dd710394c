"""Shell: commands over HTTP exactly once: the caller names (session, sequence) in two headers.

Whoever asks the same again, of whichever controller, gets the first result (R38). Without the
headers a repetition is another command.
"""

import re
from typing import Any

from aiohttp import web

from paceline.errors import BadRequestError, ConflictError, PacelineError
from paceline.wire.calls.request import Request
from paceline.wire.commands import TOKEN_PATTERN
from paceline.wire.once import NOT_ADMITTED, SEQUENCE_HEADER, SESSION_HEADER, Once
from paceline_controller.server.http_answers import checked

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
