"""Moments as users write them."""

import re
from datetime import UTC, datetime

from paceline.errors import BadRequestError


def parse_moment(text: str, *, name: str) -> int:
    """Unix milliseconds of a number or of an ISO 8601 time (UTC when it names no zone)."""
    plain = text.strip()
    if re.fullmatch(r"[0-9]{1,15}", plain):
        return int(plain)
    try:
        moment = datetime.fromisoformat(plain)
    except ValueError:
        raise BadRequestError(
            f"option {name} must be unix milliseconds or ISO 8601, not {text!r}", field=name
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)
