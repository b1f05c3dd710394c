"""`--delay`, `--level` and `--at` of `paceline send`: when its messages are to be delivered."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import wraps
from typing import Any, NamedTuple

import click


class When(NamedTuple):
    """As `Message` has it."""

    delivery_unix_ms: int | None = None
    delay_ms: int | None = None
    delay_level: int | None = None


def delay_options(function: Callable[..., None]) -> Callable[..., None]:
    """Adds the three options, given to the command as `when`."""

    @click.option("--delay", metavar="10s|5m|2h|500ms", help="Deliver so long after it was stored.")
    @click.option(
        "--level", type=click.IntRange(1), help="Deliver after RocketMQ's delay level, 1 to 18."
    )
    @click.option("--at", metavar="TIME", help="Deliver at 2026-12-24T18:00:00Z, or at unix ms.")
    @wraps(function)
    def run(*, delay: str | None, level: int | None, at: str | None, **arguments: Any) -> None:
        if sum(option is not None for option in (delay, level, at)) > 1:
            raise click.UsageError("give one of --delay, --level and --at")
        when = When(
            delivery_unix_ms=None if at is None else _time(at),
            delay_ms=None if delay is None else _delay_ms(delay),
            delay_level=level,
        )
        function(when=when, **arguments)

    return run


def _delay_ms(text: str) -> int:
    from paceline.records.dues import parse_levels

    if re.fullmatch(r"[0-9]{1,18}ms", text):
        return int(text[:-2])
    try:
        [delay_ms] = parse_levels(text)
    except ValueError:
        raise click.UsageError(
            f"--delay {text!r} is no delay: write 500ms, 10s, 5m, 2h or 1d"
        ) from None
    return delay_ms


def _time(text: str) -> int:
    if re.fullmatch(r"[0-9]{1,18}", text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(
            f"--at {text!r} is no time: write 2026-12-24T18:00:00Z, or unix ms"
        ) from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
