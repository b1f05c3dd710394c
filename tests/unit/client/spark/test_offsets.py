"""Positions as users and Spark write them."""

import pytest
from tests.support.spark.offsets import queue

from paceline.errors import BadRequestError, PacelineError
from paceline.spark.offsets import (
    StartKind,
    offsets_from_json,
    offsets_to_json,
    parse_position,
)


def test_nested_form_and_back() -> None:
    offsets = {queue("t", 10): 7, queue("t", 2): 5, queue("s", 0, "g2"): 0}

    document = offsets_to_json(offsets)

    assert document == {"s": {"g2": {"0": 0}}, "t": {"g1": {"10": 7, "2": 5}}}
    assert offsets_from_json(document, name="start") == offsets


@pytest.mark.parametrize(
    ("text", "kind", "number"),
    [
        ("earliest", StartKind.EARLIEST, 0),
        (" latest ", StartKind.LATEST, 0),
        ("-1000", StartKind.RECORDS_BACK, 1000),
        ("-90s", StartKind.TIME_BACK, 90_000),
        ("-10m", StartKind.TIME_BACK, 600_000),
        ("-1h", StartKind.TIME_BACK, 3_600_000),
        ("-2d", StartKind.TIME_BACK, 172_800_000),
    ],
)
def test_words_and_relative_positions(text: str, kind: StartKind, number: int) -> None:
    position = parse_position(text, name="startingOffsets")

    assert (position.kind, position.number) == (kind, number)


def test_offsets_as_json_may_say_earliest_and_latest_by_number() -> None:
    position = parse_position('{"t": {"g1": {"0": -2, "1": -1, "2": 23}}}', name="startingOffsets")

    assert position.offsets == {queue("t", 0): -2, queue("t", 1): -1, queue("t", 2): 23}


@pytest.mark.parametrize(
    "text",
    [
        "first",
        "-1w",
        "1000",
        "",
        "{",
        "{}",
        "[]",
        '{"t": {}}',
        '{"t": []}',
        '{"t": {"g1": {"zero": 1}}}',
        '{"t": {"g1": {"70000": 1}}}',
        '{"t": {"g1": {"0": -3}}}',
        '{"t": {"g1": {"0": 1.0}}}',
        '{"t": {"g1": {"0": true}}}',
        '{"../t": {"g1": {"0": 1}}}',
    ],
)
def test_anything_else_is_refused_by_name(text: str) -> None:
    with pytest.raises(PacelineError) as refusal:
        parse_position(text, name="startingOffsets")

    assert refusal.value.details["field"] == "startingOffsets"


def test_checkpoint_with_a_negative_offset_is_refused() -> None:
    with pytest.raises(BadRequestError):
        offsets_from_json({"t": {"g1": {"0": -1}}}, name="start")
