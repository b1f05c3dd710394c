"""Who guesses passwords waits; who has one does not."""

from bisect import bisect_left
from contextlib import AbstractContextManager, ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import (
    LoginFailedError,
    NotLeaderError,
    OverloadedError,
    PacelineError,
    QuotaExceededError,
)
from paceline.platform.runtime import ManualClock
from paceline.security import login_backoff
from paceline.security.login_backoff import (
    AT_ONCE_MAX,
    FORGOTTEN_AFTER_MS,
    FREE_OF_SOURCE,
    FREE_OF_USER,
    LoginBackoff,
)
from paceline.wire.users import HOUR_MS


def waits_ms(backoff: LoginBackoff, user: str, source: str) -> int:
    """Guess wrong; for how long there may be no guess, then none was made."""
    try:
        with backoff.trying(user, source):
            raise LoginFailedError("a wrong password")
    except QuotaExceededError as error:
        return int(str(error.details["retry_after_ms"]))
    except LoginFailedError:
        return 0


def logs_in(backoff: LoginBackoff, user: str, source: str) -> bool:
    """Show the right password; False: no try was allowed."""
    try:
        with backoff.trying(user, source):
            return True
    except OverloadedError:
        return False


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
        assert logs_in(backoff, "own", "s")
    free = 0
    while waits_ms(backoff, f"victim-{free}", "s") == 0:
        free += 1
        logs_in(backoff, "own", "s")
    assert free == 5


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_backoff, "KEPT_MAX", 10)
    backoff = LoginBackoff(ManualClock().monotonic_ms)
    for at in range(100):
        assert waits_ms(backoff, f"u{at}", f"s{at}") == 0

    assert len(backoff._sources.failures) == len(backoff._users.failures) == 10
    assert not backoff._sources.under_way
    assert not backoff._users.under_way


def test_right_logins_do_not_keep_failures_of_others_alive() -> None:
    """An office behind one address: somebody mistypes each half hour, all others do not."""
    clock = ManualClock()
    backoff = LoginBackoff(clock.monotonic_ms)
    for minute in range(24 * 60):
        clock.advance(60_000)
        if minute % 30 == 0:
            assert waits_ms(backoff, "ana", "10.0.0.1") == 0
        if minute % 5 == 0:
            assert logs_in(backoff, "bob", "10.0.0.1")
            assert logs_in(backoff, "ana", "10.0.0.1")


def test_those_who_log_in_at_once_are_let_in() -> None:
    backoff = LoginBackoff(ManualClock().monotonic_ms)
    with ExitStack() as under_way:
        for number in range(AT_ONCE_MAX):
            under_way.enter_context(backoff.trying(f"u{number}", "10.0.0.1"))
        with pytest.raises(OverloadedError) as refused, backoff.trying("one more", "10.0.0.1"):
            pass
        assert not isinstance(refused.value, QuotaExceededError), "nobody has failed"
        assert logs_in(backoff, "u0", "10.0.0.2")
    assert logs_in(backoff, "one more", "10.0.0.1")


@pytest.mark.parametrize("error", [NotLeaderError("it moved"), OverloadedError("too many")])
def test_what_the_cluster_could_not_do_is_no_wrong_password(error: PacelineError) -> None:
    backoff = LoginBackoff(ManualClock().monotonic_ms)
    for _ in range(20):
        with pytest.raises(type(error)), backoff.trying("ana", "10.0.0.1"):
            raise error
    assert logs_in(backoff, "ana", "10.0.0.1")


class Guesser:
    """Guesses at a backoff; each guess is under way until it ends."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.backoff = LoginBackoff(self.clock.monotonic_ms)
        self.under_way: list[AbstractContextManager[None]] = []
        self.guessed_ms: list[int] = []

    def begin(self, user: str = "ana", source: str = "s") -> bool:
        guess = self.backoff.trying(user, source)
        try:
            guess.__enter__()
        except OverloadedError:
            return False
        self.under_way.append(guess)
        self.guessed_ms.append(self.clock.monotonic_ms())
        return True

    def fail_all(self) -> None:
        for guess in self.under_way:
            guess.__exit__(LoginFailedError, LoginFailedError("a wrong password"), None)
        self.under_way.clear()

    def most_within(self, span_ms: int) -> int:
        """Guesses in the span that has most of them."""
        return max(
            bisect_left(self.guessed_ms, began + span_ms) - number
            for number, began in enumerate(self.guessed_ms)
        )


@pytest.mark.parametrize("silence_ms", [5_000, 60_000, FORGOTTEN_AFTER_MS])
@pytest.mark.parametrize("at_once", [1, 4, AT_ONCE_MAX, 2 * AT_ONCE_MAX])
def test_no_schedule_guesses_often_from_one_source(at_once: int, silence_ms: int) -> None:
    """As often as possible, and so many at once; or a few in a row, and silence until they are
    forgotten."""
    guesser = Guesser()
    while guesser.clock.monotonic_ms() < 2 * HOUR_MS:
        for number in range(FREE_OF_SOURCE - 1):
            if guesser.begin(f"u{number}"):
                guesser.fail_all()
        for number in range(at_once):
            guesser.begin(f"v{number}")
        guesser.fail_all()
        guesser.clock.advance(silence_ms)

    assert guesser.most_within(60_000) <= FREE_OF_SOURCE - 1 + AT_ONCE_MAX + 1
    assert guesser.most_within(HOUR_MS) <= 100


STEPS = st.one_of(
    st.tuples(st.just("guess"), st.integers(0, 2)),
    st.tuples(st.just("log in"), st.integers(0, 2)),
    st.tuples(st.just("end"), st.just(0)),
    st.tuples(st.just("wait"), st.sampled_from([1, 999, 1_000, 30_000, 60_000, 899_999, 900_000])),
)


@given(st.lists(STEPS, max_size=120))
def test_no_mixture_of_guesses_and_right_logins_guesses_often(steps: list[tuple[str, int]]) -> None:
    guesser = Guesser()
    for step, number in steps:
        if step == "guess":
            guesser.begin(f"u{number}")
        elif step == "log in":
            logs_in(guesser.backoff, f"u{number}", "s")
        elif step == "end":
            guesser.fail_all()
        else:
            guesser.clock.advance(number)
    if guesser.guessed_ms:
        assert guesser.most_within(FORGOTTEN_AFTER_MS) <= FREE_OF_SOURCE - 1 + AT_ONCE_MAX + 15
    guesser.fail_all()


def test_no_schedule_guesses_often_at_one_user_from_sources_that_have_failed() -> None:
    """The first guess of each source in 15 minutes is free; all others count together."""
    guesser = Guesser()
    sources = [f"10.0.{number}.1" for number in range(20)]
    for source in sources:
        guesser.begin("other", source)
    guesser.fail_all()
    guesser.guessed_ms.clear()
    while guesser.clock.monotonic_ms() < HOUR_MS:
        for source in sources:
            for _ in range(3):
                guesser.begin("ana", source)
        guesser.fail_all()
        guesser.clock.advance(5_000)

    free = len(sources) * HOUR_MS // FORGOTTEN_AFTER_MS
    most = AT_ONCE_MAX + FREE_OF_USER - 1 + HOUR_MS // login_backoff.WAIT_MS_MAX_OF_USER
    assert len(guesser.guessed_ms) <= free + most
