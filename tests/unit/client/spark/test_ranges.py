"""Ranges become tasks and micro-batches without losing or doubling an offset."""

from hypothesis import given
from hypothesis import strategies as st
from tests.support.spark.offsets import queue

from paceline.spark.ranges import Bounds, Cut, QueueRange, cut_to_bytes, limited, tasks_of


def a_range(number: int, start: int, end: int, group: str = "g1") -> QueueRange:
    return QueueRange(queue("t", number, group), 1, start, end)


def offsets_of(ranges: list[QueueRange]) -> list[tuple[str, int, int]]:
    return [
        (str(one.queue.group), int(one.queue.queue_id), offset)
        for one in ranges
        for offset in range(one.start, one.end)
    ]


@given(
    sizes=st.lists(st.lists(st.integers(1, 400), min_size=1, max_size=12), min_size=1, max_size=6),
    bytes_max=st.integers(1, 1500),
    tasks_min=st.integers(1, 9),
    skip=st.integers(0, 9),
)
def test_every_offset_is_in_one_task(
    sizes: list[list[int]], bytes_max: int, tasks_min: int, skip: int
) -> None:
    """Batches of ten records; a range may begin and end inside of one."""
    ranges = []
    cuts = {}
    for number, batches in enumerate(sizes):
        one = a_range(number, skip, 10 * len(batches) - skip % 3, group=f"g{number % 2}")
        ranges.append(one)
        cuts[one.queue] = [Cut(max(skip, 10 * index), size) for index, size in enumerate(batches)]

    tasks = tasks_of(cuts, ranges, bytes_max=bytes_max, tasks_min=tasks_min)

    found = [offset for task in tasks for offset in offsets_of(list(task.ranges))]
    assert sorted(found) == sorted(offsets_of(ranges))
    assert all(len({one.queue.group for one in task.ranges}) == 1 for task in tasks)
    assert [task.number for task in tasks] == list(range(len(tasks)))


def test_tasks_stay_near_the_size_asked_for() -> None:
    one = a_range(0, 0, 1000)
    cuts = {one.queue: [Cut(10 * number, 100) for number in range(100)]}

    tasks = tasks_of(cuts, [one], bytes_max=1000, tasks_min=1)

    assert len(tasks) == 10
    assert all(task.size_bytes == 1000 for task in tasks)


def test_least_number_of_tasks_splits_further() -> None:
    one = a_range(0, 0, 1000)
    cuts = {one.queue: [Cut(10 * number, 100) for number in range(100)]}

    assert len(tasks_of(cuts, [one], bytes_max=10**9, tasks_min=4)) == 4


def test_small_queues_share_a_task() -> None:
    ranges = [a_range(number, 0, 10) for number in range(8)]
    cuts = {one.queue: [Cut(0, 100)] for one in ranges}

    assert len(tasks_of(cuts, ranges, bytes_max=10_000, tasks_min=1)) == 1


@given(
    backlog=st.lists(st.integers(0, 5000), min_size=1, max_size=9),
    records_max=st.integers(1, 6000),
)
def test_limit_is_shared_and_starves_no_queue(backlog: list[int], records_max: int) -> None:
    start = {queue("t", number): 7 for number in range(len(backlog))}
    end = {queue("t", number): 7 + count for number, count in enumerate(backlog)}

    found = limited(start, end, records_max=records_max)

    assert all(start[one] <= found[one] <= end[one] for one in end)
    assert all(found[one] > start[one] for one in end if end[one] > start[one])
    count = sum(found[one] - start[one] for one in end)
    assert count <= max(records_max + len(backlog), 0)
    assert count > 0 or sum(backlog) == 0


def test_limit_by_bytes_ends_at_cuts_and_gives_each_queue_something() -> None:
    ranges = [a_range(0, 0, 100), a_range(1, 0, 10)]
    cuts = {
        ranges[0].queue: [Cut(10 * number, 100) for number in range(10)],
        ranges[1].queue: [Cut(0, 100)],
    }

    found = cut_to_bytes(ranges, cuts, bytes_max=550)

    assert found[ranges[0].queue] == 50
    assert found[ranges[1].queue] == 10


def test_bounds_narrow_and_leave_out() -> None:
    bounds = Bounds(offset_low=5, offset_high=8, queue_ids=frozenset({1}))

    assert bounds.narrowed([a_range(0, 0, 10), a_range(1, 0, 10)]) == [a_range(1, 5, 8)]
    assert Bounds(offset_low=50).narrowed([a_range(0, 0, 10)]) == []
    assert Bounds(topics=frozenset({"s"})).narrowed([a_range(0, 0, 10)]) == []
    assert Bounds(groups=frozenset({"g2"})).narrowed([a_range(0, 0, 10)]) == []
