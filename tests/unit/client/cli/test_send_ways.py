"""`paceline send --queue, --sharding-key, --compress, --oneway`."""

from dataclasses import replace

import pytest
from tests.support.client.fake_cluster import FakeCluster
from tests.unit.client.cli.conftest import Runner

from paceline.records.decode import BatchView
from paceline.records.header import Codec
from paceline.types import GroupName, TopicName


def test_a_queue_is_chosen_by_name_or_by_a_sharding_key(paceline: Runner) -> None:
    (named,) = paceline.json("send", "orders", "x", "--queue", "g1/1")
    sharded = [paceline.json("send", "orders", "y", "--sharding-key", "7")[0] for _ in range(3)]

    assert (named["group"], named["queue"]) == ("g1", 1)
    assert len({row["queue"] for row in sharded}) == 1
    (message,) = paceline.json("pull", "orders", "--queue", str(sharded[0]["queue"]), "--max", "1")
    assert message["properties"].get("__SHARDINGKEY") in (None, "7")


@pytest.mark.parametrize(("codec", "wanted"), [("lz4", Codec.LZ4), ("none", Codec.NONE)])
def test_large_bodies_are_compressed_as_the_option_says(
    paceline: Runner, codec: str, wanted: Codec
) -> None:
    paceline("send", "orders", "a" * 5000, "--queue", "g1/0", "--compress", codec)

    stored = paceline.on_cluster(lambda _: paceline.cluster.logs["g1"].queues[(1, 0)])
    assert BatchView(stored[0].data).header.codec == wanted


def test_a_oneway_message_is_sent_once_and_what_is_known_is_said(paceline: Runner) -> None:
    said = paceline("send", "orders", "hello", "--oneway")
    (document,) = paceline.json("send", "orders", "again", "--oneway")

    assert said.exit_code == 0
    assert said.stdout == "sent one-way to orders: the broker has it\n"
    assert document == {
        "topic": "orders", "oneway": True, "confirmed": 1, "dropped": 0, "unknown": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("x", "--queue", "0"), "is not GROUP/N"),
        (("x", "--queue", "g1/x"), "is not GROUP/N"),
        (("-", "--oneway"), "--oneway needs a TEXT"),
        (("x", "--queue", "g1/9"), "has no queue g1/9"),
    ],
)
def test_wrong_options_are_refused(paceline: Runner, arguments: tuple[str, ...], says: str) -> None:
    said = paceline("send", "orders", *arguments)

    assert said.exit_code in (1, 2)
    assert says in said.stderr


def test_a_queue_that_is_only_read_is_not_said_to_be_missing(paceline: Runner) -> None:
    """Its broker group is being emptied, or the topic shrinks: what to do is said."""

    def narrow(cluster: FakeCluster) -> None:
        topics = cluster.view.topics
        orders = topics[TopicName("orders")]
        narrower = replace(orders, write_queues={GroupName("g1"): 1})
        cluster.publish(topics={**topics, orders.topic: narrower})

    paceline.on_cluster(narrow)

    outcome = paceline("send", "orders", "x", "--queue", "g1/1")

    assert outcome.exit_code == 1
    assert "queue g1/1 of topic orders is read only: group g1 takes messages in 1 of 2" in (
        outcome.stderr
    )
    assert "paceline cluster add-write-perm g1" in outcome.stderr


def test_a_send_makes_its_topic_as_the_library_does(paceline: Runner) -> None:
    def allow(cluster: FakeCluster) -> None:
        cluster.makes_topics = True

    paceline.on_cluster(allow)
    one = paceline("send", "new", "x")
    lines = paceline("send", "newer", "-", stdin=b"x\ny\n")
    oneway = paceline("send", "newest", "x", "--oneway")

    assert [one.exit_code, lines.exit_code, oneway.exit_code] == [0, 0, 0], one.stderr
    topics = paceline.on_cluster(lambda cluster: sorted(cluster.view.topics))
    assert topics == ["new", "newer", "newest", "orders"]
