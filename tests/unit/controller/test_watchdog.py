"""A loop that hangs ends its process; one that was only not run does not."""

import subprocess
import sys

import pytest

from paceline_controller.watchdog import EXIT_HUNG, LOOK_MS, HangJudge

HANG = """
import asyncio, threading
from paceline.platform.runtime import SystemClock
from paceline_controller.watchdog import Watchdog

async def main():
    Watchdog(SystemClock(), limit_ms=500).start()
    this_function_hangs()

def this_function_hangs():
    threading.Event().wait()

asyncio.run(main())
"""


def looks(judge: HangJudge, *gaps_ms: int, beats: int = 1) -> list[bool]:
    now, answers = 0, []
    for gap in gaps_ms:
        now += gap
        answers.append(judge.look(beats, now_ms=now))
    return answers


def test_a_loop_without_a_beat_hangs_after_the_limit() -> None:
    judge = HangJudge(limit_ms=5 * LOOK_MS, now_ms=0)

    assert looks(judge, *[LOOK_MS] * 6) == [False] * 5 + [True]


def test_a_beat_starts_the_count_again() -> None:
    judge = HangJudge(limit_ms=5 * LOOK_MS, now_ms=0)

    assert not any(judge.look(beats=at // 4, now_ms=at * LOOK_MS) for at in range(1, 40))


@pytest.mark.parametrize("gap_ms", [1_000, 60_000])
def test_a_stopped_process_does_not_hang(gap_ms: int) -> None:
    """After SIGCONT the thread may look before the loop has had its turn."""
    judge = HangJudge(limit_ms=5 * LOOK_MS, now_ms=0)

    assert looks(judge, LOOK_MS, LOOK_MS, gap_ms, LOOK_MS, LOOK_MS) == [False] * 5


def test_a_process_whose_loop_hangs_says_where_and_ends() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANG], capture_output=True, text=True, timeout=30, check=False
    )

    assert done.returncode == EXIT_HUNG
    assert "this_function_hangs" in done.stderr
