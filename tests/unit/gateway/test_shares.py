"""Each user has a share of what all users of a gateway share."""

import pytest

from paceline.errors import OverloadedError
from paceline_gateway.shares import ALWAYS_COUNT, Shares, owner_of

ANA, BEN = owner_of("ana", "10.0.0.1"), owner_of("ben", "10.0.0.1")


def taken(shares: Shares, owner: tuple[str, str]) -> int:
    """How many it gets."""
    count = 0
    while shares.has_room(owner):
        shares.take(owner)
        count += 1
    return count


def test_one_gets_half_and_whoever_comes_next_half_of_the_rest() -> None:
    shares = Shares(64, "clients")

    assert [taken(shares, owner_of(name, "")) for name in ("a", "b", "c")] == [32, 16, 8]
    with pytest.raises(OverloadedError, match="56 clients, 32 of them for you"):
        shares.take(owner_of("a", ""))


def test_everybody_gets_some_while_there_is_room_at_all() -> None:
    shares = Shares(2 * ALWAYS_COUNT, "clients")

    assert taken(shares, ANA) == ALWAYS_COUNT
    assert taken(shares, BEN) == ALWAYS_COUNT
    assert taken(shares, owner_of("cid", "")) == 0


def test_what_is_given_back_counts_once() -> None:
    shares = Shares(8, "clients")
    give = [shares.take(ANA) for _ in range(4)]
    shares.take(BEN)

    for _ in range(2):
        give[0]()

    assert shares.count == 4
    for each in give:
        each()
    assert shares.count == 1
    assert shares._held == {BEN: 1}


def test_a_user_is_one_at_all_addresses_and_whom_nobody_knows_is_his_address() -> None:
    assert owner_of("ana", "10.0.0.1") == owner_of("ana", "10.0.0.2")
    assert owner_of("anonymous", "10.0.0.1") != owner_of("anonymous", "10.0.0.2")
    assert owner_of("anonymous", "10.0.0.1") != owner_of("10.0.0.1", "")
