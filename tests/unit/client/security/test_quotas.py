"""Token buckets of users: what is taken at once, what must wait, what a change of limits keeps."""

from hypothesis import given
from hypothesis import strategies as st
from tests.support.rights import a_security

from paceline.security.quotas import DEBT_S_MAX, Bucket, Quotas, UserQuota
from paceline.wire.users import Quota, User


def test_a_second_is_taken_at_once_and_what_goes_beyond_is_waited_for() -> None:
    bucket = Bucket(100, now_ms=0)

    assert bucket.spend(100, now_ms=0) == 0
    assert bucket.spend(50, now_ms=0) == 501, "it is served, and paid for later"
    assert bucket.spend(0, now_ms=400) == 101
    assert bucket.spend(0, now_ms=501) == 0
    assert bucket.spend(100, now_ms=60_000) == 0, "a minute of rest is a second's worth"
    assert bucket.spend(1, now_ms=60_000) > 0


@given(
    st.integers(1, 10**9),
    st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 10**4)), max_size=30),
)
def test_who_waits_as_told_gets_what_the_limit_allows(
    per_s: int, steps: list[tuple[int, int]]
) -> None:
    """Over any time no more than the rate, a second's worth, and the last request."""
    bucket, now_ms, spent, last = Bucket(per_s, now_ms=0), 0, 0, 0
    for size, pause_ms in steps:
        amount = min(size, DEBT_S_MAX * per_s)
        now_ms += pause_ms + bucket.spend(0, now_ms=now_ms)
        bucket.spend(amount, now_ms=now_ms)
        spent, last = spent + amount, amount
        assert spent - last <= per_s * (now_ms / 1000 + 1) + 1


def test_many_streams_of_a_user_that_takes_too_much_do_not_lock_it_out_for_days() -> None:
    bucket = Bucket(100, now_ms=0)
    for second in range(1000):
        bucket.spend(100_000, now_ms=second * 1000)

    assert bucket.spend(0, now_ms=999_000) <= DEBT_S_MAX * 1000 + 1


def test_a_clock_that_goes_back_gives_nothing() -> None:
    bucket = Bucket(100, now_ms=10_000)
    bucket.spend(100, now_ms=10_000)

    assert bucket.spend(0, now_ms=0) == 0
    assert bucket.spend(50, now_ms=10_000) > 0


def test_the_tightest_limit_counts_and_others_are_not_limited() -> None:
    quota = UserQuota(Quota(bytes_in_per_s=1000, requests_per_s=2), lambda: 0)

    assert quota.spend(bytes_in=10, requests=1, bytes_out=10**9) == 0
    assert quota.spend(bytes_in=10, requests=3) > 0
    assert quota.throttled_count == 1


def test_whose_limits_stay_keeps_what_was_counted() -> None:
    quotas = Quotas(lambda: 0)
    limited = User(quota=Quota(requests_per_s=1))
    security = a_security().with_user("ana", limited).with_user("bob", limited)
    quotas.apply(security)
    ana, bob = quotas.of("ana"), quotas.of("bob")
    assert quotas.of("root") is None

    quotas.apply(security.with_user("bob", User(quota=Quota(requests_per_s=2))))

    assert quotas.of("ana") is ana
    assert quotas.of("bob") is not bob


def test_one_request_a_second_is_served_whatever_streams_take() -> None:
    now_ms, served = 0, []
    quota = UserQuota(Quota(requests_per_s=1), lambda: now_ms)
    for now_ms in range(0, 10_000, 100):
        quota.spend(requests=5)  # five streams, each of which is served once a second
        if (wait_ms := quota.wait_for_request()) == 0:
            quota.spend(requests=1)
            served.append(now_ms)
        else:
            assert wait_ms <= 1_000

    assert served == list(range(0, 10_000, 1_000))


def test_who_has_taken_nothing_is_not_held_to_one_request_a_second() -> None:
    quota = UserQuota(Quota(requests_per_s=10), lambda: 0)

    for _ in range(10):
        assert quota.wait_for_request() == 0
        quota.spend(requests=1)
    quota.spend(requests=1)

    assert quota.wait_for_request() > 0
