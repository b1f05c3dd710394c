"""Requests and their replies, against the fake cluster."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.support.client.consumers import eventually
from tests.support.client.fake_cluster import FakeCluster

from paceline.consumer.pull import PullConsumer
from paceline.errors import (
    BadRequestError,
    DeadlineError,
    NoPermissionError,
    NotAuthorizedError,
    NotMasterError,
    PacelineError,
    RequestTimeoutError,
    TopicNotFoundError,
)
from paceline.message import Message, ReceivedMessage
from paceline.net.cluster import Cluster
from paceline.platform.runtime import cancel_and_wait, spawn
from paceline.producer.producer import Producer
from paceline.producer.request_reply import ReplyAddress, reply_message
from paceline.producer.settings import ProducerSettings
from paceline.types import GroupName, QueueId
from paceline.wire.names import REPLY_TOPIC

G1, G2 = GroupName("g1"), GroupName("g2")


@asynccontextmanager
async def replying(cluster: FakeCluster, *, answers: int = 1) -> AsyncIterator[None]:
    """Somebody consumes topic "sums" and answers each request so many times."""

    async def answer_all() -> None:
        async with (
            Producer(cluster.controller) as producer,
            PullConsumer(cluster.controller) as consumer,
        ):
            await consumer.subscribe("sums", start="first")
            while True:
                for request in await consumer.poll():
                    for _ in range(answers):
                        await producer.reply(request, b"sum of " + request.body)

    task = spawn(answer_all(), name="replier")
    try:
        yield
    finally:
        await cancel_and_wait(task)


def a_cluster(groups: int = 1) -> FakeCluster:
    return FakeCluster(groups=groups)


def add_topics(cluster: FakeCluster) -> None:
    cluster.add_topic("sums", 2)
    cluster.add_topic(REPLY_TOPIC, 2)


async def test_each_request_gets_its_own_reply_and_nobody_elses() -> None:
    async with a_cluster() as cluster:
        add_topics(cluster)
        async with (
            replying(cluster),
            Producer(cluster.controller) as one,
            Producer(cluster.controller) as two,
        ):
            asked = [
                (b"%d" % n, (one, two)[n % 2].request(Message("sums", b"%d" % n), timeout_ms=5_000))
                for n in range(20)
            ]
            replies = await asyncio.gather(*(waiting for _, waiting in asked))

    assert [reply.body for reply in replies] == [b"sum of " + body for body, _ in asked]
    assert (one.requests.late, two.requests.late) == (0, 0)


async def test_a_second_reply_and_a_late_one_are_counted_and_change_nothing() -> None:
    async with a_cluster() as cluster:
        add_topics(cluster)
        async with replying(cluster, answers=2), Producer(cluster.controller) as producer:
            first = await producer.request(Message("sums", b"1"), timeout_ms=5_000)
            second = await producer.request(Message("sums", b"2"), timeout_ms=5_000)
            async with asyncio.timeout(5):
                while producer.requests.late < 2:
                    await producer.request(Message("sums", b"3"), timeout_ms=5_000)

    assert (first.body, second.body) == (b"sum of 1", b"sum of 2")


async def test_no_reply_in_time_is_said_as_such() -> None:
    async with a_cluster() as cluster:
        add_topics(cluster)
        async with Producer(cluster.controller) as producer:
            with pytest.raises(RequestTimeoutError, match="within 80 ms"):
                await producer.request(Message("sums", b"1"), timeout_ms=80)

    assert RequestTimeoutError("").is_definite is False
    assert [body for queue in range(2) for body in cluster.bodies(queue=queue)] == [b"1"]


async def test_a_request_that_is_certainly_not_stored_fails_as_its_send() -> None:
    settings = ProducerSettings(topic_wait_ms=50)
    async with a_cluster() as cluster:
        add_topics(cluster)
        async with Producer(cluster.controller, settings=settings) as producer:
            with pytest.raises(TopicNotFoundError):
                await producer.request(Message("nosuch", b"1"), timeout_ms=5_000)
            with pytest.raises(BadRequestError, match="belongs to the system"):
                await producer.request(Message("sums", b"1", properties={"CORRELATION_ID": "x"}))


async def test_replies_go_to_a_group_with_a_master_and_come_through_its_failover() -> None:
    async with a_cluster(groups=3) as cluster:
        cluster.add_topic("sums", 2, groups=["g3"])
        cluster.add_topic(REPLY_TOPIC, 2, groups=["g1", "g2"])
        cluster.elect("g1", None)
        shared = Cluster(cluster.controller)
        async with replying(cluster), Producer(shared) as producer:
            assert (await producer.request(Message("sums", b"1"), timeout_ms=5_000)).group == "g2"
            cluster.brokers[("g2", 1)].kill()
            cluster.elect("g2", 2)
            reply = await producer.request(Message("sums", b"2"), timeout_ms=10_000)
            assert (reply.group, reply.body) == ("g2", b"sum of 2")
            cluster.elect("g2", None)
            cluster.elect("g1", 1)
            await shared.watch.wait_for(
                lambda view: view.groups[G1].master is not None, timeout_ms=5_000
            )
            elsewhere = await producer.request(Message("sums", b"3"), timeout_ms=10_000)

        await shared.close()

    assert (elsewhere.group, elsewhere.body) == ("g1", b"sum of 3")


async def test_replies_go_where_messages_are_taken() -> None:
    """A reply to a group whose write permission was wiped is refused: nobody would hear it."""
    async with a_cluster(groups=2) as cluster:
        cluster.add_topic("sums", 2, groups=["g2"])
        cluster.add_topic(REPLY_TOPIC, 2)
        cluster.alter_topic(REPLY_TOPIC, write_queues={G1: 0, G2: 2})
        async with replying(cluster), Producer(cluster.controller) as producer:
            for number in range(3):
                reply = await producer.request(Message("sums", b"%d" % number), timeout_ms=5_000)
                assert reply.group == "g2"


async def test_a_reply_to_a_group_that_was_wiped_meanwhile_says_so() -> None:
    async with a_cluster(groups=2) as cluster:
        cluster.add_topic("sums", 1, groups=["g2"])
        cluster.add_topic(REPLY_TOPIC, 2, groups=["g1"])
        async with (
            Producer(cluster.controller) as producer,
            PullConsumer(cluster.controller) as consumer,
            asyncio.TaskGroup() as group,
        ):
            await consumer.subscribe("sums", start="first")
            asking = group.create_task(producer.request(Message("sums", b"1"), timeout_ms=5_000))
            [request] = await consumer.poll()
            await producer.reply(request, b"sum of 1")
            await asking
            cluster.wipe("g1")
            with pytest.raises(NoPermissionError, match="paceline cluster add-write-perm g1"):
                await producer.reply(request, b"again")


async def test_a_request_waits_until_a_group_takes_replies() -> None:
    async with a_cluster() as cluster:
        add_topics(cluster)
        cluster.alter_topic(REPLY_TOPIC, write_queues={G1: 0})
        async with replying(cluster), Producer(cluster.controller) as producer:
            with pytest.raises(NotMasterError, match="nowhere within 80 ms for the reply to go"):
                await producer.request(Message("sums", b"1"), timeout_ms=80)
            async with asyncio.TaskGroup() as group:
                asking = group.create_task(producer.request(Message("sums", b"2")))
                cluster.alter_topic(REPLY_TOPIC, write_queues={G1: 2})  # seen after some polls
    assert asking.result().body == b"sum of 2"

    # What was not sent is nowhere.
    assert [body for queue in range(2) for body in cluster.bodies(queue=queue)] == [b"2"]


async def test_replies_are_read_on_after_an_unclean_election_has_cut_their_queue(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """R21: the requester stands above the end, and no reply would ever reach it again."""
    async with a_cluster() as cluster:
        cluster.add_topic("sums", 1)
        cluster.add_topic(REPLY_TOPIC, 1)
        log = cluster.logs["g1"]
        async with Producer(cluster.controller) as producer:
            async with replying(cluster):
                for number in range(3):
                    await producer.request(Message("sums", b"%d" % number), timeout_ms=5_000)
            log.lose_newest((2, 0), 3)
            log.changed.set()
            log.changed = asyncio.Event()  # as the log does: a set one is not waited for
            await eventually(lambda: "replies_interrupted" in caplog.text)
            async with replying(cluster):  # another one: it answers the old requests too
                reply = await producer.request(Message("sums", b"4"), timeout_ms=2_000)

    assert reply.body == b"sum of 4"


def a_message(**properties: str) -> ReceivedMessage:
    return ReceivedMessage("sums", "g1", 0, 7, b"x", None, "", properties, 1, 2)


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"CORRELATION_ID": "a"},
        {"REPLY_TO_CLIENT": "g1/0/c"},
        *(
            {"CORRELATION_ID": "a", "REPLY_TO_CLIENT": text}
            for text in ("", "g1", "g1/0", "g1/0/", "g1/x/c", "g1/-1/c", "../0/c", "g1/123456/c")
        ),
    ],
)
def test_a_message_without_a_reply_address_cannot_be_answered(properties: dict[str, str]) -> None:
    with pytest.raises(PacelineError) as caught:
        reply_message(a_message(**properties), b"")

    assert caught.value.is_definite
    assert not isinstance(caught.value, DeadlineError)


def test_a_reply_goes_to_the_requesters_queue_with_its_correlation_id() -> None:
    address = ReplyAddress(GroupName("g2"), QueueId(3), "a/b")
    message = reply_message(
        a_message(CORRELATION_ID="c-1", REPLY_TO_CLIENT=address.to_text()), b"yes"
    )

    assert ReplyAddress.from_text(address.to_text()) == address
    assert message.queue == (REPLY_TOPIC, "g2", 3)
    assert message.properties == {"CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": "g2/3/a/b"}


async def test_a_request_whose_reply_may_not_be_read_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refused(self: PullConsumer, **_: int) -> list[ReceivedMessage]:
        raise NotAuthorizedError("ana may not Sub", user="ana", actions=["Sub"])

    monkeypatch.setattr(PullConsumer, "poll", refused)
    async with a_cluster() as cluster, Producer(cluster.controller) as producer:
        add_topics(cluster)
        with pytest.raises(NotAuthorizedError, match="may have been acted upon: ana may not Sub"):
            await producer.request(Message("sums", b"1"), timeout_ms=20_000)
        with pytest.raises(NotAuthorizedError, match="not sent: ana may not Sub") as raised:
            await producer.request(Message("sums", b"2"), timeout_ms=20_000)

    assert raised.value.details["actions"] == ["Sub"]
