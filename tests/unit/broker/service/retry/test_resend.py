"""Dead letters resent: to their topic or their group, once each (R34)."""

from dataclasses import replace

import pytest
from tests.support.service.fakes import a_view
from tests.support.service.resend import a_dead_letter, resend
from tests.support.service.send_back import (
    DEAD,
    KEY,
    ORDERS,
    RETRY,
    TOPICS,
    a_bench,
    a_row,
    made,
    records,
    retried,
    send,
    send_back,
)

from paceline.errors import (
    BadRequestError,
    MessageNotFoundError,
    NotYetAvailableError,
    QueueNotFoundError,
    TopicNotFoundError,
)
from paceline.queues import index_of_key
from paceline.records.encode import encode_batch
from paceline.records.header import Cause, Kind, pack_source
from paceline.wire import properties as names


async def test_dead_letter_goes_back_to_its_topic_as_it_was() -> None:
    bench = a_bench()
    position = await a_dead_letter(bench)
    dead_at = made(bench, Cause.DEAD)[0].header.physical_offset

    [row] = await resend(bench, 0)

    queue = index_of_key(b"key-0", 4)
    assert (row["topic"], row["to_queue"], row["duplicate"]) == ("orders", queue, False)
    [view] = made(bench, Cause.RESENT)
    header = view.header
    assert (header.kind, header.topic_id, header.queue_id) == (Kind.NORMAL, ORDERS, queue)
    assert view.sources() == [pack_source(dead_at, 0)]
    [record] = view.records()
    assert (record.body, record.key, record.tag) == (b"body 0", "key-0", "b")
    assert record.properties == {
        "colour": "shade 0",
        names.ORIGIN_MESSAGE_ID: f"g1:{position:x}:0",
        names.UNIQ_KEY: f"{7:016x}:0:1:0:0",
    }
    assert row["message_id"] == f"g1:{header.physical_offset:x}:0"


async def test_letter_that_never_was_is_denied_at_once() -> None:
    """By the master; while its epoch has no confirmed record, another may know more (R3)."""
    bench = a_bench()
    await a_dead_letter(bench)
    end = bench.writer.end

    with pytest.raises(MessageNotFoundError, match="no dead letter 1 in queue 0 .* ends at 1"):
        await resend(bench, 1)
    bench.writer.is_open = False
    with pytest.raises(NotYetAvailableError):
        await resend(bench, 1)
    bench.writer.is_open = True
    first, second = await resend(bench, 0, 7)

    assert (first["code"], second["code"]) == (None, "MESSAGE_NOT_FOUND")
    assert bench.writer.end > end


async def test_dead_letter_is_resent_once() -> None:
    bench = a_bench()
    await a_dead_letter(bench)
    [first] = await resend(bench, 0)
    end = bench.writer.end

    [again] = await resend(bench, 0)

    assert again == {**first, "duplicate": True}
    assert bench.writer.end == end


async def test_one_resent_before_is_told_where_though_the_topic_has_other_queues_since() -> None:
    """R28: the answer is the first one's."""
    bench = a_bench()
    await a_dead_letter(bench)
    [first] = await resend(bench, 0)
    queues = next(n for n in range(5, 99) if index_of_key(b"key-0", n) != first["to_queue"])
    bench.service.view_changed(a_view(version=9, topics={**TOPICS, "orders": queues}))

    [again] = await resend(bench, 0)

    assert again == {**first, "duplicate": True}


async def test_group_alone_gets_it_again_with_all_its_attempts() -> None:
    bench = a_bench()
    await send_back(bench, retried(bench, times=16))

    [row] = await resend(bench, 0, to="group")

    assert row["topic"] == "%RETRY%g"
    [view] = made(bench, Cause.RESENT)
    assert (view.header.kind, view.header.topic_id) == (Kind.NORMAL, RETRY)
    [record] = records([view])
    assert record.properties[names.RETRY_TOPIC] == "orders"
    assert record.properties[names.RECONSUME_TIMES] == "0"
    assert names.DLQ_ORIGIN_TOPIC not in record.properties
    at = view.header.base_queue_offset
    [answer] = await send_back(bench, a_row(at, topic_id=RETRY, queue=view.header.queue_id))
    assert (answer["outcome"], answer["reconsume_times"]) == ("retry", 1)


async def test_message_that_dies_again_can_be_resent_again() -> None:
    bench = a_bench()
    await a_dead_letter(bench)
    [row] = await resend(bench, 0)
    queue = row["to_queue"]
    offset = bench.role.projections.queue_end(KEY + queue) - 1
    await send_back(bench, a_row(offset, queue=queue, delay_level=-1))

    [again] = await resend(bench, 1)

    assert not again["duplicate"]
    first, second = records(made(bench, Cause.RESENT))
    assert first.properties == second.properties


async def test_letter_whose_topic_is_gone_is_refused() -> None:
    """R35"""
    bench = a_bench()
    await a_dead_letter(bench)
    view = bench.service.routes.view
    assert view is not None
    topics = {name: topic for name, topic in view.topics.items() if name != "orders"}
    bench.service.view_changed(replace(view, version=9, topics=topics))

    with pytest.raises(TopicNotFoundError):
        await resend(bench, 0)
    assert (await resend(bench, 0, to="group"))[0]["topic"] == "%RETRY%g"


async def test_bad_input_is_refused() -> None:
    bench = a_bench()
    await a_dead_letter(bench)
    end = bench.writer.end

    with pytest.raises(BadRequestError):
        await resend(bench, 0, to="elsewhere")
    with pytest.raises(BadRequestError):
        await resend(bench, 0, 0)
    with pytest.raises(QueueNotFoundError):
        await bench.call("resend", group="g", messages=[{"queue": 7, "offset": 0}])
    with pytest.raises(BadRequestError):
        await bench.call("resend", group="g", messages=[a_row(0, topic_id=DEAD)])
    with pytest.raises(TopicNotFoundError):
        await bench.call("resend", group="unknown", messages=[{"queue": 0, "offset": 0}])

    assert bench.writer.end == end


async def test_origin_that_a_producer_put_into_a_delayed_message_means_nothing() -> None:
    """Neither for its retry nor for its dead letter: both name where it was delivered."""
    bench = a_bench()
    send(bench)
    position = bench.writer.end
    forged = encode_batch(
        [b"delayed"] * 2,
        properties=[{names.ORIGIN_MESSAGE_ID: "g1:0:0"}] * 2,
        born_unix_ms=1,
        topic_id=ORDERS,
        queue_id=0,
        sources=[pack_source(0, 0)] * 2,
        flags=Cause.DELAYED,
    )
    bench.append_derived(forged)

    await send_back(bench, a_row(2), a_row(3, delay_level=-1))

    [retry], [dead] = records(made(bench, Cause.RETRIED)), records(made(bench, Cause.DEAD))
    assert retry.properties[names.ORIGIN_MESSAGE_ID] == f"g1:{position:x}:0"
    assert dead.properties[names.ORIGIN_MESSAGE_ID] == f"g1:{position:x}:1"
    assert dead.properties[names.DLQ_ORIGIN_MESSAGE_ID] == f"g1:{position:x}:1"
    await resend(bench, 0)
    [resent] = records(made(bench, Cause.RESENT))
    assert resent.properties[names.ORIGIN_MESSAGE_ID] == f"g1:{position:x}:1"
