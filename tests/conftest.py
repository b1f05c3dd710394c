"""All tests run in random order (pytest-randomly); a failure says in which."""

import pytest


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    seed = config.getoption("randomly_seed", None)
    if exitstatus != 0 and seed is not None:
        terminalreporter.write_line(f"The order of these tests: -p randomly --randomly-seed={seed}")
