"""The real and the in-memory twins of Clock and Random, and the tasks that `spawn` starts."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from paceline.platform.ports import Clock, Random
from paceline.platform.runtime import (
    ManualClock,
    SeededRandom,
    SystemClock,
    SystemRandom,
    cancel_and_wait,
    pause,
    spawn,
)


@pytest.mark.parametrize("make", [SystemClock, ManualClock])
def test_both_clocks_count_milliseconds_and_never_run_back(make: Callable[[], Clock]) -> None:
    clock = make()

    readings = [clock.monotonic_ms() for _ in range(100)]

    assert readings == sorted(readings)
    assert clock.unix_ms() > 1_600_000_000_000


def test_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(monotonic_ms=5, unix_ms=100)

    clock.advance(10)
    clock.step_wall(-50)

    assert (clock.monotonic_ms(), clock.unix_ms()) == (15, 60)


def test_manual_clock_refuses_to_run_back() -> None:
    with pytest.raises(AssertionError):
        ManualClock().advance(-1)


@pytest.mark.parametrize("make", [SystemRandom, lambda: SeededRandom("seed")])
def test_both_generators_keep_to_their_ranges(make: Callable[[], Random]) -> None:
    random = make()

    tokens = {random.token(16) for _ in range(50)}
    numbers = [random.uniform(2.0, 3.0) for _ in range(50)]

    assert len(tokens) == 50
    assert all(len(token) == 16 for token in tokens)
    assert all(2.0 <= number <= 3.0 for number in numbers)


def test_equal_seeds_give_equal_values_on_every_machine() -> None:
    assert SeededRandom("a").token(4) == SeededRandom("a").token(4)
    assert SeededRandom("a").token(4) != SeededRandom("b").token(4)
    assert SeededRandom("a").token(4).hex() == "4abaa345"


async def test_error_that_leaves_a_task_reaches_the_handler_of_the_loop() -> None:
    reported: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context))

    async def fail() -> None:
        raise ValueError("torn")

    await asyncio.wait([spawn(fail(), name="failing")])
    await pause(0)

    (context,) = reported
    assert "failing" in context["message"]
    assert isinstance(context["exception"], ValueError)


async def test_cancelled_tasks_have_ended_when_the_wait_is_over() -> None:
    ended: list[str] = []

    async def wait_for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("yes")

    task = spawn(wait_for_ever(), name="waiting")
    await pause(0)

    await cancel_and_wait(task, None)

    assert task.cancelled()
    assert ended == ["yes"]
