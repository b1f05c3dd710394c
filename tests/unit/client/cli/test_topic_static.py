"""`paceline topic` for static topics: made, moved, shown."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from tests.support.client.fake_cluster import FakeCluster
from tests.unit.client.cli.conftest import Runner, beside


@pytest.fixture
def paceline() -> Iterator[Runner]:
    """Against a cluster of two broker groups."""

    @asynccontextmanager
    async def serve() -> AsyncIterator[Runner]:
        async with FakeCluster(groups=2) as cluster:
            yield Runner(cluster, asyncio.get_running_loop())

    with beside(serve()) as runner:
        yield runner


def test_a_static_topic_is_made_moved_and_described(paceline: Runner) -> None:
    made = paceline("topic", "create", "flights", "--logical-queues", "3")
    assert made.stdout == (
        "topic flights created: 3 logical queues, 2 queues in group g1, 1 queue in group g2\n"
    )
    assert paceline("send", "flights", "one", "--key", "a").exit_code == 0  # crc32c % 3 = 0

    moved = paceline("topic", "remap", "flights", "0", "g2")
    described = paceline("topic", "describe", "flights")

    assert moved.stdout == "logical queue 0 of topic flights is now g2/1 from logical offset 1\n"
    rows = [line.split() for line in described.stdout.splitlines()]
    assert ["LOGICAL", "GENERATION", "QUEUE", "FROM", "TO", "STATE"] in rows
    assert rows[-4:] == [
        ["0", "0", "g1/0", "0", "1", "sealed"],
        ["0", "1", "g2/1", "1", "-", "open"],
        ["1", "0", "g2/0", "0", "-", "open"],
        ["2", "0", "g1/1", "0", "-", "open"],
    ]


def test_what_is_sent_and_pulled_says_its_place_in_the_logical_queue(paceline: Runner) -> None:
    paceline("topic", "create", "flights", "--logical-queues", "1", "--group", "g1")
    (first,) = paceline.json("send", "flights", "one")
    paceline("topic", "remap", "flights", "0", "g2")

    (second,) = paceline.json("send", "flights", "two")
    pulled = paceline.json("pull", "flights")

    for rows in ([first, second], pulled):
        assert [(row["group"], row["offset"]) for row in rows] == [("g1", 0), ("g2", 0)]
        assert [(row["logical_queue"], row["logical_offset"]) for row in rows] == [(0, 0), (0, 1)]


def test_json_has_the_segments(paceline: Runner) -> None:
    (made,) = paceline.json("topic", "create", "flights", "--static", "2", "--group", "g2")
    (moved,) = paceline.json("topic", "remap", "flights", "1", "g1")
    (described,) = paceline.json("topic", "describe", "flights")

    assert [one["segments"][0]["group"] for one in made["logical_queues"]] == ["g2", "g2"]
    assert (moved["topic"], moved["logical_queue"], moved["moving_to"]) == ("flights", 1, None)
    assert [one["group"] for one in moved["segments"]] == ["g2", "g1"]
    assert described["logical_queues"][1]["segments"] == moved["segments"]


def test_a_move_that_has_to_wait_says_for_whom(paceline: Runner) -> None:
    paceline("topic", "create", "flights", "--logical-queues", "2")
    paceline.cluster.holds_remaps = True

    waiting = paceline("topic", "remap", "flights", "0", "g2", "--wait-ms", "50")
    described = paceline("topic", "describe", "flights")

    assert waiting.exit_code == 0
    assert "is to move from g1 to g2: the master of g1 has not sealed it yet" in waiting.stdout
    assert "moving to g2" in described.stdout
    assert paceline("topic", "remap", "flights", "0", "g2", "--wait-ms", "0").exit_code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("create", "t", "--logical-queues", "2", "--queues", "2"),
        ("create", "t", "--group", "g1"),
        ("create", "t", "--logical-queues", "0"),
        ("remap", "t", "-1", "g1"),
        ("remap", "bad name", "0", "g1"),
    ],
)
def test_wrong_usage_is_refused(paceline: Runner, arguments: tuple[str, ...]) -> None:
    assert paceline("topic", *arguments).exit_code != 0
    assert paceline("topic", "list").stdout == ""
