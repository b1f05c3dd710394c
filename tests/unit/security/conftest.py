"""How long strangers say hostile things, and from which seed."""

import pytest


@pytest.fixture
def fuzz(request: pytest.FixtureRequest) -> tuple[float, int]:
    """Seconds, and the seed."""
    config = request.config
    return config.getoption("fuzz_seconds"), config.getoption("fuzz_seed")
