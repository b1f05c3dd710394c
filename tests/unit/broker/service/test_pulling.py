"""Pulls of JSON messages: limits, filters, and what one step decodes."""

from collections.abc import Iterable
from typing import Any

import pytest
from tests.support.http.door import a_door
from tests.support.service.fakes import until

from paceline.filters import TagFilter, make_filter
from paceline.records import decode
from paceline.records.decode import BatchView
from paceline.records.encode import encode_batch
from paceline.records.header import HEADER_BYTES, RECORDS_MAX, Codec, stamp
from paceline.types import QueueOffset
from paceline.wire.http import CONTROLS_FROM_BYTES, PullRequest, message_to_json
from paceline_broker.service.fetch.filters import LOOK_COST_MAX, STEP_COST
from paceline_broker.service.pulling import PIECE_RECORDS, pulled_messages


def pulled(
    batches: Iterable[BatchView], request: PullRequest
) -> tuple[list[dict[str, Any]], QueueOffset]:
    steps = pulled_messages(batches, request)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: tuple[list[dict[str, Any]], QueueOffset] = end.value
            return found


def a_view(base: int, bodies: list[bytes], tags: list[str | None]) -> BatchView:
    batch = encode_batch(bodies, tags=tags, born_unix_ms=5, topic_id=1, queue_id=0)
    header = stamp(
        batch, physical_offset=0, base_queue_offset=base, store_unix_ms=9, master_epoch=1
    )
    return BatchView(header + batch[HEADER_BYTES:])


def two_batches() -> list[BatchView]:
    return [
        a_view(10, [b"a", b"b", b"\xff"], ["x", None, "y"]),
        a_view(13, [b"d" * 100, b"e"], [None, "x"]),
    ]


def test_pulled_messages_begin_at_the_asked_offset() -> None:
    messages, next_offset = pulled(two_batches(), PullRequest(offset=QueueOffset(12)))

    assert messages[0] == {
        "offset": 12, "body_base64": "/w==", "key": None, "tag": "y", "properties": {},
        "born_unix_ms": 5, "store_unix_ms": 9,
    }  # fmt: skip
    assert [message["offset"] for message in messages] == [12, 13, 14]
    assert messages[2]["body"] == "e"
    assert next_offset == 15


def test_pulled_messages_stop_at_their_limits_and_lose_none() -> None:
    by_count = PullRequest(offset=QueueOffset(10), max_messages=2)
    by_bytes = PullRequest(offset=QueueOffset(10), max_bytes=50)
    too_small = PullRequest(offset=QueueOffset(13), max_bytes=1)

    assert [row["offset"] for row in pulled(two_batches(), by_count)[0]] == [10, 11]
    assert pulled(two_batches(), by_count)[1] == 12
    assert [row["offset"] for row in pulled(two_batches(), by_bytes)[0]] == [10, 11, 12]
    assert pulled(two_batches(), by_bytes)[1] == 13
    assert [row["offset"] for row in pulled(two_batches(), too_small)[0]] == [13]


def test_messages_of_other_tags_are_passed_over_and_not_offered_again() -> None:
    of_x = PullRequest(offset=QueueOffset(10), wanted=TagFilter(["x"]))
    of_none = PullRequest(offset=QueueOffset(10), wanted=TagFilter(["z"]))

    messages, next_offset = pulled(two_batches(), of_x)

    assert ([message["offset"] for message in messages], next_offset) == ([10, 14], 15)
    assert pulled(two_batches(), of_none) == ([], 15)
    assert pulled([], of_none) == ([], 10)


def a_large_view(**more: Any) -> BatchView:
    given: dict[str, Any] = {"properties": [{"a": "1"}] * RECORDS_MAX, **more}
    return BatchView(
        encode_batch(
            [b""] * RECORDS_MAX,
            born_unix_ms=1,
            topic_id=1,
            queue_id=0,
            codec=Codec.ZSTD,
            **given,
        )
    )


def test_one_message_of_many_decodes_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[int] = []
    parse = decode.parse_properties

    def counted(documents: list[bytes]) -> list[dict[str, str]]:
        parsed.append(len(documents))
        return parse(documents)

    monkeypatch.setattr(decode, "parse_properties", counted)
    request = PullRequest(offset=QueueOffset(60_000), max_messages=1)

    [message], next_offset = pulled([a_large_view()], request)

    assert (message["offset"], next_offset) == (60_000, 60_001)
    assert parsed == [PIECE_RECORDS]


def test_a_look_is_bounded_and_ends_in_the_middle_of_a_batch() -> None:
    wanted = make_filter("SQL92", " OR ".join(f"a = '{number}'" for number in range(2, 52)))
    view = a_large_view()
    looked: list[int] = []
    offset = 0
    while offset < RECORDS_MAX:
        rows, next_offset = pulled([view], PullRequest(offset=QueueOffset(offset), wanted=wanted))
        assert rows == []
        looked.append(next_offset - offset)
        offset = next_offset

    assert sum(looked) == RECORDS_MAX
    assert max(looked) * wanted.terms <= LOOK_COST_MAX + STEP_COST


def test_texts_count_for_the_size_of_an_answer() -> None:
    view = BatchView(
        encode_batch(
            [b""] * 100,
            properties=[{"a": "x" * 30_000}] * 100,
            born_unix_ms=1,
            topic_id=1,
            queue_id=0,
        )
    )
    rows, next_offset = pulled([view], PullRequest(offset=QueueOffset(0), max_bytes=100_000))
    assert len(rows) == next_offset == 3


def test_a_large_body_of_control_characters_is_not_six_times_its_size() -> None:
    def shown(body: bytes) -> str:
        row = {"body": body, "queue_offset": 0, "tag": ""}
        return next(iter({"body", "body_base64"} & message_to_json(row, 1).keys()))

    assert shown(bytes(CONTROLS_FROM_BYTES)) == "body"
    assert shown(bytes(CONTROLS_FROM_BYTES + 1)) == "body_base64"
    assert shown(b"a line\r\n\t" * CONTROLS_FROM_BYTES) == "body"


async def test_a_filter_over_a_small_batch_of_many_records_lets_others_go_on() -> None:
    """190 KB stored and one GET: 28 s of the loop, before."""
    async with a_door() as door:
        view = a_large_view()
        door.service.sender.send(view.raw.tobytes(), Sent(), 1)
        door.finish_work()
        await until(lambda: door.log.confirm == door.log.end)
        before = door.service.work.steps
        query = "%20OR%20".join(f"a={number}" for number in range(2, 52))
        path = "/v1/topics/orders/queues/0/messages?offset=0&filter_type=SQL92&filter="

        status, answer = await door.ask("GET", path + query)

        assert (status, answer["messages"]) == (200, [])
        assert 0 < answer["next_offset"] < RECORDS_MAX
        assert door.service.work.steps - before >= LOOK_COST_MAX // STEP_COST // 2
        status, _ = await door.ask("GET", path + query + "%20OR%20a=1" * 20)
        assert status == 400


class Sent:
    """A sink that does not listen."""

    def produced(self, request_id: int, answer: Any) -> None: ...

    def failed(self, request_id: int, error: Exception) -> None:
        raise error
