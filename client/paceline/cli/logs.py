"""What the client library logs while a command runs: one readable line each on stderr.

A record is an event's name with fields (`paceline.platform.telemetry`); Python's own last resort
would print the name alone. Programs get the same lines: with --json only the last line of stderr is
JSON.
"""

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import click

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""What a record has without anybody's `extra`."""
_LOGGER = "paceline"
"""Parent of the library's loggers."""


@contextmanager
def logs_on_stderr(*, told: Collection[str] = ()) -> Iterator[None]:
    """Tell warnings and errors of the library to the user, for as long as this is open.

    `told`: events that the command tells in its own words.
    """
    logger, handler = logging.getLogger(_LOGGER), _Stderr(logging.WARNING)
    handler.addFilter(lambda record: record.msg not in told)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def line_of(record: logging.LogRecord) -> str:
    """`event: field=value field="a value of several words"`."""
    fields = [
        f"{name}={_shown(value)}"
        for name, value in vars(record).items()
        if name not in _STANDARD and value is not None
    ]
    event = record.getMessage()
    return f"{event}: {' '.join(fields)}" if fields else event


def _shown(value: object) -> str:
    """One word, or quoted: nothing in it may break the line or steer the terminal."""
    text = str(value)
    is_word = text.isprintable() and text and " " not in text and '"' not in text
    return text if is_word else repr(text)


class _Stderr(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = f"paceline: {line_of(record)}"
            if record.exc_info:
                text += "\n" + logging.Formatter().formatException(record.exc_info)
            click.echo(text, err=True)
        except Exception:  # logging's own rule: a line that cannot be told ends no command
            self.handleError(record)
