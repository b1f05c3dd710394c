"""Pure: what Spark pushes down, as bounds of the read.

Only filters that the plan satisfies exactly are taken: Spark does not check those again. A filter
is known by its class's name, so that this needs no Spark. Times of storage are kept in whole
milliseconds, filters come in microseconds: bounds are rounded so that nothing is lost, and such a
filter is left to Spark as well.
"""

from collections.abc import Iterable
from typing import Any

from paceline.spark.columns import BY_NAME
from paceline.spark.ranges import Bounds


def push(bounds: Bounds, filters: Iterable[Any]) -> list[Any]:
    """Narrow `bounds` by each filter that can; the ones that Spark must still check."""
    return [one for one in filters if not _take(bounds, one)]


def _take(bounds: Bounds, one: Any) -> bool:
    """Whether the bounds now say all that the filter says."""
    kind = type(one).__name__
    if kind == "Not" or len(getattr(one, "attribute", ())) != 1:
        return False
    (column,) = one.attribute
    if kind == "IsNotNull":
        known = BY_NAME.get(column)
        return known is not None and not known.is_nullable
    if kind in ("EqualTo", "EqualNullSafe", "In"):
        values = one.value if kind == "In" else (one.value,)
        return not any(value is None for value in values) and _equal(bounds, column, values)
    if column == "offset" and type(getattr(one, "value", None)) is int:
        return _offset(bounds, kind, one.value)
    if column == "stored_at" and hasattr(getattr(one, "value", None), "timestamp"):
        _stored(bounds, kind, one.value.timestamp())
    return False


def _equal(bounds: Bounds, column: str, values: Iterable[Any]) -> bool:
    found = frozenset(values)
    match column:
        case "queue_id":
            bounds.queue_ids = found if bounds.queue_ids is None else bounds.queue_ids & found
        case "topic":
            bounds.topics = found if bounds.topics is None else bounds.topics & found
        case "broker_group":
            bounds.groups = found if bounds.groups is None else bounds.groups & found
        case "tag" if "" not in found:
            bounds.tags = found if bounds.tags is None else bounds.tags & found
        case "key" if "" not in found:
            bounds.keys = found if bounds.keys is None else bounds.keys & found
        case "offset":
            low, high = min(found), max(found) + 1
            bounds.offset_low = max(bounds.offset_low, low)
            bounds.offset_high = (
                high if bounds.offset_high is None else min(bounds.offset_high, high)
            )
            return len(found) == 1
        case _:
            return False
    return True


def _offset(bounds: Bounds, kind: str, value: int) -> bool:
    match kind:
        case "GreaterThan":
            bounds.offset_low = max(bounds.offset_low, value + 1)
        case "GreaterThanOrEqual":
            bounds.offset_low = max(bounds.offset_low, value)
        case "LessThan" | "LessThanOrEqual":
            high = max(0, value if kind == "LessThan" else value + 1)
            bounds.offset_high = (
                high if bounds.offset_high is None else min(bounds.offset_high, high)
            )
        case _:
            return False
    return True


def _stored(bounds: Bounds, kind: str, unix_s: float) -> None:
    """A bound on the time of storage, never narrower than the filter."""
    microseconds = round(unix_s * 1_000_000)
    if kind in ("GreaterThan", "GreaterThanOrEqual"):
        low = max(0, microseconds // 1000)
        bounds.stored_low_ms = (
            low if bounds.stored_low_ms is None else max(bounds.stored_low_ms, low)
        )
    elif kind in ("LessThan", "LessThanOrEqual"):
        high = max(0, microseconds // 1000 + 1)
        bounds.stored_high_ms = (
            high if bounds.stored_high_ms is None else min(bounds.stored_high_ms, high)
        )
