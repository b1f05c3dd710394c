"""What of kombu's messages the broker sees."""

from typing import Any

import pytest

from paceline.kombu.envelopes import (
    DELAY_MS_MAX,
    due_of,
    key_of,
    priority_of,
    sent_later,
    tag_of,
)
from paceline.message import Message

NOON = 1_790_942_400_000
"""2026-10-02T12:00:00Z."""


@pytest.mark.parametrize(
    ("eta", "due"),
    [
        ("2026-10-02T12:00:00+00:00", NOON),
        ("2026-10-02T14:00:00.5+02:00", NOON + 500),
        ("2026-10-02T12:00:00", NOON),
        ("at noon", None),
        (None, None),
        (5, None),
    ],
)
def test_a_tasks_eta_is_when_it_is_due(eta: object, due: int | None) -> None:
    assert due_of({"headers": {"eta": eta}}) == due


def test_a_message_of_anything_else_is_due_at_once() -> None:
    assert due_of({}) is None
    assert key_of({"headers": None}) is None
    assert priority_of({}) == 0


@pytest.mark.parametrize(
    ("due", "delivery"),
    [
        (None, None),
        (NOON - 1, None),
        (NOON + 1, NOON + 1),
        (NOON + 2 * DELAY_MS_MAX, NOON + DELAY_MS_MAX),
    ],
)
def test_a_time_further_away_than_brokers_take_is_cut(
    due: int | None, delivery: int | None
) -> None:
    sent = sent_later(Message("t", b""), due, now_unix_ms=NOON)

    assert sent.delivery_unix_ms == delivery


@pytest.mark.parametrize(("given", "found"), [(5, 5), (12, 9), (-1, 0), (None, 0), ("x", 0)])
def test_a_priority_is_from_0_to_9(given: Any, found: int) -> None:
    assert priority_of({"properties": {"priority": given}}) == found


@pytest.mark.parametrize(("key", "tag"), [("a.b@c", "a.b@c"), ("a||b", None), ("", None)])
def test_a_routing_key_is_a_tag_where_it_can_be_one(key: str, tag: str | None) -> None:
    assert tag_of(key) == tag
