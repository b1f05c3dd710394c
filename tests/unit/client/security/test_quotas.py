"""Token buckets of users: what is taken at once, what must wait, what a change of limits keeps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.rights import a_security

from paceline.errors import QuotaExceededError
from paceline.security import quotas as module
from paceline.security.quotas import DEBT_S_MAX, SMALL_SHARE, Bucket, Quotas
from paceline.wire.users import Quota


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
        for _ in range(1000):  # streams, each of which is served in any case
            bucket.spend(100, now_ms=second * 1000)

    assert bucket.spend(0, now_ms=999_000) <= (DEBT_S_MAX + 1) * 1000 + 1


def test_a_request_that_is_larger_than_any_debt_is_paid_for_in_full() -> None:
    bucket = Bucket(100, now_ms=0)
    bucket.spend(16_000_000, now_ms=0)

    assert bucket.spend(0, now_ms=0) == (16_000_000 - 100) * 10 + 1


@given(st.integers(1, 10**6), st.lists(st.integers(1, 10**6), min_size=2, max_size=30))
def test_what_is_served_below_zero_takes_half_of_the_rate_at_most(
    per_s: int, sizes: list[int]
) -> None:
    bucket, now_ms, spent = Bucket(per_s, now_ms=0), 0, 0
    bucket.spend(1000 * per_s, now_ms=0)
    for size in sizes:
        amount = min(size, 10 * per_s)
        bucket.spend(amount, now_ms=now_ms)
        spent += amount
        now_ms += bucket.small_wait_ms(now_ms=now_ms)
        assert spent <= per_s * (now_ms + 1) / 1000 / SMALL_SHARE + len(sizes)


def test_a_clock_that_goes_back_gives_nothing() -> None:
    bucket = Bucket(100, now_ms=10_000)
    bucket.spend(100, now_ms=10_000)

    assert bucket.spend(0, now_ms=0) == 0
    assert bucket.spend(50, now_ms=10_000) > 0


def limited(**subjects: Quota) -> Quotas:
    quotas = Quotas(lambda: 0)
    quotas.apply(a_security().changed(quotas=subjects))
    return quotas


def test_the_tightest_limit_counts_and_others_are_not_limited() -> None:
    quotas = limited(**{"User:ana": Quota(bytes_in_per_s=1000, requests_per_s=2)})
    ana = quotas.of("ana")
    assert ana is not None

    assert ana.spend(bytes_in=10, requests=1, bytes_out=10**9) == 0
    assert ana.spend(bytes_in=10, requests=3) > 0
    assert quotas.throttled() == {("ana", "requests"): 1}
    ana.check()  # one a second is served in any case
    with pytest.raises(QuotaExceededError, match="paceline quota set"):
        ana.check()
    assert quotas.of("root") is None


def test_whose_limits_stay_keeps_what_was_counted() -> None:
    one = Quota(requests_per_s=1)
    security = a_security().changed(quotas={"User:ana": one, "User:bob": one})
    quotas = Quotas(lambda: 0)
    quotas.apply(security)
    for name in ("ana", "bob"):
        spend(quotas, name, requests=5)

    quotas.apply(security.changed(quotas={"User:ana": one, "User:bob": Quota(requests_per_s=2)}))

    assert spend(quotas, "ana") > 0
    assert spend(quotas, "bob") == 0


def spend(quotas: Quotas, user: str, client_id: str = "", **amounts: int) -> int:
    found = quotas.of(user, client_id)
    assert found is not None
    return found.spend(**amounts)


def test_the_quota_of_a_client_comes_first_then_of_the_user_then_of_everybody() -> None:
    """Kafka's order, for each limit by itself."""
    quotas = limited(
        **{
            "User:ana/Client:till": Quota(requests_per_s=10),
            "User:ana/Client:*": Quota(requests_per_s=20),
            "User:ana": Quota(requests_per_s=30, bytes_in_per_s=300),
            "User:*": Quota(requests_per_s=40),
        }
    )

    def requests(user: str, client_id: str = "") -> int | None:
        found = quotas.of(user, client_id)
        return None if found is None else found.buckets["requests"].per_s

    assert requests("ana", "till") == 10
    assert (requests("ana", "a"), requests("ana", "b")) == (20, 20)
    assert (requests("ana"), requests("bob"), requests("root")) == (30, 40, 40)
    assert quotas.of("anonymous") is None
    till, other = quotas.of("ana", "till"), quotas.of("ana", "a")
    assert till is not None
    assert other is not None
    assert till.buckets["bytes_in"] is other.buckets["bytes_in"], "of the user: all share it"
    assert till.buckets["requests"] is not other.buckets["requests"]
    assert spend(quotas, "ana", "a", requests=100) > 0
    assert spend(quotas, "ana", "b", requests=1) == 0, "each client has its own"
    assert spend(quotas, "bob", requests=100) > 0
    assert spend(quotas, "root", requests=1) == 0, "and each user"


def test_clients_that_make_up_ids_do_not_fill_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUCKETS_MAX", 10)
    quotas = limited(**{"User:ana/Client:*": Quota(requests_per_s=1)})
    for number in range(100):
        spend(quotas, "ana", f"c{number}", requests=10)

    assert len(quotas._buckets) <= 11
    assert len(quotas._found) <= 10
    assert spend(quotas, "ana", "another") > 0, "they share one, and it is used up"


def test_connections_are_counted_until_they_end() -> None:
    quotas = limited(**{"User:ana": Quota(connections=2), "User:*": Quota(connections=1)})
    first, _ = quotas.connect("ana"), quotas.connect("ana")
    quotas.connect("bob")

    for user in ("ana", "bob"):
        with pytest.raises(QuotaExceededError, match="allows no more"):
            quotas.connect(user)
    first()
    quotas.connect("ana")

    assert quotas.connections() == {("ana",): 2, ("bob",): 1}


def test_one_request_a_second_is_served_whatever_streams_take() -> None:
    now_ms, served = 0, []
    quotas = Quotas(lambda: now_ms)
    quotas.apply(a_security().changed(quotas={"User:ana": Quota(requests_per_s=1)}))
    quota = quotas.of("ana")
    assert quota is not None
    for now_ms in range(0, 10_000, 100):
        quota.spend(requests=5)  # five streams, each of which is served once a second
        if (wait_ms := quota.wait_for_request()) == 0:
            quota.spend(requests=1)
            served.append(now_ms)
        else:
            assert wait_ms <= 1_000

    assert served == list(range(0, 10_000, 1_000))


def test_who_has_taken_nothing_is_not_held_to_one_request_a_second() -> None:
    quota = limited(**{"User:ana": Quota(requests_per_s=10)}).of("ana")
    assert quota is not None

    for _ in range(10):
        assert quota.wait_for_request() == 0
        quota.spend(requests=1)
    quota.spend(requests=1)

    assert quota.wait_for_request() > 0


def test_ids_that_one_user_makes_up_leave_room_for_clients_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "USER_BUCKETS_MAX", 10)
    each = Quota(requests_per_s=10)
    quotas = limited(**{"User:ana/Client:*": each, "User:bob/Client:*": each})
    for number in range(100):
        spend(quotas, "ana", f"c{number}", requests=11)
    spend(quotas, "bob", "one", requests=100)

    assert len(quotas._buckets) <= 12
    assert spend(quotas, "ana", "another") > 0, "they share one, and it is used up"
    assert spend(quotas, "bob", "two", requests=1) == 0, "each of his has its own"


def test_clients_of_a_user_get_their_own_while_all_others_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "BUCKETS_MAX", 10)
    each = Quota(requests_per_s=10)
    quotas = limited(**{"User:ana/Client:*": each, "User:bob/Client:*": each})
    for number in range(100):
        spend(quotas, "ana", f"c{number}", requests=100)

    assert spend(quotas, "bob", "one", requests=1) == 0, "not what ana's share"


def test_buckets_that_are_full_again_are_dropped_a_few_at_a_time() -> None:
    now_ms = 0
    quotas = Quotas(lambda: now_ms)
    quotas.apply(a_security().changed(quotas={"User:ana/Client:*": Quota(requests_per_s=1)}))
    for number in range(500):
        spend(quotas, "ana", f"c{number}", requests=1)
    held = quotas.of("ana", "c0")
    assert held is not None
    now_ms = 10_000
    for number in range(100):
        spend(quotas, "ana", f"d{number}", requests=1)

    assert len(quotas._buckets) == 100
    assert quotas._clients["ana"] == 100
    held.spend(requests=5)
    assert spend(quotas, "ana", "c0") > 0, "who still has it counts with all others of the name"
    looked = len(list(quotas._buckets))
    spend(quotas, "ana", "e", requests=1)
    assert looked - len(quotas._buckets) <= module.SWEEP_BUCKETS


def test_a_large_request_over_http_is_paid_for_before_the_next_is_served_in_any_case() -> None:
    """Whatever streams do: a request of 10 s' worth each second would be ten times the quota."""
    now_ms, taken = 0, 0
    quotas = Quotas(lambda: now_ms)
    quotas.apply(a_security().changed(quotas={"User:ana": Quota(bytes_in_per_s=1000)}))
    quota = quotas.of("ana")
    assert quota is not None
    for now_ms in range(0, 600_000, 100):  # noqa: B007 - the clock reads it
        if quota.wait_for_request() == 0:
            quota.pay(bytes_in=10_000, requests=1)
            taken += 10_000

    assert taken <= 600 * 1000 + 1000 + 10_000
