"""What a topic takes and gives: permissions, queue numbers, message types, the system's own."""

from dataclasses import replace
from typing import Any

import orjson
import pytest
from tests.support.http.door import a_batch
from tests.support.service.fakes import GROUP, Bench, a_view
from tests.support.service.send import Answers
from tests.support.service.topic_checks import altered, sent

from paceline.errors import (
    BadRequestError,
    ForbiddenError,
    MessageTypeError,
    NoPermissionError,
    PacelineError,
    QueueNotFoundError,
)
from paceline.records.header import Codec, Kind
from paceline.types import ConsumerGroupName, QueueOffset, TopicName
from paceline.wire.consumer_groups import ConsumerGroupSettings, ConsumerGroupView
from paceline.wire.http import PullRequest, parse_send
from paceline.wire.names import REPLY_TOPIC
from paceline.wire.properties import check_sent_properties
from paceline.wire.stream import PRODUCE_FLAG_DUPLICATE
from paceline.wire.topics import (
    DELAY,
    FIFO,
    MIXED,
    NORMAL,
    PERM_READ,
    PERM_WRITE,
    PRIORITY,
    TRANSACTION,
)

FROM_START = PullRequest(offset=QueueOffset(0))


async def refused(bench: Bench, error: type[PacelineError], **arguments: Any) -> None:
    """By the doors of batches and of JSON, and nothing is stored."""
    before = bench.log.end
    assert isinstance(await sent(bench, **arguments), error)
    topic = bench.service.routes.topic_named("orders")
    body: dict[str, Any] = {"messages": [{"body": "x", "key": "k"}]}
    with pytest.raises(error):
        await bench.service.messages.send(
            topic, parse_send({**body, "queue": arguments.get("queue_id", 0)})
        )
    assert bench.log.end == before


async def test_a_queue_that_is_not_there_is_named_by_its_topic() -> None:
    bench = Bench()
    error = await sent(bench, queue_id=9)

    assert isinstance(error, QueueNotFoundError)
    assert error.message.startswith("topic orders has no queue g1/9: broker group g1 has ")


async def test_only_the_written_queues_take_messages_while_all_are_read() -> None:
    bench = Bench()
    altered(bench, write_queues={GROUP: 2})

    await refused(bench, QueueNotFoundError, queue_id=2)
    assert (await sent(bench, queue_id=1)).base_queue_offset == 0
    topic = bench.service.routes.topic_named("orders")
    keyless = parse_send({"messages": [{"body": "x"}] * 1})
    queues = {
        (await bench.service.messages.send(topic, keyless))["messages"][0]["queue"]
        for _ in range(8)
    }
    assert queues == {0, 1}
    pulled = await bench.service.messages.pull(topic, 3, FROM_START)
    assert pulled["messages"] == []


async def test_without_permission_nothing_goes_in_or_out() -> None:
    bench = Bench()
    await sent(bench)

    topic = altered(bench, perm=PERM_READ)
    await refused(bench, NoPermissionError)
    assert (await bench.service.messages.pull(topic, 0, FROM_START))["messages"]

    topic = altered(bench, perm=PERM_WRITE)
    assert (await sent(bench)).base_queue_offset == 1
    with pytest.raises(NoPermissionError):
        await bench.service.messages.pull(topic, 0, FROM_START)


@pytest.mark.parametrize("name", [NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY, MIXED])
async def test_a_topic_takes_its_type_of_messages(name: str) -> None:
    bench = Bench()
    altered(bench, message_type=name)
    due = {"kind": Kind.DELAY, "due_unix_ms": [bench.clock.unix_ms() + 1000]}

    taken = {
        kind
        for kind, arguments in (
            (Kind.NORMAL, {}),
            (Kind.DELAY, due),
            (Kind.HALF, {"kind": Kind.HALF, "properties": [{"PGROUP": "billing"}]}),
        )
        if not isinstance(await sent(bench, **arguments), MessageTypeError)
    }

    assert (
        taken
        == {
            NORMAL: {Kind.NORMAL},
            FIFO: {Kind.NORMAL},
            DELAY: {Kind.DELAY},
            TRANSACTION: {Kind.HALF},
            PRIORITY: {Kind.NORMAL, Kind.DELAY},
            MIXED: {Kind.NORMAL, Kind.DELAY, Kind.HALF},
        }[name]
    )


async def test_a_refusal_by_type_says_what_is_taken_and_what_to_make() -> None:
    bench = Bench()
    altered(bench, message_type=FIFO)

    answer = await sent(bench, kind=Kind.HALF, properties=[{"PGROUP": "billing"}])

    assert isinstance(answer, MessageTypeError)
    assert answer.message == (
        "topic orders takes FIFO messages, not TRANSACTION ones; for those make a topic (paceline"
        " topic create NAME --message-type TRANSACTION), or have its operator change this one"
        " (paceline topic alter orders --message-type TRANSACTION)"
    )


async def test_an_ordered_topic_wants_a_key_or_a_queue() -> None:
    bench = Bench()
    topic = altered(bench, message_type=FIFO)
    send = bench.service.messages.send

    with pytest.raises(MessageTypeError):
        await send(topic, parse_send({"messages": [{"body": "x", "key": "k"}, {"body": "y"}]}))
    await send(topic, parse_send({"messages": [{"body": "x", "key": "k"}]}))
    await send(topic, parse_send({"messages": [{"body": "x", "sharding_key": "k"}]}))
    await send(topic, parse_send({"messages": [{"body": "y"}], "queue": 1}))


async def test_a_system_topic_is_read_but_not_sent_to() -> None:
    bench = Bench()
    topic = altered(bench, is_system=True)

    await refused(bench, ForbiddenError)
    assert (await bench.service.messages.pull(topic, 0, FROM_START))["messages"] == []


async def test_the_topic_of_replies_is_the_systems_and_is_sent_to() -> None:
    bench = Bench()
    altered(bench, is_system=True, topic=TopicName(REPLY_TOPIC))

    assert (await sent(bench)).base_queue_offset == 0


@pytest.mark.parametrize("change", [{"perm": PERM_READ}, {"write_queues": {GROUP: 1}}])
async def test_what_was_stored_before_a_change_is_answered_as_stored_after_it(
    change: dict[str, Any],
) -> None:
    """R30: else a retry after an unknown outcome would be told that it is not stored."""
    bench = Bench()
    first = {"queue_id": 2, "producer_id": 7, "base_sequence": 0}
    stored = await sent(bench, **first)

    altered(bench, **change)

    again = await sent(bench, **first)
    assert (again.base_queue_offset, again.flags) == (
        stored.base_queue_offset,
        PRODUCE_FLAG_DUPLICATE,
    )
    following = await sent(bench, queue_id=2, producer_id=7, base_sequence=1)
    assert isinstance(following, NoPermissionError | QueueNotFoundError)


async def test_a_topic_that_shrank_and_grows_again_goes_on_where_its_queues_ended() -> None:
    bench = Bench()
    await sent(bench, queue_id=3)
    altered(bench, queues={GROUP: 2}, read_queues={GROUP: 2}, write_queues={GROUP: 2})
    await refused(bench, QueueNotFoundError, queue_id=3)

    altered(bench, queues={GROUP: 4}, read_queues={GROUP: 4}, write_queues={GROUP: 4})

    assert (await sent(bench, queue_id=3)).base_queue_offset == 1


async def test_a_group_that_is_switched_off_has_no_members() -> None:
    bench = Bench()
    heartbeat = {
        "group": "billing",
        "client_id": "c",
        "topics": ["orders"],
        "owned": [],
        "generation": 0,
    }
    view = bench.service.routes.view
    assert view is not None
    settings = ConsumerGroupSettings(consume_enable=False)
    group = ConsumerGroupView(group=ConsumerGroupName("billing"), settings=settings)
    changed = replace(view, version=view.version + 1, consumer_groups={group.group: group})
    bench.service.view_changed(changed)

    with pytest.raises(NoPermissionError, match="consume_enable"):
        await bench.call("heartbeat", **heartbeat)

    settings = ConsumerGroupSettings(consume_broadcast_enable=False)
    group = replace(group, settings=settings)
    bench.service.view_changed(
        replace(changed, version=changed.version + 1, consumer_groups={group.group: group})
    )
    with pytest.raises(NoPermissionError, match="may not broadcast"):
        await bench.call("heartbeat", **heartbeat, message_model="broadcasting")
    await bench.call("heartbeat", **heartbeat, message_model="clustering")


def test_the_view_says_what_may_be_sent_where() -> None:
    bench = Bench()
    routes = bench.service.routes
    assert routes.sendable[1].writes == 4
    bench.service.view_changed(a_view(version=9, topics={"orders": 4, "new": 2}))
    assert routes.sendable[2].writes == routes.sendable[2].reads == 2


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize(
    "name", ["ORIGIN_MESSAGE_ID", "RECONSUME_TIME", "ESCAPED_FROM", "TIMER_OUT_MS"]
)
async def test_properties_that_are_the_brokers_are_refused_at_both_doors(
    name: str, codec: Codec
) -> None:
    """Who reads a message relies on them, and a client of its own making need not check."""
    bench = Bench()
    before = bench.log.end
    rows = [{"colour": "red"}, {"colour": "blue", name: "7"}]

    sink = Answers()
    batch = a_batch(b"x", b"y" * 9000, properties=rows, codec=codec)
    bench.service.sender.send(batch, sink, 0)
    [(_, error)] = sink.answers
    assert isinstance(error, BadRequestError)
    assert error.details["field"] == f"properties.{name}"
    orders = bench.service.routes.topic_named("orders")
    body = {"messages": [{"body": "x", "properties": row} for row in rows]}
    with pytest.raises(BadRequestError, match=f"property {name} belongs to the system"):
        await bench.service.messages.send(orders, parse_send(body))

    assert bench.log.end == before


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
async def test_property_without_a_name_is_refused_at_both_doors(codec: Codec) -> None:
    bench = Bench()
    before = bench.log.end
    rows = [{"colour": "red"}, {"colour": "", "": "7"}]

    sink = Answers()
    bench.service.sender.send(a_batch(b"x", b"y" * 9000, properties=rows, codec=codec), sink, 0)
    [(_, error)] = sink.answers
    assert isinstance(error, BadRequestError)
    assert error.message == "a property needs a name: it is empty"
    orders = bench.service.routes.topic_named("orders")
    body = {"messages": [{"body": "x", "properties": row} for row in rows]}
    with pytest.raises(BadRequestError, match="must not have an empty name"):
        await bench.service.messages.send(orders, parse_send(body))

    assert bench.log.end == before
    check_sent_properties([orjson.loads(rb'{"a":"","b":"\\","c":"\"\":","d":": \"\" :"}')])


def test_a_name_of_the_system_is_known_however_it_is_spelt() -> None:
    def check(blob: bytes) -> None:
        check_sent_properties([orjson.loads(blob)])

    with pytest.raises(BadRequestError, match="RETRY_TOPIC"):
        check(rb'{"\u0052ETRY_TOPIC":"1"}')
    with pytest.raises(BadRequestError, match="DELAY"):
        check(rb'{"a":"b", "DELAY" : "1"}')
    check(rb'{"CORRELATION_ID":"1","__SHARDINGKEY":"k","PGROUP":"p"}')
    check(rb'{"a":"DELAY","b":"\"DELAY\":","c\"DELAY":"\u0041","delay":""}')
