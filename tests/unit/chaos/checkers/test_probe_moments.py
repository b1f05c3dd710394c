"""A probe over a network was true at some moment between the asking and the answer."""

import pytest
from tests.support.chaos.hand import SIZE, Hand

from paceline_chaos.checkers import judge


def broken(hand: Hand) -> set[str]:
    return {violation.property for violation in judge(hand.history).violations}


@pytest.mark.parametrize(("asked_us", "expected"), [(150, set()), (250, {"S11"})])
def test_member_is_behind_only_what_was_confirmed_before_it_was_asked(
    asked_us: int, expected: set[str]
) -> None:
    hand = Hand()
    hand.elect(1, 1, [1, 2], at=10)
    hand.master(1, 2 * SIZE, 100, answered_us=200)

    hand.probe(2, SIZE, asked_us, answered_us=asked_us + 10)

    assert broken(hand) == expected


@pytest.mark.parametrize(("asked_us", "expected"), [(150, set()), (250, {"S11"})])
def test_confirm_of_the_next_master_is_compared_only_if_it_was_asked_later(
    asked_us: int, expected: set[str]
) -> None:
    hand = Hand()
    hand.master(1, 2 * SIZE, 100, epoch=1, answered_us=200)

    hand.master(2, SIZE, asked_us, epoch=2, answered_us=asked_us + 10)

    assert broken(hand) == expected
