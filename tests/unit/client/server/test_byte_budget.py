"""The budget of bytes: who may hold how much, and that everything comes back."""

import pytest

from paceline.server.byte_budget import (
    FLOOR_BYTES,
    LIMIT_BYTES,
    MIB,
    ByteBudget,
    ByteHolder,
    source_of,
)

PIECE = 64 * 1024


def filled(budget: ByteBudget, address: str, *, connections: int) -> list[ByteHolder]:
    """So many connections of an address that take, in turn, all that they are given."""
    holders = [budget.holder(address) for _ in range(connections)]
    growing = list(holders)
    while growing:
        growing = [holder for holder in growing if holder.take(PIECE)]
    return holders


def test_one_connection_gets_two_batches_of_the_largest_size() -> None:
    budget = ByteBudget()
    holder = budget.holder("10.0.0.1")

    assert holder.take(16 * MIB)
    assert holder.take(16 * MIB)
    assert not holder.take(16 * MIB)
    assert (budget.used_bytes, budget.refused) == (32 * MIB, 1)


def test_connections_of_one_address_never_get_more_than_half() -> None:
    budget = ByteBudget()

    filled(budget, "10.0.0.1", connections=200)

    assert LIMIT_BYTES // 3 < budget.used_bytes <= LIMIT_BYTES // 2


def test_whoever_comes_next_finds_a_share() -> None:
    budget = ByteBudget()
    for number in range(4):
        filled(budget, f"10.0.0.{number}", connections=50)

    newcomer = budget.holder("10.0.1.1")

    assert newcomer.take(MIB)


def test_small_requests_get_through_beside_connections_that_take_what_they_can() -> None:
    budget = ByteBudget()
    for number in range(20):
        filled(budget, f"10.0.0.{number}", connections=100)

    small = [budget.holder("10.0.0.1") for _ in range(1000)]

    assert all(holder.take(FLOOR_BYTES) for holder in small)


def test_the_limit_is_never_passed() -> None:
    budget = ByteBudget()
    floors = [budget.holder(f"10.1.{n % 250}.1") for n in range(20_000)]
    taken = sum(holder.take(FLOOR_BYTES) for holder in floors)

    assert taken * FLOOR_BYTES == budget.used_bytes <= LIMIT_BYTES
    assert not budget.holder(None).take(PIECE)


def test_a_peer_gets_the_reserve_that_strangers_do_not() -> None:
    budget = ByteBudget()
    for number in range(200):
        filled(budget, f"10.0.{number}.1", connections=4)

    assert budget.holder(None).take(16 * MIB)


def test_what_is_given_back_can_be_taken_by_others() -> None:
    budget = ByteBudget()
    holders = filled(budget, "10.0.0.1", connections=10)
    other = budget.holder("10.0.0.1")
    assert not other.take(16 * MIB)

    for holder in holders:
        holder.close()

    assert other.take(16 * MIB)
    assert budget.used_bytes == 16 * MIB


def test_an_address_is_forgotten_with_its_last_connection() -> None:
    budget = ByteBudget()
    first, second = budget.holder("10.0.0.1"), budget.holder("10.0.0.1")
    second.take(PIECE)

    first.close()
    assert budget.addresses_count == 1
    second.close()

    assert (budget.addresses_count, budget.used_bytes, budget.peak_bytes) == (0, 0, PIECE)


def test_more_is_never_given_back_than_was_taken() -> None:
    holder = ByteBudget().holder("10.0.0.1")
    holder.take(PIECE)

    with pytest.raises(AssertionError):
        holder.give(PIECE + 1)


@pytest.mark.parametrize(
    ("host", "source"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::", "2001:db8:1:2::/64"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_an_address_counts_with_all_that_its_owner_has(host: str, source: str) -> None:
    assert source_of(host) == source
