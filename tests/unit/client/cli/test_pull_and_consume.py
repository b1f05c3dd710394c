"""`paceline pull` and `paceline consume`."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.client.fake_cluster import FakeCluster
from tests.unit.client.cli.conftest import Runner

from paceline.cli.logs import line_of
from paceline.cli.output import shown
from paceline.types import ConsumerGroupName, TopicName
from paceline.wire.consumer_groups import ConsumerGroupSettings, ConsumerGroupView
from paceline.wire.topics import PERM_WRITE


def test_pull_prints_bodies_from_the_first_to_the_end(paceline: Runner) -> None:
    paceline("send", "orders", "--key", "k", stdin=b"one\ntwo\n")

    first = paceline("pull", "orders")
    again = paceline("pull", "orders")

    assert first.exit_code == 0
    assert first.stdout == "one\ntwo\n"
    assert again.stdout == first.stdout


def test_pull_of_an_empty_topic_prints_nothing(paceline: Runner) -> None:
    outcome = paceline("pull", "orders")

    assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (0, "", "")


def test_pull_as_json_has_every_field_and_base64_for_other_bytes(paceline: Runner) -> None:
    paceline("send", "orders", "--key", "k", stdin=b"\xff\n")

    (message,) = paceline.json("pull", "orders")

    assert message.pop("born_unix_ms") > 0
    assert message.pop("store_unix_ms") > 0
    assert message.pop("queue") in (0, 1)
    assert message == {
        "topic": "orders",
        "group": "g1",
        "offset": 0,
        "key": "k",
        "tag": None,
        "properties": {},
        "body_base64": "/w==",
    }


def test_pull_from_an_offset_of_one_queue_with_a_limit(paceline: Runner) -> None:
    lines = b"".join(b"%d\n" % number for number in range(10))
    paceline("send", "orders", "--key", "k", stdin=lines)
    queue = str(paceline.json("pull", "orders", "--max", "1")[0]["queue"])

    some = paceline("pull", "orders", "--queue", queue, "--offset", "3", "--max", "2")
    named = paceline("pull", "orders", "--queue", f"g1/{queue}", "--offset", "8")
    last = paceline("pull", "orders", "--offset", "last", "--wait-ms", "1")

    assert some.stdout == "3\n4\n"
    assert named.stdout == "8\n9\n"
    assert last.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--queue", "7"], 1, "topic orders has no queue 7; it has g1: 0 to 1"),
        (["--queue", "g9/0"], 1, "topic orders has no queue g9/0"),
        (["--offset", "1"], 2, "--offset 1 needs --queue: topic orders has 2 queues"),
        (["--offset", "1", "--queue", "0"], 2, "offset 1 is not in queue g1/0 of orders"),
    ],
)
def test_pull_refuses_what_is_not_there(
    paceline: Runner, arguments: list[str], code: int, sentence: str
) -> None:
    outcome = paceline("pull", "orders", *arguments)

    assert outcome.exit_code == code
    assert sentence in outcome.stderr


def test_a_group_goes_on_where_it_ended(paceline: Runner) -> None:
    paceline("send", "orders", "--key", "k", stdin=b"one\ntwo\nthree\n")

    first = paceline("consume", "orders", "--group", "g", "--max", "2")
    second = paceline("consume", "orders", "--group", "g", "--max", "1")
    other = paceline("consume", "orders", "--group", "other", "--max", "3")

    assert first.exit_code == 0, first.stderr
    assert first.stdout == "one\ntwo\n"
    assert second.stdout == "three\n"
    assert other.stdout == "one\ntwo\nthree\n"


def test_consume_ends_when_nothing_comes(paceline: Runner) -> None:
    paceline("send", "orders", "before")

    outcome = paceline(
        "consume", "orders", "--group", "g", "--from", "last", "--idle-exit-ms", "50"
    )

    assert (outcome.exit_code, outcome.stdout) == (0, "")


def test_messages_that_are_not_wanted_any_more_stay_where_they_are(paceline: Runner) -> None:
    """They were not tried: sent back, they would come late, and as failed once."""
    lines = b"".join(b"%d\n" % number for number in range(20))
    paceline("send", "orders", stdin=lines)

    first = paceline("consume", "orders", "--group", "g", "--max", "3")
    calls = paceline.on_cluster(lambda cluster: [call["call"] for call in cluster.calls])
    rest = paceline("consume", "orders", "--group", "g", "--max", "17")

    assert "send_back" not in calls
    assert sorted(map(int, (first.stdout + rest.stdout).split())) == list(range(20))


def test_broadcasting_prints_everything_once_for_each_client(
    paceline: Runner, tmp_path: Path
) -> None:
    paceline("send", "orders", stdin=b"1\n2\n")
    broadcast = ("--broadcasting", "--offsets-folder", str(tmp_path), "--client-id")

    one = paceline("consume", "orders", "--group", "g", "--max", "2", *broadcast, "one")
    two = paceline("consume", "orders", "--group", "g", "--max", "2", *broadcast, "two")
    again = paceline(
        "consume", "orders", "--group", "g", "--idle-exit-ms", "300", *broadcast, "one"
    )
    both = paceline("consume", "orders", "--group", "g", "--ordered", "--broadcasting")

    assert sorted(one.stdout.split()) == sorted(two.stdout.split()) == ["1", "2"]
    assert (again.exit_code, again.stdout) == (0, "")
    assert both.exit_code == 2


def test_consume_may_begin_at_a_time_or_at_the_end(paceline: Runner) -> None:
    paceline("send", "orders", "--queue", "g1/0", stdin=b"one\ntwo\nthree\n")

    def at_two(cluster: FakeCluster) -> None:
        cluster.group_calls.told_at_time = 1

    paceline.on_cluster(at_two)
    then = ["consume", "orders", "--idle-exit-ms", "300"]
    aged = paceline(*then, "--group", "a", "--from", "-90m")
    dated = paceline(*then, "--group", "b", "--from", "2026-01-31T12:00")
    asked = paceline.on_cluster(lambda cluster: cluster.group_calls.times_asked[-1])
    ordered = paceline(*then, "--group", "c", "--from", "2026-01-31T12:00", "--ordered")
    last = paceline(*then, "--group", "d", "--from", "last")

    assert aged.stdout == dated.stdout == ordered.stdout == "two\nthree\n"
    assert asked == 1_769_860_800_000
    assert last.stdout == ""


@pytest.mark.parametrize("start", ["yesterday", "17", "20260131", ""])
def test_consume_refuses_other_beginnings(paceline: Runner, start: str) -> None:
    outcome = paceline("consume", "orders", "--group", "audit", "--from", start)

    assert outcome.exit_code == 2
    assert "--from" in outcome.stderr


def test_consume_as_json(paceline: Runner) -> None:
    paceline("send", "orders", "one", "--tag", "t")

    (message,) = paceline.json("consume", "orders", "--group", "g", "--max", "1")

    assert (message["body"], message["tag"], message["offset"]) == ("one", "t", 0)


def test_consume_ordered_prints_each_queue_in_order_under_its_lock(paceline: Runner) -> None:
    paceline("send", "orders", "--key", "k", stdin=b"one\ntwo\nthree\n")

    first = paceline.json("consume", "orders", "--group", "o", "--ordered", "--max", "2")
    again = paceline("consume", "orders", "--group", "o", "--ordered", "--max", "1")

    assert [message["body"] for message in first] == ["one", "two"]
    epoch, position = first[0]["lock_token"]
    assert epoch >= 1
    assert position >= 1
    assert again.stdout == "three\n"


def test_messages_beyond_the_wanted_ones_are_not_told_as_failures(paceline: Runner) -> None:
    paceline("send", "orders", "--key", "k", stdin=b"one\ntwo\nthree\n")

    for way in ((), ("--ordered",)):
        outcome = paceline("consume", "orders", "--group", f"g{len(way)}", "--max", "1", *way)
        assert (outcome.stdout, outcome.stderr) == ("one\n", "")


def test_what_the_library_logs_is_told_with_its_fields(
    paceline: Runner, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="paceline")  # simulated worlds of other tests are mute
    name = ConsumerGroupName("off")
    settings = ConsumerGroupSettings(consume_enable=False)
    view = ConsumerGroupView(group=name, settings=settings)
    paceline.on_cluster(lambda cluster: cluster.publish(consumer_groups={name: view}))

    outcome = paceline("consume", "orders", "--group", "off", "--idle-exit-ms", "300")

    assert outcome.stderr == (
        "paceline: consumer_group_off: consumer_group=off why='consume_enable is false; its"
        " operator can change that (paceline group alter off --set consume_enable=true)'\n"
    )


def test_a_field_of_a_log_line_breaks_no_line() -> None:
    fields = {"queue": "orders g1/0", "error": "a\nb\x1b[31m", "count": 3, "none": None}
    record = logging.makeLogRecord({"msg": "message_failed", "levelname": "WARNING", **fields})

    assert line_of(record) == (r"message_failed: queue='orders g1/0' error='a\nb\x1b[31m' count=3")


def test_deleted_messages_are_told_on_stderr_and_passed_over(paceline: Runner) -> None:
    for body in ("one", "two", "three"):
        paceline("send", "orders", body, "--key", "k")
    queue = int(paceline.json("pull", "orders", "--max", "1")[0]["queue"])
    paceline("consume", "orders", "--group", "slow", "--max", "1")

    def delete(cluster: FakeCluster) -> None:
        cluster.logs["g1"].delete_below((1, queue), 2)
        cluster.group_calls.told_start = 0

    paceline.on_cluster(delete)
    consumed = paceline("consume", "orders", "--group", "slow", "--max", "1")
    pulled = paceline("pull", "orders")

    name = f"orders g1/{queue}"
    assert (consumed.exit_code, consumed.stdout) == (0, "three\n")
    assert consumed.stderr == (
        f"paceline: messages 1 to 1 of {name} were deleted before they were read; going on at 2\n"
    )
    assert (pulled.exit_code, pulled.stdout) == (0, "three\n")
    assert pulled.stderr == (
        f"paceline: offset 0 of {name} is not in [2, 3): what is missing was deleted;"
        " going on at 2\n"
    )


def test_a_body_cannot_take_over_a_terminal() -> None:
    assert shown(b"a\x1b[31m\tb\xff") == "a\\x1b[31m\tb\ufffd"


@pytest.mark.parametrize("asked", [("pull",), ("consume", "--group", "g", "--idle-exit-ms", "50")])
def test_topic_that_gives_no_messages_is_said_to(paceline: Runner, asked: tuple[str, ...]) -> None:
    """It waited, and then asked whether there is a master, or said nothing at all."""

    def forbid(cluster: FakeCluster) -> None:
        topics = cluster.view.topics
        orders = replace(topics[TopicName("orders")], perm=PERM_WRITE)
        cluster.publish(topics={**topics, orders.topic: orders})

    paceline.on_cluster(forbid)

    outcome = paceline(asked[0], "orders", *asked[1:])

    assert (outcome.exit_code, outcome.stdout) == (1, "")
    assert "topic orders gives no messages: its permissions are -W-" in outcome.stderr
