"""What holds for all unit tests: how Hypothesis judges, and that no test changes another's logging.

No example is judged by how long it took on this machine. Hypothesis' usual 200 ms are a collection
of garbage, or a neighbour's turn: a failure by them says nothing of the code. A test that hangs is
ended by its own `--timeout`.
"""

import logging
from collections.abc import Iterator

import pytest
from hypothesis import settings

from paceline.platform.telemetry import strangers

settings.register_profile("paceline", deadline=None)
settings.load_profile("paceline")


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """A node that a test starts in this process replaces the handlers and levels of the process:
    the next test would see no log, or write to a stream that is closed."""
    loggers = [logging.getLogger(name) for name in (None, "paceline", "aiohttp.access")]
    before = [(logger.level, list(logger.handlers)) for logger in loggers]
    filters = list(strangers.filters)  # they let ten lines of a second through
    yield
    strangers.filters[:] = filters
    for logger, (level, handlers) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.handlers[:] = handlers
