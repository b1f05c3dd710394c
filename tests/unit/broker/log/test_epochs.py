import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import CorruptLogError
from paceline.types import MasterEpoch, PhysicalOffset
from paceline_broker.log.epochs import EpochTable


def test_an_epoch_covers_the_bytes_from_its_start_to_the_next_start() -> None:
    table = EpochTable.of([(1, 0), (4, 100)])

    assert [table.epoch_at(PhysicalOffset(at)) for at in (0, 99, 100, 500)] == [1, 1, 4, 4]
    assert table.end_of(MasterEpoch(1), log_end=PhysicalOffset(300)) == 100
    assert table.end_of(MasterEpoch(4), log_end=PhysicalOffset(300)) == 300
    assert table.end_of(MasterEpoch(2), log_end=PhysicalOffset(300)) is None
    assert table.start_of(MasterEpoch(4)) == 100
    assert table.start_of(MasterEpoch(3)) is None
    assert table.last_epoch == 4


def test_an_empty_table_has_epoch_0() -> None:
    assert EpochTable().last_epoch == 0
    assert EpochTable().epoch_at(PhysicalOffset(7)) == 0


@pytest.mark.parametrize("pair", [(2, 200), (1, 200), (3, 100), (3, 50)])
def test_an_entry_must_rise_in_epoch_and_position(pair: tuple[int, int]) -> None:
    table = EpochTable.of([(2, 100)])

    with pytest.raises(CorruptLogError, match="after epoch 2 at 100"):
        table.with_entry(MasterEpoch(pair[0]), PhysicalOffset(pair[1]))


def test_cutting_drops_the_epochs_that_begin_at_or_after_the_end() -> None:
    table = EpochTable.of([(1, 0), (2, 100), (3, 200)])

    assert table.cut_to(PhysicalOffset(200)).to_json() == [[1, 0], [2, 100]]
    assert table.cut_to(PhysicalOffset(201)).to_json() == [[1, 0], [2, 100], [3, 200]]
    assert table.cut_to(PhysicalOffset(0)) == EpochTable()


def test_logs_part_at_the_nearer_end_of_the_last_common_epoch() -> None:
    master = EpochTable.of([(1, 0), (3, 100)])
    deposed = EpochTable.of([(1, 0), (2, 80)])

    assert master.truncation_point(PhysicalOffset(200), deposed, PhysicalOffset(150)) == 80


def test_a_replica_that_is_only_behind_keeps_everything() -> None:
    master = EpochTable.of([(1, 0), (3, 100)])
    behind = EpochTable.of([(1, 0)])

    assert master.truncation_point(PhysicalOffset(200), behind, PhysicalOffset(60)) == 60


def test_a_replica_with_a_longer_tail_of_the_common_epoch_is_cut() -> None:
    master = EpochTable.of([(1, 0), (3, 100)])
    longer = EpochTable.of([(1, 0)])

    assert master.truncation_point(PhysicalOffset(200), longer, PhysicalOffset(160)) == 100


def test_an_empty_log_agrees_up_to_0_and_strangers_on_nothing() -> None:
    master = EpochTable.of([(5, 0)])

    assert master.truncation_point(PhysicalOffset(9), EpochTable(), PhysicalOffset(0)) == 0
    stranger = EpochTable.of([(4, 0)])
    assert master.truncation_point(PhysicalOffset(9), stranger, PhysicalOffset(9)) is None


@st.composite
def _histories(draw: st.DrawFn) -> list[list[int]]:
    """Two logs that share a prefix: each a list whose index is the position, value the epoch."""
    common = sorted(draw(st.lists(st.integers(1, 5), max_size=12)))
    first = common + sorted(draw(st.lists(st.sampled_from([6, 8, 10]), max_size=8)))
    second = common + sorted(draw(st.lists(st.sampled_from([7, 9, 11]), max_size=8)))
    return [first, second]


def _table_of(history: list[int]) -> EpochTable:
    starts = [at for at, epoch in enumerate(history) if at == 0 or history[at - 1] != epoch]
    return EpochTable.of([(history[at], at) for at in starts])


@given(_histories())
def test_the_truncation_point_is_where_two_logs_part_and_symmetric(
    histories: list[list[int]],
) -> None:
    first, second = histories
    parts = next(
        (at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b),
        min(len(first), len(second)),
    )
    ends = PhysicalOffset(len(first)), PhysicalOffset(len(second))

    here = _table_of(first).truncation_point(ends[0], _table_of(second), ends[1])
    there = _table_of(second).truncation_point(ends[1], _table_of(first), ends[0])

    assert here == there
    has_common = parts > 0 or not first or not second
    assert here == (parts if has_common else None)


@given(_histories())
def test_a_table_survives_json(histories: list[list[int]]) -> None:
    table = _table_of(histories[0])

    assert EpochTable.from_json(table.to_json()) == table


@pytest.mark.parametrize(
    "document",
    [None, {}, "x", [1], [[1]], [[1, 2, 3]], [["1", 0]], [[1, -1]], [[True, 0]], [[2, 0], [1, 5]]],
)
def test_what_is_no_table_is_refused(document: object) -> None:
    with pytest.raises(CorruptLogError):
        EpochTable.from_json(document)
