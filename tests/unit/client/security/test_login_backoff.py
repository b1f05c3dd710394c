"""Who guesses passwords waits; who has one does not."""

import pytest

from paceline.errors import QuotaExceededError
from paceline.platform.runtime import ManualClock
from paceline.security import login_backoff
from paceline.security.login_backoff import FORGOTTEN_AFTER_MS, LoginBackoff


def waits_ms(backoff: LoginBackoff, user: str, source: str) -> int:
    try:
        backoff.begin(user, source)
    except QuotaExceededError as error:
        return int(str(error.details["retry_after_ms"]))
    return 0


def test_a_source_waits_longer_with_each_guess() -> None:
    clock = ManualClock()
    backoff = LoginBackoff(clock.monotonic_ms)
    assert [waits_ms(backoff, f"u{at}", "s") for at in range(5)] == [0] * 5
    found = []
    for at in range(9):
        found.append(waits_ms(backoff, f"u{at}", "s"))
        clock.advance(found[-1] - 1)
        assert waits_ms(backoff, f"u{at}", "s") == 1
        clock.advance(1)
        assert waits_ms(backoff, f"u{at}", "s") == 0

    assert found == [1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000, 60_000]
    assert waits_ms(backoff, "u", "other") == 0
    clock.advance(FORGOTTEN_AFTER_MS)
    assert waits_ms(backoff, "u", "s") == 0


def test_a_user_is_not_kept_out_for_long_by_guesses_from_everywhere() -> None:
    clock = ManualClock()
    backoff = LoginBackoff(clock.monotonic_ms)
    sources = [f"10.0.{at}.1" for at in range(100)]
    assert [waits_ms(backoff, "ana", source) for source in sources[:10]] == [0] * 10
    assert waits_ms(backoff, "ana", sources[0]) == 1000
    assert [waits_ms(backoff, "ana", source) for source in sources[10:]] == [0] * 90
    assert waits_ms(backoff, "ana", sources[99]) == 10_000, "all have failed now"
    assert waits_ms(backoff, "ana", "192.168.0.1") == 0, "whoever has not failed comes in"
    clock.advance(10_000)
    assert waits_ms(backoff, "ana", sources[0]) == 0


def test_a_network_of_ipv6_is_one_source() -> None:
    backoff = LoginBackoff(ManualClock().monotonic_ms)
    waits = [waits_ms(backoff, f"u{at}", f"2001:db8::{at:x}") for at in range(6)]

    assert waits == [0] * 5 + [1000]


def test_who_logs_in_himself_gets_no_free_guesses_for_others() -> None:
    clock = ManualClock()
    backoff = LoginBackoff(clock.monotonic_ms)
    for _ in range(100):
        backoff.begin("own", "s")
        backoff.succeeded("own", "s")
    free = 0
    while waits_ms(backoff, f"victim-{free}", "s") == 0:
        free += 1
        if waits_ms(backoff, "own", "s") == 0:
            backoff.succeeded("own", "s")
    assert free == 5


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_backoff, "KEPT_MAX", 10)
    backoff = LoginBackoff(ManualClock().monotonic_ms)
    for at in range(100):
        backoff.begin(f"u{at}", f"s{at}")

    assert len(backoff._sources) == len(backoff._users) == 10
