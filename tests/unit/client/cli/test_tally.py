"""The tally behind `demo` must be able to fail: each kind of damage moves its own counter."""

from paceline.cli.local.tally import Tally


def a_tally(rows: int) -> Tally:
    tally = Tally()
    for row in range(rows):
        tally.row_sent()
        tally.row_acknowledged(row, at_ms=row * 10)
    return tally


def test_everything_received_once_and_in_order_is_clean() -> None:
    tally = a_tally(3)
    for row in range(3):
        tally.row_received(row, "k", place=("g1", 0, row))

    verdict = tally.verdict()

    assert verdict.is_clean
    assert (verdict.sent, verdict.acknowledged, verdict.received) == (3, 3, 3)
    assert verdict.longest_gap_ms == 10


def test_an_acknowledged_row_that_nobody_received_is_lost() -> None:
    tally = a_tally(2)
    tally.row_received(1, "k", place=("g1", 0, 0))

    assert tally.verdict().lost == 1
    assert not tally.verdict().is_clean


def test_a_second_delivery_is_a_duplicate() -> None:
    tally = a_tally(1)
    tally.row_received(0, "k", place=("g1", 0, 0))
    tally.row_received(0, "k", place=("g1", 0, 1))

    assert tally.verdict().duplicated == 1
    assert not tally.verdict().is_clean


def test_an_earlier_row_after_a_later_one_of_its_key_is_out_of_order() -> None:
    tally = a_tally(3)
    tally.row_received(1, "k", place=("g1", 0, 0))
    tally.row_received(0, "other", place=("g1", 0, 1))
    assert tally.verdict().out_of_order == 0

    tally.row_received(0 + 2, "k", place=("g1", 0, 2))
    assert tally.verdict().out_of_order == 0

    late = a_tally(2)
    late.row_received(1, "k", place=("g1", 0, 0))
    late.row_received(0, "k", place=("g1", 0, 1))
    assert late.verdict().out_of_order == 1


def test_one_place_with_two_rows_is_a_conflict() -> None:
    tally = a_tally(2)
    tally.row_received(0, "k", place=("g1", 0, 5))
    tally.row_received(1, "k", place=("g1", 0, 5))

    assert tally.verdict().conflicting == 1
