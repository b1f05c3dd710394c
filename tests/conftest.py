"""All tests run in random order (pytest-randomly); a failure says in which."""

import signal

import pytest

# Shells start what they put into the background with Ctrl-C ignored, and every child inherits it:
# tests that press it would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("paceline")
    group.addoption(
        "--fuzz-seconds",
        type=float,
        default=1.0,
        help="how long each fuzzer in tests/unit/security runs",
    )
    group.addoption("--fuzz-seed", type=int, default=1, help="what its bytes are drawn from")
    group.addoption(
        "--peer",
        default="paceline",
        help="what tests/interop runs clients against: paceline, rocketmq, or GRPC,NAMESERVER",
    )


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    seed = config.getoption("randomly_seed", None)
    if exitstatus != 0 and seed is not None:
        terminalreporter.write_line(f"The order of these tests: -p randomly --randomly-seed={seed}")
