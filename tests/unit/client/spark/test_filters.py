"""Pushed filters: what is taken is exact, what is not comes back."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from paceline.spark.filters import push
from paceline.spark.ranges import Bounds


@dataclass(frozen=True)
class _Filter:
    """As Spark's: known by the name of the class."""

    attribute: tuple[str, ...]
    value: Any = None


def a_filter(kind: str, column: str, value: Any = None) -> Any:
    return type(kind, (_Filter,), {})((column,), value)


def test_exact_filters_are_taken() -> None:
    bounds = Bounds()

    left = push(
        bounds,
        [
            a_filter("EqualTo", "queue_id", 2),
            a_filter("In", "topic", ("a", "b")),
            a_filter("EqualTo", "topic", "a"),
            a_filter("EqualTo", "broker_group", "g1"),
            a_filter("GreaterThanOrEqual", "offset", 100),
            a_filter("GreaterThan", "offset", 100),
            a_filter("LessThan", "offset", 150),
            a_filter("LessThanOrEqual", "offset", 160),
            a_filter("EqualTo", "tag", "x"),
            a_filter("In", "key", ("k1", "k2")),
            a_filter("EqualTo", "key", "k2"),
            a_filter("IsNotNull", "offset"),
        ],
    )

    assert left == []
    assert bounds.queue_ids == frozenset({2})
    assert bounds.topics == frozenset({"a"})
    assert bounds.groups == frozenset({"g1"})
    assert (bounds.offset_low, bounds.offset_high) == (101, 150)
    assert bounds.tags == frozenset({"x"})
    assert bounds.keys == frozenset({"k2"})


@pytest.mark.parametrize(
    "one",
    [
        a_filter("IsNotNull", "tag"),
        a_filter("IsNull", "tag"),
        a_filter("EqualTo", "body", b"x"),
        a_filter("EqualTo", "tag", None),
        a_filter("EqualNullSafe", "tag", None),
        a_filter("EqualTo", "tag", ""),
        a_filter("IsNotNull", "key"),
        a_filter("In", "key", ("", "k")),
        a_filter("StringStartsWith", "topic", "a"),
        a_filter("GreaterThan", "queue_id", 1),
        a_filter("GreaterThan", "offset", 1.5),
        a_filter("Not", "offset", 1),
        a_filter("EqualTo", "properties", "x"),
    ],
)
def test_what_cannot_be_exact_stays_with_spark(one: Any) -> None:
    bounds = Bounds()

    assert push(bounds, [one]) == [one]
    assert bounds == Bounds()


def test_several_offsets_narrow_and_are_checked_by_spark() -> None:
    bounds = Bounds()
    one = a_filter("In", "offset", (5, 9))

    assert push(bounds, [one]) == [one]
    assert (bounds.offset_low, bounds.offset_high) == (5, 10)


def test_time_bounds_are_never_narrower_than_the_filter() -> None:
    bounds = Bounds()
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    milliseconds = int(moment.timestamp() * 1000)
    filters = [
        a_filter("GreaterThan", "stored_at", moment + timedelta(microseconds=1500)),
        a_filter("LessThanOrEqual", "stored_at", moment + timedelta(milliseconds=10)),
    ]

    assert push(bounds, filters) == filters
    assert bounds.stored_low_ms == milliseconds + 1
    assert bounds.stored_high_ms == milliseconds + 11


def test_contradictions_read_nothing() -> None:
    bounds = Bounds()

    push(bounds, [a_filter("EqualTo", "queue_id", 1), a_filter("EqualTo", "queue_id", 2)])

    assert bounds.queue_ids == frozenset()
