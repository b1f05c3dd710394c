"""R33: how long a member may rely on a queue lock, by its own clock from when it asked."""

import pytest

from paceline.consumer.locks.leases import Leases, asked_lease_ms, relied_lease_ms
from paceline.message import LockToken
from paceline.queues import QueueKey
from paceline.types import GroupName, QueueId, TopicId

KEY = QueueKey(TopicId(1), GroupName("g1"), QueueId(0))
OTHER = QueueKey(TopicId(1), GroupName("g2"), QueueId(0))
FIRST, SECOND = LockToken(1, 10), LockToken(1, 20)
LEASE_MS, RENEW_MS = 30_000, 20_000


def held(asked_ms: int = 1_000) -> Leases:
    leases = Leases(lease_ms=LEASE_MS, renew_ms=RENEW_MS)
    leases.granted(KEY, FIRST, asked_ms=asked_ms, lease_ms=LEASE_MS)
    return leases


def test_a_lease_ends_by_our_clock_counted_from_the_question() -> None:
    leases = held()

    assert leases.is_valid(KEY, FIRST, now_ms=30_999)
    assert not leases.is_valid(KEY, FIRST, now_ms=31_000)
    assert asked_lease_ms(LEASE_MS) > LEASE_MS  # the master's, on another clock, ends later


def test_only_the_present_grant_is_valid() -> None:
    leases = held()
    leases.granted(KEY, SECOND, asked_ms=2_000, lease_ms=LEASE_MS)

    assert not leases.is_valid(KEY, FIRST, now_ms=2_000)
    assert not leases.is_valid(KEY, None, now_ms=2_000)
    assert not leases.is_valid(OTHER, SECOND, now_ms=2_000)
    assert leases.is_valid(KEY, SECOND, now_ms=2_000)
    assert leases.token_of(KEY) == SECOND


def test_a_renewal_that_was_answered_late_counts_from_its_question() -> None:
    leases = held()

    leases.renewed(KEY, FIRST, asked_ms=21_000, lease_ms=LEASE_MS)
    leases.renewed(KEY, FIRST, asked_ms=20_000, lease_ms=LEASE_MS)  # older: takes nothing back

    assert leases.is_valid(KEY, FIRST, now_ms=50_999)
    assert not leases.is_valid(KEY, FIRST, now_ms=51_000)


def test_a_renewal_of_what_was_given_up_brings_nothing_back() -> None:
    leases = held()
    assert leases.forget(KEY, FIRST)

    leases.renewed(KEY, FIRST, asked_ms=5_000, lease_ms=LEASE_MS)

    assert not leases.is_valid(KEY, FIRST, now_ms=5_000)
    assert not leases.forget(KEY, FIRST)


def test_what_was_given_up_late_is_not_the_grant_that_came_after() -> None:
    leases = held()
    leases.granted(KEY, SECOND, asked_ms=2_000, lease_ms=LEASE_MS)

    assert not leases.forget(KEY, FIRST)
    assert leases.is_valid(KEY, SECOND, now_ms=2_000)


def test_a_token_never_falls() -> None:
    """INV-11."""
    leases = held()
    with pytest.raises(AssertionError):
        leases.granted(KEY, LockToken(0, 99), asked_ms=2_000, lease_ms=LEASE_MS)


def test_the_first_lease_that_is_due_decides_for_its_broker_group() -> None:
    leases = held()
    leases.granted(KEY._replace(queue_id=QueueId(1)), SECOND, asked_ms=6_000, lease_ms=LEASE_MS)
    leases.granted(OTHER, FIRST, asked_ms=0, lease_ms=LEASE_MS)

    assert leases.due_in_ms(GroupName("g1"), now_ms=11_000) == 10_000
    assert leases.due_in_ms(GroupName("g2"), now_ms=90_000) == 0
    assert leases.due_in_ms(GroupName("g3"), now_ms=0) is None
    assert [key.queue_id for key, _ in leases.of_group(GroupName("g1"))] == [0, 1]
    assert list(leases.groups()) == ["g1", "g2"]


def test_a_shorter_lease_than_was_asked_for_ends_and_is_renewed_earlier() -> None:
    leases = held(asked_ms=0)
    leases.renewed(KEY, FIRST, asked_ms=10_000, lease_ms=3_000)

    assert leases.is_valid(KEY, FIRST, now_ms=12_999)
    assert not leases.is_valid(KEY, FIRST, now_ms=13_000)
    assert leases.due_in_ms(GroupName("g1"), now_ms=10_000) == 2_000


@pytest.mark.parametrize("lease_ms", [1_000, 29_702, 30_000, 59_000])
def test_what_we_rely_on_is_less_than_was_granted_and_all_that_was_wanted(lease_ms: int) -> None:
    granted_ms = asked_lease_ms(lease_ms)

    assert lease_ms <= relied_lease_ms(granted_ms) < granted_ms
    assert relied_lease_ms(lease_ms) < lease_ms
