"""Plans: queues, positions and tasks, asked of fake brokers."""

from typing import Any

import pytest
from tests.support.spark.offsets import queue
from tests.support.spark.plan import FakeBrokers, offsets

from paceline.errors import BadRequestError, OffsetOutOfRangeError, TopicNotFoundError
from paceline.platform.runtime import ManualClock
from paceline.spark.options import read_options
from paceline.spark.plan import Planner
from paceline.spark.ranges import Bounds


def a_planner(brokers: FakeBrokers | None = None, **options: str) -> Planner:
    given = {"endpoints": "h:1", **options}
    if not {"topics", "topicsPattern", "assign"} & set(options):
        given["topic"] = "orders"
    fake: Any = FakeBrokers() if brokers is None else brokers
    return Planner(read_options(given), fake, ManualClock(unix_ms=1_000_000))


def starts(planner: Planner) -> dict[int, tuple[int, int]]:
    return {int(one.queue.queue_id): (one.start, one.end) for one in planner.ranges()}


def test_everything_is_read_without_options_and_ends_come_from_masters() -> None:
    brokers = FakeBrokers()

    assert starts(a_planner(brokers)) == {0: (10, 100), 1: (0, 50)}
    assert brokers.calls == [("ends", True)]


def test_relative_starts() -> None:
    assert starts(a_planner(startingOffsets="-20")) == {0: (80, 100), 1: (30, 50)}
    assert starts(a_planner(startingOffsets="-70"))[1] == (0, 50)


def test_start_by_time_is_asked_of_the_brokers() -> None:
    brokers = FakeBrokers()
    brokers.times = {0: 40, 1: 50}

    assert starts(a_planner(brokers, startingOffsets="-10s"))[0] == (40, 100)
    assert set(brokers.moments) == {990_000}


def test_no_record_at_or_after_the_timestamp_is_the_end_or_an_error() -> None:
    brokers = FakeBrokers()
    brokers.times = {0: 40, 1: 50}

    assert starts(a_planner(brokers, startingTimestamp="5"))[1] == (50, 50)
    with pytest.raises(BadRequestError, match="nothing stored at or after"):
        a_planner(brokers, startingTimestamp="5", startingTimestampStrategy="error").ranges()


def test_ending_timestamp_is_exclusive() -> None:
    brokers = FakeBrokers()
    brokers.times = {0: 40, 1: 20}

    assert starts(a_planner(brokers, endingTimestamp="7")) == {0: (10, 40), 1: (0, 20)}


def test_given_offsets_with_earliest_and_latest_among_them() -> None:
    planner = a_planner(startingOffsets=offsets(-2, 7), endingOffsets=offsets(90, -1))

    assert starts(planner) == {0: (10, 90), 1: (7, 50)}


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"startingOffsets": offsets(9, 0)}, OffsetOutOfRangeError),
        ({"startingOffsets": offsets(101, 0)}, OffsetOutOfRangeError),
        ({"endingOffsets": offsets(100, 51)}, OffsetOutOfRangeError),
        ({"startingOffsets": offsets(90, 0), "endingOffsets": offsets(80, 0)}, BadRequestError),
        ({"startingOffsets": '{"orders": {"g1": {"7": 0}}}'}, BadRequestError),
        ({"startingOffsets": '{"other": {"g1": {"0": 0}}}'}, BadRequestError),
        ({"assign": '{"orders": [5]}'}, BadRequestError),
        ({"topics": "nothing"}, TopicNotFoundError),
        ({"topicsPattern": "n.*"}, TopicNotFoundError),
    ],
)
def test_positions_and_names_that_are_not_there_are_errors(
    options: dict[str, str], error: type[Exception]
) -> None:
    with pytest.raises(error):
        a_planner(None, **options).ranges()


def test_accepted_loss_goes_on_with_what_is_there() -> None:
    planner = a_planner(startingOffsets=offsets(3, 60), failOnDataLoss="false")

    assert starts(planner) == {0: (10, 100), 1: (50, 50)}


def test_pattern_and_assignment_choose_queues() -> None:
    brokers = FakeBrokers({"orders": 2, "other": 1})

    assert set(a_planner(brokers, topicsPattern="o.*").queues()) == {
        queue("orders", 0),
        queue("orders", 1),
        queue("other", 0),
    }
    assert set(a_planner(brokers, assign='{"orders": [1]}').queues()) == {queue("orders", 1)}


def test_cuts_are_asked_of_replicas_until_all_are_there() -> None:
    brokers = FakeBrokers()
    planner = a_planner(brokers)

    found = planner.cuts(planner.ranges())

    assert [cut.offset for cut in found[queue("orders", 1)]] == [0, 10, 20, 30, 40]
    assert sum(cut.size_bytes for cut in found[queue("orders", 0)]) == 9000
    assert ("cuts", False) in brokers.calls


def test_reads_of_the_master_only_ask_it_alone() -> None:
    brokers = FakeBrokers()
    planner = a_planner(brokers, readFrom="master")

    planner.tasks(planner.ranges())

    assert all(is_of_master for _, is_of_master in brokers.calls)


def test_bounds_on_time_become_offsets() -> None:
    brokers = FakeBrokers()
    brokers.times = {0: 40, 1: 50}
    planner = a_planner(brokers)

    found = planner.narrowed(planner.ranges(), Bounds(stored_low_ms=5))

    assert [(int(one.queue.queue_id), one.start, one.end) for one in found] == [(0, 40, 100)]
