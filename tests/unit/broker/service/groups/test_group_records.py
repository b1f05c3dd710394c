"""Consumer groups that are deleted and made again: nothing of the old one counts (R35)."""

from dataclasses import replace
from typing import Any

import pytest
from tests.support.http.door import a_batch
from tests.support.service.fakes import Bench, replayed
from tests.support.service.group_records import RETRIES, with_group
from tests.support.service.send import Answers

from paceline.records.encode import encode_batch
from paceline.records.header import Cause, Kind
from paceline.types import ConsumerGroupName, GroupName, TopicId, TopicName
from paceline.wire import properties as names
from paceline.wire.cluster import ClusterView
from paceline.wire.consumer_groups import ConsumerGroupView

QUEUE = {"topic": "orders", "queue": 0}


def with_settings(view: ClusterView) -> ClusterView:
    """The group is on record, with all of its topics."""
    group = ConsumerGroupName("g")
    dead = replace(
        view.topics[TopicName(RETRIES)], topic=TopicName("%DLQ%g"), topic_id=TopicId(100)
    )
    return replace(
        view,
        topics={**view.topics, dead.topic: dead},
        consumer_groups={group: ConsumerGroupView(group=group)},
    )


def stored(bench: Bench, count: int) -> None:
    bench.service.sender.send(a_batch(*[b"x"] * count), Answers(), 0)
    bench.writer.confirm_all()


async def offset_of(bench: Bench) -> Any:
    [row] = (await bench.call("offsets", group="g", queues=[QUEUE]))["offsets"]
    return row["offset"], row["joined_offset"]


def topic_records(bench: Bench) -> list[tuple[str, int, bool]]:
    documents = [view.document() for view in bench.log.views() if view.header.kind == Kind.TOPIC]
    return [(row["topic"], row["topic_id"], row["is_deleted"]) for row in documents]


@pytest.mark.parametrize("first", ["commit", "lock", "reset", "receive"])
async def test_whatever_a_group_does_first_the_log_knows_it_before(first: str) -> None:
    bench = Bench()
    bench.service.view_changed(with_group(2, topic_id=2))
    stored(bench, 5)
    match first:
        case "commit":
            await bench.call("commit", group="g", offsets=[{**QUEUE, "offset": 2}])
        case "lock":
            await bench.call("lock", group="g", client_id="c", queues=[QUEUE])
        case "reset":
            await bench.call("reset", group="g", new=True, topic="orders", queues=[0], to="last")
        case "receive":
            await bench.call("receive", group="g", client_id="c", topics=["orders"])

    assert topic_records(bench)[-1] == (RETRIES, 2, False)
    assert bench.role.projections.group_ids == {"g": 2}
    await bench.service.close()


async def test_a_group_that_was_made_again_stands_nowhere_from_the_moment_of_the_news() -> None:
    bench = Bench()
    bench.service.view_changed(with_group(2, topic_id=2))
    stored(bench, 5)
    await bench.call("commit", group="g", offsets=[{**QUEUE, "offset": 4}])
    await bench.call("lock", group="g", client_id="c", queues=[QUEUE])
    await bench.call("reset", group="g", topic="orders", queues=[0], to="last")
    assert await offset_of(bench) == (5, 5)

    bench.service.view_changed(with_group(3, topic_id=3))
    assert await offset_of(bench) == (None, None)
    assert (await bench.call("resets", group="g"))["resets"] == 0
    assert (await bench.call("lag", group="g"))["queues"] == []
    clone = {"group": "h", "source": "g", "topic": "orders"}
    assert (await bench.call("clone_offsets", **clone))["queues"] == []
    await bench.call("commit", group="g", offsets=[{**QUEUE, "offset": 1}])

    assert await offset_of(bench) == (1, 5)
    assert topic_records(bench)[-2:] == [(RETRIES, 2, True), (RETRIES, 3, False)]
    assert not bench.role.projections.locks.keys(), "nor does it lock anything"
    assert replayed(bench) == bench.role.projections.snapshot()
    await bench.service.close()


async def test_what_is_sent_back_makes_no_group_the_heir_of_its_former_one() -> None:
    """It may be the first that a group does here that was deleted and made again."""
    bench = Bench()
    bench.service.view_changed(with_settings(with_group(2, topic_id=2)))
    stored(bench, 5)
    await bench.call("commit", group="g", offsets=[{**QUEUE, "offset": 4}])
    await bench.call("lock", group="g", client_id="c", queues=[QUEUE])

    bench.service.view_changed(with_settings(with_group(3, topic_id=3)))
    row = {"topic_id": 1, "queue": 0, "offset": 2}
    answer = await bench.call("send_back", group="g", messages=[row], only_uncommitted=True)

    assert [row["outcome"] for row in answer["messages"]] == ["retry"]
    assert await offset_of(bench) == (None, None)
    assert topic_records(bench)[-2:] == [(RETRIES, 2, True), (RETRIES, 3, False)]
    await bench.service.close()


async def test_a_retry_of_another_broker_group_makes_no_heir_either() -> None:
    """R36: it is stored as it comes, whoever of the group has been here."""
    bench = Bench()
    bench.service.view_changed(with_group(2, topic_id=2))
    stored(bench, 5)
    await bench.call("commit", group="g", offsets=[{**QUEUE, "offset": 4}])

    bench.service.view_changed(with_group(3, topic_id=3))
    escaped = encode_batch(
        [b"again"],
        properties=[{names.ESCAPED_FROM: "g2:1a40:0", names.TIMER_OUT_MS: "1"}],
        born_unix_ms=1,
        topic_id=3,
        queue_id=0,
        flags=Cause.ESCAPED,
    )
    assert await bench.service.intake.take(GroupName("g2"), [escaped]) == [None]

    assert await offset_of(bench) == (None, None)
    assert topic_records(bench)[-2:] == [(RETRIES, 2, True), (RETRIES, 3, False)]
    await bench.service.close()


async def test_receipts_of_a_deleted_group_are_void_and_its_messages_come_anew() -> None:
    bench = Bench()
    bench.service.view_changed(with_group(2, topic_id=2))
    stored(bench, 3)
    ask = {"group": "g", "client_id": "c", "topics": ["orders"]}
    given = await bench.call("receive", **ask)
    assert (await bench.call("receive", **ask))["messages"] == []

    bench.service.view_changed(with_group(3, topic_id=3))
    again = await bench.call("receive", **ask)

    assert again["messages"] == given["messages"]
    await bench.service.close()


async def test_a_view_of_another_epoch_is_no_news_of_groups() -> None:
    """As for topics: the next master could be told of it later than this one."""
    bench = Bench()
    bench.service.view_changed(with_group(2, topic_id=2))
    stored(bench, 5)
    await bench.call("commit", group="g", offsets=[{**QUEUE, "offset": 4}])
    bench.role.begin_epoch(2)  # the view says epoch 1
    bench.service.view_changed(with_group(3, topic_id=3))

    await bench.call("commit", group="g", offsets=[{**QUEUE, "offset": 5}])

    assert topic_records(bench)[-1] == (RETRIES, 2, False)
    await bench.service.close()
