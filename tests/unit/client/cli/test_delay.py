"""`paceline send --delay`, `recall` and `delay`, against a fake cluster."""

from typing import Any

import pytest
from tests.unit.client.cli.conftest import Runner

from paceline.records.decode import BatchView
from paceline.wire.message_ids import OffsetMessageId, make_handle


def dues(paceline: Runner) -> list[list[int]]:
    def read() -> list[list[int]]:
        logs = paceline.cluster.logs["g1"].queues.values()
        return [BatchView(stored.data).due() for queue in logs for stored in queue]

    return list(paceline.on_cluster(lambda _: read()))


@pytest.mark.parametrize(
    ("option", "value", "due"),
    [
        ("--delay", "500ms", -500),
        ("--delay", "10s", -10_000),
        ("--delay", "2h", -7_200_000),
        ("--level", "3", -(2**62) - 3),
        ("--at", "1700000000000", 1_700_000_000_000),
        ("--at", "2023-11-14T22:13:20Z", 1_700_000_000_000),
    ],
)
def test_when_is_what_the_batch_says(paceline: Runner, option: str, value: str, due: int) -> None:
    said = paceline("send", "orders", "hello", option, value)

    assert said.exit_code == 0
    assert "delivered later; to take it back: recall.g1:" in said.stdout
    assert dues(paceline) == [[due]]


@pytest.mark.parametrize(
    "options",
    [
        ("--delay", "soon"),
        ("--delay", "10"),
        ("--delay", "-1s"),
        ("--at", "tomorrow"),
        ("--level", "x"),
        ("--level", "-2"),
        ("--delay", "1s", "--level", "1"),
        ("--delay", "400d"),
    ],
)
def test_wrong_times_are_refused(paceline: Runner, options: tuple[str, ...]) -> None:
    assert paceline("send", "orders", "hello", *options).exit_code == 2


def answer(paceline: Runner, answers: dict[str, dict[str, Any]]) -> None:
    paceline.on_cluster(lambda cluster: cluster.group_calls.canned.update(answers))


def test_what_waits_is_listed_and_counted_and_taken_back(paceline: Runner) -> None:
    place = OffsetMessageId("g1", 400, 0)
    handle = make_handle("recall", place)
    row = {
        "topic": "orders",
        "queue": 1,
        "due_unix_ms": 1_700_000_000_123,
        "message_id": str(place),
        "recall_handle": handle,
    }
    answer(
        paceline,
        {
            "delays": {
                "pending": 1,
                "topics": [{"topic_id": 1, "topic": "orders", "pending": 1}],
                "next_due_unix_ms": row["due_unix_ms"],
                "messages": [row],
            },
            "recall": {"topic": "orders", "message_id": str(place)},
        },
    )

    assert "2023-11-14 22:13:20.123" in paceline("delay", "list").stdout
    assert paceline.json("delay", "list", "orders") == [{"group": "g1", **row}]
    assert "group g1: 1 wait, the next one is due at" in paceline("delay", "stats").stdout
    [stats] = paceline.json("delay", "stats")
    assert (stats["pending"], stats["next_due_unix_ms"]) == (1, row["due_unix_ms"])
    assert "will not be delivered" in paceline("recall", "orders", handle).stdout
    assert paceline("recall", "orders", "nonsense").exit_code == 2
