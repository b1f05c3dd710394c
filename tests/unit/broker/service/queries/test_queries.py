"""Single messages found again: by id, key, unique key, time; and who is past them."""

import asyncio
from typing import Any

import pytest
from tests.support.http.door import a_batch
from tests.support.http.turns import turn
from tests.support.service.fakes import Bench
from tests.support.service.send import Answers

from paceline.errors import (
    BadRequestError,
    MessageNotFoundError,
    NotMasterError,
    NotYetAvailableError,
)
from paceline.records.decode import BatchView
from paceline.records.encode import encode_batch
from paceline.records.header import Cause, Kind, pack_source, parse_header, stamp
from paceline.types import PhysicalOffset
from paceline.wire import properties as names
from paceline_broker.service.queries import queries


def send(bench: Bench, *bodies: bytes, **fields: Any) -> int:
    """Store a batch; its position."""
    return store(bench, a_batch(*bodies, **fields))


def store(bench: Bench, batch: bytes) -> int:
    bench.service.sender.send(batch, Answers(), 0)
    bench.writer.confirm_all()
    return bench.log.views()[-1].header.physical_offset


async def search(bench: Bench, **fields: Any) -> list[tuple[int, int]]:
    """(queue, offset) of what is found, however many answers it takes."""
    found: list[tuple[int, int]] = []
    after = None
    while True:
        more: dict[str, Any] = {} if after is None else {"after": after}
        answer = await bench.call("search", topic="orders", **fields, **more)
        found += [(row["queue"], row["offset"]) for row in answer["messages"]]
        after = answer["after"]
        if after is None:
            return found


async def test_a_message_is_found_by_its_id_and_says_the_same_id() -> None:
    bench = Bench()
    position = send(
        bench, b"a", b"b", keys=["k", "l"], tags=["t", None], producer_id=9, base_sequence=0
    )

    answer = await bench.call("message", id=f"g1:{position:x}:1")

    message = answer["message"]
    assert (message["topic"], message["queue"], message["offset"]) == ("orders", 0, 1)
    assert (message["body"], message["key"], message["tag"]) == ("b", "l", None)
    assert message["message_id"] == f"g1:{position:x}:1"
    assert message["unique_key"] == f"{9:016x}:0:1:0:1"
    assert message["cause"] == 0


async def test_a_place_inside_a_batch_is_none_whatever_its_bytes_say() -> None:
    """A body may hold the very bytes of a batch of that place."""
    bench = Bench()
    inner = encode_batch([b"forged"], born_unix_ms=1, topic_id=1, queue_id=0)
    first = send(bench, inner, b"x")
    place = bytes(bench.log.batches[-1]).index(inner) + bench.log.end
    head = stamp(inner, physical_offset=place, base_queue_offset=0, store_unix_ms=1, master_epoch=1)
    second = send(bench, head + inner[96:], b"x")
    assert parse_header(bench.log.read(PhysicalOffset(place), 96)).physical_offset == place

    for position in (first, second):
        await bench.call("message", id=f"g1:{position:x}:0")
    for at in (place, place - 8, place + 8):
        with pytest.raises(MessageNotFoundError):
            await bench.call("message", id=f"g1:{at:x}:0")


async def test_what_is_not_there_or_not_here_is_said() -> None:
    bench = Bench()
    position = send(bench, b"a")

    with pytest.raises(MessageNotFoundError, match="deleted, or never was"):
        await bench.call("message", id=f"g1:{position:x}:7")
    end = bench.log.end
    with pytest.raises(MessageNotFoundError):
        await bench.call("message", id=f"g1:{end:x}:0")
    bench.role.become_replica()
    with pytest.raises(NotYetAvailableError):  # a master may have it (R3)
        await bench.call("message", id=f"g1:{end:x}:0")
    with pytest.raises(NotMasterError) as elsewhere:
        await bench.call("message", id="g2:0:0")
    assert elsewhere.value.details["group"] == "g2"
    with pytest.raises(BadRequestError, match="a message id reads"):
        await bench.call("message", id="../etc")


async def test_a_message_in_a_damaged_place_is_not_denied() -> None:
    """R24, R3: its header cannot be read, and the batch is being mended."""
    bench = Bench()
    position = send(bench, b"a")
    batch = bytearray(bench.log.batches[-1])
    batch[8] ^= 1
    bench.log.batches[-1] = bytes(batch)
    bench.log.bad.add(PhysicalOffset(position))

    with pytest.raises(NotYetAvailableError, match="damaged"):
        await bench.call("message", id=f"g1:{position:x}:0")


async def test_a_search_denies_nothing_that_was_acknowledged() -> None:
    """R3, R4: a new master knows all of it as confirmed once its epoch is open."""
    bench = Bench()
    send(bench, b"a", keys=["k"])
    bench.writer.is_open = False
    with pytest.raises(NotYetAvailableError, match="is not open yet"):
        await bench.call("search", topic="orders", key="k")
    bench.writer.is_open = True

    assert await search(bench, key="k") == [(0, 0)]
    assert bench.writer.rounds == 1
    bench.role.become_replica()
    assert await search(bench, key="k") == [(0, 0)]


async def test_what_waits_is_found_by_nobody() -> None:
    """INV-8: half messages are not there yet."""
    bench = Bench()
    half = a_batch(b"half", keys=["k"], kind=Kind.HALF, properties=[{names.PRODUCER_GROUP: "p"}])
    bench.service.sender.send(half, Answers(), 0)
    bench.writer.confirm_all()
    position = bench.log.views()[-1].header.physical_offset
    assert bench.log.views()[-1].header.kind == Kind.HALF

    assert await search(bench, key="k") == []
    with pytest.raises(MessageNotFoundError):
        await bench.call("message", id=f"g1:{position:x}:0")


async def test_messages_are_found_by_their_exact_key_in_all_queues() -> None:
    bench = Bench()
    send(bench, b"0", b"1", keys=["red", "redder"])
    send(bench, b"2", b"3")
    send(bench, b"4", b"5", keys=["re", "d"])
    send(bench, b"6", keys=["red"], queue_id=1)

    assert await search(bench, key="red") == [(0, 0), (1, 0)]
    assert await search(bench, key="blue") == []


async def test_a_unique_key_finds_the_message_and_what_was_made_of_it() -> None:
    bench = Bench()
    unique = f"{9:016x}:0:1:0:11"
    send(bench, b"a", b"b", producer_id=9, base_sequence=0)
    send(bench, *[b"c"] * 10, producer_id=9, base_sequence=2)
    derived = encode_batch(
        [b"other", b"b"],
        properties=[{names.UNIQ_KEY: "0000000000000009:0:1:0:1"}, {names.UNIQ_KEY: unique}],
        born_unix_ms=1,
        topic_id=1,
        queue_id=1,
        sources=[pack_source(0, 0), pack_source(0, 1)],
        flags=Cause.RETRIED,
    )
    bench.append_derived(derived)
    bench.writer.confirm_all()

    assert await search(bench, unique_key=unique) == [(0, 11), (1, 1)]
    assert await search(bench, unique_key=f"{8:016x}:0:1:0:11") == []


async def test_a_message_without_a_producer_has_its_place_as_unique_key() -> None:
    bench = Bench()
    position = send(bench, b"a", b"b")
    send(bench, b"c")

    assert await search(bench, unique_key=f"g1:{position:x}:1") == [(0, 1)]


async def test_a_name_that_a_client_gave_finds_the_message_and_what_was_made_of_it() -> None:
    bench = Bench()
    unique = "01AA00BB00CC00DD00EE00FF00112233445566"
    named = [{names.UNIQ_KEY: unique}]
    send(bench, b"a", b"b", producer_id=9, base_sequence=0)
    send(bench, b"c", producer_id=9, base_sequence=2, properties=named)
    derived = encode_batch(
        [b"c"],
        properties=named,
        born_unix_ms=1,
        topic_id=1,
        queue_id=1,
        sources=[pack_source(0, 0)],
        flags=Cause.RETRIED,
    )
    bench.append_derived(derived)
    bench.writer.confirm_all()

    assert await search(bench, unique_key=unique) == [(0, 2), (1, 0)]
    assert await search(bench, unique_key="nonsense") == []
    answer = await bench.call("search", topic="orders", unique_key=unique)
    assert {row["unique_key"] for row in answer["messages"]} == {unique}


async def test_a_message_with_several_keys_is_found_by_each() -> None:
    bench = Bench()
    several = [{names.KEYS: "red blue"}, {names.KEYS: "blueish green"}]
    send(bench, b"a", b"b", keys=["red", "blueish"], properties=several)

    assert await search(bench, key="red") == [(0, 0)]
    assert await search(bench, key="blue") == [(0, 0)]
    assert await search(bench, key="green") == [(0, 1)]
    assert await search(bench, key="yellow") == []


async def test_messages_are_found_by_the_time_of_their_storing() -> None:
    bench = Bench()
    began = bench.clock.unix_ms()
    for body in (b"a", b"b", b"c"):
        send(bench, body)
        bench.clock.advance(100)

    assert await search(bench, begin_unix_ms=began + 100, end_unix_ms=began + 100) == [(0, 1)]
    assert await search(bench, begin_unix_ms=began + 1) == [(0, 1), (0, 2)]
    assert await search(bench, end_unix_ms=began) == [(0, 0)]


async def test_messages_are_found_by_the_time_at_which_they_were_born() -> None:
    """Whenever they were stored, and in batches in which clocks went back."""
    bench = Bench()
    bodies = [b"a", b"b", b"c"]
    store(bench, encode_batch(bodies, born_unix_ms=[30, 10, 20], topic_id=1, queue_id=0))
    bench.clock.advance(10**9)
    store(bench, encode_batch([b"d"], keys=["k"], born_unix_ms=20, topic_id=1, queue_id=0))

    between = await search(bench, born_begin_unix_ms=20, born_end_unix_ms=25)
    assert between == [(0, 2), (0, 3)]
    assert await search(bench, born_end_unix_ms=10) == [(0, 1)]
    assert await search(bench, born_begin_unix_ms=20, key="k") == [(0, 3)]
    with pytest.raises(BadRequestError, match="born_begin_unix_ms is after born_end_unix_ms"):
        await search(bench, born_begin_unix_ms=2, born_end_unix_ms=1)


async def test_a_long_search_says_where_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    for queue_id in (0, 1):
        for _ in range(3):
            send(bench, b"a", b"b", keys=["k", "k"], queue_id=queue_id)

    first = await bench.call("search", topic="orders", key="k", max=3)
    everything = await search(bench, key="k", max=3)
    monkeypatch.setattr(queries, "SEARCH_MS", 0)
    slowly = await bench.call("search", topic="orders", key="k")

    assert [row["offset"] for row in first["messages"]] == [0, 1, 2]
    assert first["after"] == "0:3"
    assert everything == [(queue, offset) for queue in (0, 1) for offset in range(6)]
    assert len(slowly["messages"]) < 12
    assert slowly["after"] is not None


async def test_one_message_of_a_large_batch_is_read_without_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    position = send(
        bench,
        *[b"%d" % number for number in range(1000)],
        keys=["k" if number == 7 else f"other-{number}" for number in range(1000)],
        tags=[f"tag-{number}" if number else None for number in range(1000)],
        properties=[{"number": str(number)} for number in range(1000)],
    )

    def decoded(view: BatchView) -> list[bytes]:
        raise AssertionError("all bodies or properties were decoded")

    monkeypatch.setattr(BatchView, "bodies", decoded)
    monkeypatch.setattr(BatchView, "properties", decoded)
    first, seventh = [
        (await bench.call("message", id=f"g1:{position:x}:{number}"))["message"]
        for number in (0, 7)
    ]
    by_key = (await bench.call("search", topic="orders", key="k"))["messages"]

    assert (first["body"], first["tag"], first["offset"]) == ("0", None, 0)
    assert (seventh["body"], seventh["tag"], seventh["key"]) == ("7", "tag-7", "k")
    assert seventh["properties"] == {"number": "7"}
    assert [row["message_id"] for row in by_key] == [seventh["message_id"]]


async def test_others_have_their_turn_while_a_search_finds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queries, "TURN_BYTES", 1)
    bench = Bench()
    for _ in range(20):
        send(bench, b"a")
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await turn()

    beside = asyncio.get_running_loop().create_task(others())
    assert await search(bench, key="k") == []
    beside.cancel()

    assert turns >= 9, "one takes two rounds of the loop"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"key": "a", "unique_key": "g1:0:0"}, "key"),
        ({"begin_unix_ms": 5, "end_unix_ms": 4}, "begin_unix_ms"),
        ({"after": "70000:1"}, "after"),
        ({"after": "x"}, "after"),
        ({"max": 65}, "max"),
        ({"wild": 1}, "wild"),
    ],
)
async def test_a_search_that_makes_no_sense_is_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(BadRequestError) as refused:
        await Bench().call("search", topic="orders", **fields)
    assert refused.value.details["field"] == field


async def test_groups_say_whether_they_are_past_a_message() -> None:
    bench = Bench()
    send(bench, b"a", b"b", b"c")
    for group, offset in (("ahead", 2), ("behind", 1)):
        row = {"topic": "orders", "queue": 0, "offset": offset}
        await bench.call("commit", group=group, offsets=[row])

    answer = await bench.call("track", topic="orders", queue=0, offset=1)

    assert answer["groups"] == [
        {"group": "ahead", "offset": 2, "is_done": True},
        {"group": "behind", "offset": 1, "is_done": False},
    ]
