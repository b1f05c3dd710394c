"""One answer carries many queues: what is wrong with one of them is no matter of the others."""

from collections.abc import Callable
from typing import Any, cast

from tests.support.client.consumers import eventually

from paceline.consumer.fetch.fetched import FetchedBatch, QueueFetch, Trouble
from paceline.consumer.fetch.fetcher import FetchSession
from paceline.errors import PeerError
from paceline.filters import make_filter
from paceline.net.refusals import Refusals
from paceline.platform.runtime import ManualClock, SeededRandom
from paceline.queues import QueueKey
from paceline.records.encode import encode_batch
from paceline.records.header import HEADER_BYTES, stamp
from paceline.types import GroupName, QueueId, TopicId
from paceline.wire.calls.pop import Filter as FilterCall
from paceline.wire.calls.pop import FilterNumber
from paceline.wire.stream import FETCH_ANSWER, FETCH_PART, STATUS_OK, FetchCode, FetchQueue

TOPIC = TopicId(1)


class Asked:
    """One fetch under way, to be answered by hand."""

    def __init__(
        self,
        rows: list[FetchQueue],
        answer: Callable[[bytes], None],
        lose: Callable[[], None],
    ) -> None:
        self.rows = rows
        self.answer_whole = answer
        self.lose = lose

    def answer(self, *batches: bytes) -> None:
        """Bytes of each queue that was asked for, in that order."""
        head = FETCH_ANSWER.pack(1, len(batches), 0)
        parts = [
            FETCH_PART.pack(TOPIC, row.queue_id, FetchCode.OK, 0, 10, len(data), 0, 0)
            for row, data in zip(self.rows, batches, strict=True)
        ]
        self.answer_whole(b"".join((head, *parts, *batches)))


class FakeLink:
    """A master that answers when the test says so; `MasterLink` and its connection."""

    def __init__(self) -> None:
        self.group = GroupName("g1")
        self.refusals = Refusals(ManualClock())
        self.connection: FakeLink | None = self
        self.on_up: Callable[[], None] = lambda: None
        self.asked: list[Asked] = []
        self.suspected = 0
        self.session_queues = 0

    def saw_epoch(self, epoch: int) -> bool:
        return True

    def suspect(self) -> None:
        self.suspected += 1

    def begin_fetch(
        self, rows: list[FetchQueue], *, on_answer: Any, context: Any, **rest: Any
    ) -> None:
        def answer(body: bytes) -> None:
            on_answer(context, STATUS_OK, memoryview(body))

        self.asked.append(Asked(rows, answer, lambda: rest["on_lost"](context)))


class Fetching:
    """A session with two queues, and what it handed over."""

    def __init__(self) -> None:
        self.link = FakeLink()
        self.offsets: dict[int, list[int]] = {0: [], 1: []}
        self.troubles: list[tuple[int, Trouble]] = []
        self.session = FetchSession(
            cast(Any, self.link),
            SeededRandom("fetch"),
            fetch_bytes_max=1 << 20,
            queue_bytes_max=1 << 20,
            on_batches=self._on_batches,
            on_trouble=lambda queue, trouble, part: self.troubles.append(
                (queue.key.queue_id, trouble)
            ),
        )
        self.queues = [QueueFetch(QueueKey(TOPIC, GroupName("g1"), QueueId(n)), 0) for n in (0, 1)]
        self.link.connection = None  # so that one fetch asks for both
        for queue in self.queues:
            self.session.add(queue)
        self.link.connection = self.link
        self.session.wake()

    def _on_batches(self, queue: QueueFetch, batches: list[FetchedBatch], end: int) -> None:
        for batch in batches:
            header = batch.view.header
            first = header.base_queue_offset + batch.skip
            self.offsets[queue.key.queue_id] += range(first, header.end_queue_offset)


def a_batch(queue: int, base: int) -> bytes:
    """Two messages, as a master has stored them."""
    batch = encode_batch([b"one", b"two"], born_unix_ms=1, topic_id=TOPIC, queue_id=queue)
    head = stamp(batch, physical_offset=0, base_queue_offset=base, store_unix_ms=1, master_epoch=1)
    return head + batch[HEADER_BYTES:]


def with_flip(batch: bytes, at: int) -> bytes:
    return batch[:at] + bytes([batch[at] ^ 1]) + batch[at + 1 :]


async def test_a_damaged_header_of_one_queue_skips_nothing_of_another() -> None:
    fetching = Fetching()
    [asked] = fetching.link.asked

    asked.answer(a_batch(0, 0), with_flip(a_batch(1, 0), 40))

    assert fetching.offsets == {0: [0, 1], 1: []}
    assert fetching.troubles == [(1, Trouble.CORRUPT)]
    assert [queue.position for queue in fetching.queues] == [2, 0]
    assert fetching.link.suspected == 1  # the bytes may be sound on another broker
    fetching.session.close()


async def test_what_came_before_a_damaged_header_is_handed_over_and_asked_for_no_more() -> None:
    fetching = Fetching()
    [asked] = fetching.link.asked

    asked.answer(b"", a_batch(1, 0) + with_flip(a_batch(1, 2), 40))

    assert fetching.offsets == {0: [], 1: [0, 1]}
    assert fetching.troubles == [(1, Trouble.CORRUPT)]
    assert fetching.queues[1].position == 2
    fetching.session.close()


async def test_a_damaged_payload_keeps_what_came_before_it() -> None:
    fetching = Fetching()
    [asked] = fetching.link.asked

    asked.answer(a_batch(0, 0), a_batch(1, 0) + with_flip(a_batch(1, 2), HEADER_BYTES + 8))

    assert fetching.offsets == {0: [0, 1], 1: [0, 1]}
    assert fetching.troubles == [(1, Trouble.CORRUPT)]
    assert fetching.queues[1].position == 2
    fetching.session.close()


async def test_an_answer_with_bytes_of_another_place_moves_no_queue() -> None:
    fetching = Fetching()
    [asked] = fetching.link.asked

    asked.answer(a_batch(0, 0), a_batch(1, 6))

    assert fetching.offsets == {0: [], 1: []}
    assert [queue.position for queue in fetching.queues] == [0, 0]
    fetching.session.close()


# -- filters --------------------------------------------------------------------------------------


class FilteringLink(FakeLink):
    """Gives every filter the next number, or refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[FilterCall] = []
        self.is_refusing = False

    async def call(self, request: FilterCall, *, timeout_ms: int) -> Any:
        self.calls.append(request)
        if self.is_refusing:
            raise PeerError("busy")
        return FilterNumber(10 + len(self.calls)), None


class Filtering:
    """A session with one queue of which only "red" is wanted."""

    def __init__(self) -> None:
        self.link = FilteringLink()
        self.found: list[tuple[list[int], int]] = []
        self.session = FetchSession(
            cast(Any, self.link),
            SeededRandom("fetch"),
            fetch_bytes_max=1 << 20,
            queue_bytes_max=1 << 20,
            on_batches=lambda queue, batches, end: self.found.append(
                ([batch.view.header.base_queue_offset for batch in batches], end)
            ),
            on_trouble=lambda queue, trouble, part: None,
        )
        key = QueueKey(TOPIC, GroupName("g1"), QueueId(0))
        self.queue = QueueFetch(key, 0, make_filter("TAG", "red"))
        self.session.add(self.queue)

    def answer(self, *batches: bytes, code: int = FetchCode.OK, next_offset: int = 0) -> None:
        asked = self.link.asked.pop()
        data = b"".join(batches)
        part = FETCH_PART.pack(TOPIC, 0, code, 0, 10, len(data), 0, next_offset)
        asked.answer_whole(FETCH_ANSWER.pack(1, 1, 0) + part + data)


async def test_a_filter_is_registered_before_the_first_fetch_that_names_it() -> None:
    filtering = Filtering()
    assert filtering.link.asked == []

    await eventually(lambda: bool(filtering.link.asked))

    assert filtering.link.calls == [FilterCall(type="TAG", expression="red")]
    assert filtering.link.asked[0].rows == [FetchQueue(TOPIC, 0, 0, 1 << 20, 11)]
    filtering.session.close()


async def test_what_was_passed_over_moves_the_position() -> None:
    filtering = Filtering()
    await eventually(lambda: bool(filtering.link.asked))

    filtering.answer(a_batch(0, 4), next_offset=9)  # 0 to 3 and 6 to 8 are not wanted
    await eventually(lambda: bool(filtering.link.asked))
    assert filtering.link.asked[0].rows[0].offset == 9
    filtering.answer(next_offset=12)

    assert filtering.found == [([4], 9), ([], 12)]
    assert filtering.queue.position == 12
    filtering.session.close()


async def test_a_broker_that_has_forgotten_a_filter_is_told_it_again() -> None:
    filtering = Filtering()
    await eventually(lambda: bool(filtering.link.asked))

    filtering.answer(code=FetchCode.UNKNOWN_FILTER)
    await eventually(lambda: bool(filtering.link.asked))

    assert len(filtering.link.calls) == 2
    assert filtering.link.asked[0].rows[0].filter_id == 12
    filtering.session.close()


async def test_a_new_connection_is_told_the_filters_anew() -> None:
    filtering = Filtering()
    await eventually(lambda: bool(filtering.link.asked))

    filtering.link.asked.pop().lose()
    filtering.link.on_up()
    await eventually(lambda: bool(filtering.link.asked))

    assert filtering.link.asked[0].rows[0].filter_id == 12
    filtering.session.close()


async def test_a_registration_that_fails_is_tried_again() -> None:
    filtering = Filtering()
    filtering.link.is_refusing = True
    await eventually(lambda: len(filtering.link.calls) >= 2)

    filtering.link.is_refusing = False
    await eventually(lambda: bool(filtering.link.asked))
    filtering.session.close()
