"""Failed listener calls: sent back, presented again under their topic, or tried here."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest
from tests.support.client.consumers import committed, eventually, fill
from tests.support.client.failure import a_cluster, consumer, send_backs
from tests.support.client.fake_cluster import FakeCluster

from paceline.consumer.process import concurrent
from paceline.consumer.process.failure import (
    Action,
    Decision,
    SendBack,
    SendBacker,
    SentBack,
    TryHere,
    as_first_sent,
)
from paceline.consumer.push import PushConsumer, PushSettings
from paceline.consumer.settings.push import ConsumeLater
from paceline.errors import (
    BadRequestError,
    ConfigError,
    NotYetAvailableError,
    OutcomeUnknownError,
    PacelineError,
)
from paceline.message import ReceivedMessage
from paceline.queues import QueueKey
from paceline.types import GroupName, QueueId, QueueOffset, TopicId
from paceline.wire import properties as names
from paceline.wire.calls import messages as wire
from paceline.wire.namespaces import Namespace

QUEUE = QueueKey(TopicId(1), GroupName("g1"), QueueId(0))


def a_message(**properties: str) -> ReceivedMessage:
    return ReceivedMessage(
        topic="%RETRY%audit",
        group="g1",
        queue_id=0,
        queue_offset=5,
        body=b"x",
        key=None,
        tag="",
        properties=properties,
        born_unix_ms=1,
        store_unix_ms=2,
    )


def test_policies_decide() -> None:
    back, here = SendBack(), TryHere(attempts_max=3, first_ms=100, max_ms=150)

    assert back.decide(a_message(), ValueError(), 1) == Decision(Action.SEND_BACK)
    later = Decision(Action.SEND_BACK, delay_level=4)
    assert back.decide(a_message(), ConsumeLater(4), 9) == later
    assert here.decide(a_message(), ValueError(), 1) == Decision(Action.AGAIN, wait_ms=100)
    assert here.decide(a_message(), ValueError(), 2) == Decision(Action.AGAIN, wait_ms=150)
    assert here.decide(a_message(), ValueError(), 3) == Decision(Action.GIVE_UP)


def test_retry_is_shown_under_the_topic_it_was_sent_to() -> None:
    message = a_message(**{names.RETRY_TOPIC: "orders", names.RECONSUME_TIMES: "3", "a": "b"})

    shown = as_first_sent(message._replace(topic="%RETRY%audit"), Namespace())

    assert (shown.topic, shown.reconsume_times) == ("orders", 3)
    assert shown.properties["a"] == "b"
    assert shown.properties[names.REAL_TOPIC] == "%RETRY%audit"
    assert as_first_sent(a_message(), Namespace()) == a_message()
    assert a_message().reconsume_times == 0


async def test_failed_message_comes_again_and_holds_up_nobody() -> None:
    seen: list[tuple[bytes, str, int]] = []

    async def listener(message: ReceivedMessage) -> None:
        seen.append((message.body, message.topic, message.reconsume_times))
        if message.body == b"3" and message.reconsume_times < 2:
            raise ValueError

    async with FakeCluster() as cluster:
        await a_cluster(cluster, 10)
        async with consumer(cluster, listener):
            await eventually(lambda: committed(cluster) == 10)
            await eventually(lambda: (b"3", "orders", 2) in seen)

    assert [row for row in seen if row[0] == b"3"] == [
        (b"3", "orders", 0),
        (b"3", "orders", 1),
        (b"3", "orders", 2),
    ]
    assert len(seen) == 12
    assert all(call["only_uncommitted"] for call in send_backs(cluster))


async def test_listener_says_when_and_that_there_is_no_use() -> None:
    async def listener(message: ReceivedMessage) -> ConsumeLater | None:
        if message.body == b"0":
            return ConsumeLater(5) if message.reconsume_times == 0 else None
        raise ConsumeLater(-1)

    given_up: list[bytes] = []
    async with FakeCluster() as cluster:
        await a_cluster(cluster, 2)
        more = {"on_given_up": lambda message, error: given_up.append(message.body)}
        async with consumer(cluster, listener, **more):
            await eventually(lambda: committed(cluster) == 2 and given_up == [b"1"])

    levels = {
        row["offset"]: row["delay_level"]
        for call in send_backs(cluster)
        for row in call["messages"]
    }
    assert levels == {0: 5, 1: -1}
    assert cluster.group_calls.dead == [b"1"]


async def test_message_is_dead_after_the_most_times_that_the_consumer_allows() -> None:
    calls: list[int] = []
    given_up: list[bytes] = []

    async def listener(message: ReceivedMessage) -> None:
        calls.append(message.reconsume_times)
        raise ValueError

    async with FakeCluster() as cluster:
        await a_cluster(cluster, 1)
        settings = PushSettings(start="first", commit_interval_ms=10, max_reconsume_times=2)
        more = {"on_given_up": lambda message, error: given_up.append(message.body)}
        async with consumer(cluster, listener, settings=settings, **more):
            await eventually(lambda: given_up == [b"0"])

    assert calls == [0, 1, 2]
    assert cluster.group_calls.dead == [b"0"]


async def test_messages_that_fail_together_ride_together() -> None:
    gate = asyncio.Event()

    async def listener(message: ReceivedMessage) -> None:
        if message.reconsume_times == 0:
            await gate.wait()
            raise ValueError

    async with FakeCluster() as cluster:
        await a_cluster(cluster, 20)
        async with consumer(cluster, listener) as one:
            await eventually(lambda: sum(h.queue.in_process_count for h in held(one)) == 20)
            gate.set()
            await eventually(lambda: committed(cluster) == 20)

    counts = [len(call["messages"]) for call in send_backs(cluster)]
    assert sum(counts) == 20
    assert len(counts) <= 3, counts


def held(one: PushConsumer) -> Sequence[Any]:
    return list(one._owner.held.values())


async def test_listener_has_the_message_again_when_it_could_not_be_sent_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(concurrent, "SEND_BACK_AGAIN_MS", 10)
    calls = 0

    async def listener(message: ReceivedMessage) -> None:
        nonlocal calls
        calls += 1
        if calls < 3:
            raise ValueError

    async with FakeCluster() as cluster:
        await a_cluster(cluster, 1)
        cluster.group_calls.send_back_code = NotYetAvailableError.code
        async with consumer(cluster, listener):
            await eventually(lambda: calls == 3)
            await eventually(lambda: committed(cluster) == 1)

    assert cluster.group_calls.dead == []


async def test_message_that_retention_has_deleted_is_given_up_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(concurrent, "SEND_BACK_AGAIN_MS", 1)
    given_up: list[bytes] = []

    async def listener(message: ReceivedMessage) -> None:
        raise ValueError

    async with FakeCluster() as cluster:
        await a_cluster(cluster, 1)
        cluster.group_calls.send_back_code = "OFFSET_OUT_OF_RANGE"
        settings = PushSettings(start="first", commit_interval_ms=10, attempts_max=3)
        more = {"on_given_up": lambda message, error: given_up.append(message.body)}
        async with consumer(cluster, listener, settings=settings, **more):
            await eventually(lambda: given_up == [b"0"])
            await eventually(lambda: committed(cluster) == 1)

    assert len(send_backs(cluster)) == 3


async def test_message_that_is_refused_for_any_other_reason_is_not_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It still lies in its queue: giving it up would lose it."""
    monkeypatch.setattr(concurrent, "SEND_BACK_AGAIN_MS", 1)
    given_up: list[bytes] = []
    calls = 0

    async def listener(message: ReceivedMessage) -> None:
        nonlocal calls
        calls += 1
        if calls < 6:
            raise ValueError

    async with FakeCluster() as cluster:
        await a_cluster(cluster, 1)
        cluster.group_calls.send_back_code = BadRequestError.code
        settings = PushSettings(start="first", commit_interval_ms=10, attempts_max=2)
        more = {"on_given_up": lambda message, error: given_up.append(message.body)}
        async with consumer(cluster, listener, settings=settings, **more):
            await eventually(lambda: committed(cluster) == 1)

    assert (calls, given_up) == (6, [])


def retried(asked: wire.SendBackRow, outcome: str | None = "retry") -> wire.SentBackRow:
    return wire.SentBackRow(
        topic_id=1,
        queue=asked.queue,
        offset=asked.offset,
        code=None,
        outcome=outcome,
        reconsume_times=1,
        due_unix_ms=None,
        message_id=None,
        duplicate=False,
    )


class Links:
    """Stands for `GroupLinks`: answers each send-back with a retry, or with what the test says."""

    def __init__(self) -> None:
        self.asked: list[list[wire.SendBackRow]] = []
        self.canned: list[wire.SentBack] = []

    async def call(self, group: GroupName, request: wire.SendBack, **_: Any) -> Any:
        rows = request.messages
        self.asked.append(rows)
        answer = self.canned.pop(0) if self.canned else wire.SentBack(list(map(retried, rows)))
        return answer, None


def back(
    backer: SendBacker, offset: int, told: list[tuple[int, Any]], **more: Any
) -> ReceivedMessage:
    """Send one message back; what it is answered comes into `told`."""
    message = a_message()._replace(queue_offset=QueueOffset(offset))
    backer.send_back(QUEUE, message, lambda answer: told.append((offset, answer)), **more)
    return message


async def test_message_that_is_sent_back_twice_rides_once_and_both_are_told() -> None:
    """Its call took too long, and failed before it was sent: the broker refuses double rows."""
    links, told = Links(), list[tuple[int, Any]]()
    backer = SendBacker(cast(Any, links), group="audit")
    back(backer, 5, told, delay_level=3, token=(1, 1))
    back(backer, 6, told)
    back(backer, 5, told, token=(1, 2))
    await eventually(lambda: len(told) == 3)

    [rows] = links.asked
    assert [(row.offset, row.delay_level, row.token) for row in rows] == [
        (5, 3, (1, 2)),
        (6, 0, None),
    ]
    assert told == [(offset, SentBack("retry", 1)) for offset in (5, 5, 6)]
    back(backer, 5, told)
    await eventually(lambda: len(told) == 4)
    assert len(links.asked) == 2, "what was answered may be sent back again"


@pytest.mark.parametrize("outcomes", [[], ["retry"], [None, None], ["retry"] * 3])
async def test_answer_that_is_not_one_to_the_messages_leaves_none_without_an_answer(
    outcomes: list[str | None],
) -> None:
    links, told = Links(), list[tuple[int, Any]]()
    row = wire.SendBackRow(topic_id=1, queue=0, offset=5)
    rows = [retried(row, outcome) for outcome in outcomes]
    links.canned.append(wire.SentBack(rows))
    backer = SendBacker(cast(Any, links), group="audit")
    for offset in (5, 6):
        back(backer, offset, told)
    await eventually(lambda: len(told) == 2)

    assert all(isinstance(answer, OutcomeUnknownError) for _, answer in told)
    back(backer, 5, told)
    await eventually(lambda: told[2:] == [(5, SentBack("retry", 1))])


async def test_who_fails_on_its_answer_keeps_no_other_from_its_own() -> None:
    links, told = Links(), list[tuple[int, Any]]()
    backer = SendBacker(cast(Any, links), group="audit")

    def fail(answer: SentBack | PacelineError) -> None:
        raise KeyError(answer)

    backer.send_back(QUEUE, a_message(), fail)
    back(backer, 6, told)
    await eventually(lambda: told == [(6, SentBack("retry", 1))])
    back(backer, 7, told)
    await eventually(lambda: len(told) == 2)


async def test_close_waits_for_what_is_being_sent_back() -> None:
    async def listener(message: ReceivedMessage) -> None:
        if message.reconsume_times == 0:
            raise ValueError

    async with FakeCluster() as cluster:
        await a_cluster(cluster, 5)
        async with consumer(cluster, listener):
            await eventually(lambda: bool(send_backs(cluster)))

    assert committed(cluster) == sum(len(call["messages"]) for call in send_backs(cluster))


async def test_failing_on_given_up_stops_nothing() -> None:
    calls: list[bytes] = []

    def give_up(message: ReceivedMessage, error: Exception) -> None:
        calls.append(message.body)
        raise KeyError(message.body)

    async def listener(message: ReceivedMessage) -> None:
        raise ConsumeLater(-1)

    async with FakeCluster() as cluster:
        await a_cluster(cluster, 3)
        async with consumer(cluster, listener, on_given_up=give_up):
            await eventually(lambda: committed(cluster) == 3)
            await fill(cluster, 5, first=3)
            await eventually(lambda: committed(cluster) == 5)

    assert sorted(calls) == [b"0", b"1", b"2", b"3", b"4"]


def test_bad_maximum_is_refused() -> None:
    with pytest.raises(ConfigError):
        PushSettings(max_reconsume_times=-2).validate()
