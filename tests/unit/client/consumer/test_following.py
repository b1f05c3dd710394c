"""The client's side of fetch sessions, against the broker's: every message once and in order,
whatever is sent, sought, paused, taken away or lost on the way."""

from collections import deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import orjson
import pytest
from tests.support.http.turns import turn
from tests.support.service.fakes import Bench, a_view
from tests.support.service.fetch import send

from paceline.consumer.fetch import server_session
from paceline.consumer.fetch.fetched import FetchedBatch, QueueFetch, Trouble
from paceline.consumer.fetch.fetcher import FETCHES_MAX, FOLLOWS_MAX, FetchSession
from paceline.consumer.fetch.server_session import UnderWay
from paceline.errors import PacelineError, QuotaExceededError, to_problem
from paceline.net.refusals import Refusals
from paceline.net.stream_connection import StreamConnection
from paceline.platform.runtime import ManualClock, SeededRandom
from paceline.queues import QueueKey
from paceline.types import GroupName, QueueId, ReplicaId, TopicId
from paceline.wire.stream import STATUS_ERROR, STATUS_OK, FetchPart, FetchQueue
from paceline_broker.service.fetch.read import Fetched

QUEUES = 12


class Wire(StreamConnection):
    """A connection that is a list of what is on its way, in order, both ways; and the sink."""

    asker = None

    def __init__(self, bench: Bench, session_queues: int = 1000) -> None:
        super().__init__("wire")
        self.bench = bench
        self.session_queues = session_queues
        self.to_broker: deque[Callable[[], None]] = deque()
        self.to_client: deque[Callable[[], None]] = deque()
        self.asked: dict[int, tuple[Any, Any, Any]] = {}
        self.rows: list[list[FetchQueue]] = []
        self.whole: list[int] = []
        self.last = 0

    def _note(self, rest: dict[str, Any]) -> int:
        self.last += 1
        self.asked[self.last] = (rest["on_answer"], rest["on_lost"], rest["context"])
        return self.last

    def follow(
        self, queues: Any, *, sequence: int, wait_ms: int, max_bytes: int, **rest: Any
    ) -> None:
        self.rows.append(list(queues))
        call = partial(
            self.bench.service.fetcher.sessions.follow,
            list(queues),
            sequence=sequence,
            wait_ms=wait_ms,
            max_bytes=max_bytes,
            sink=self,
            request_id=self._note(rest),
        )
        self.to_broker.append(call)

    def begin_fetch(self, queues: Any, *, wait_ms: int, max_bytes: int, **rest: Any) -> None:
        self.whole.append(len(queues))
        self._note(rest)

    def fetched(self, request_id: int, answer: Fetched) -> None:
        body = answer.head() + b"".join(map(bytes, answer.buffers))
        self.to_client.append(partial(self._answer, request_id, STATUS_OK, body))

    def failed(self, request_id: int, error: PacelineError) -> None:
        body = orjson.dumps(to_problem(error))
        self.to_client.append(partial(self._answer, request_id, STATUS_ERROR, body))

    def _answer(self, request_id: int, status: int, body: bytes) -> None:
        on_answer, _, context = self.asked.pop(request_id)
        on_answer(context, status, memoryview(body))

    def move(self, *, is_answer: bool) -> None:
        """One message further, one way."""
        way = self.to_client if is_answer else self.to_broker
        if way:
            way.popleft()()

    def settle(self) -> None:
        while self.to_broker or self.to_client:
            self.move(is_answer=not self.to_broker)

    def lose(self) -> None:
        """The connection breaks."""
        self.to_broker.clear()
        self.to_client.clear()
        self.bench.service.fetcher.cancel(self)
        asked, self.asked = self.asked, {}
        for _, on_lost, context in asked.values():
            on_lost(context)


class Following:
    """A consumer of some queues of one broker."""

    def __init__(self, bench: Bench, *, session_queues: int = 1000, max_bytes: int = 900) -> None:
        self.bench = bench
        self.group = GroupName("g1")
        self.refusals = Refusals(ManualClock())
        self.on_up: Callable[[], None] = lambda: None
        self.connection: Wire | None = Wire(bench, session_queues)
        self.suspected = 0
        self.session = FetchSession(
            self,  # type: ignore[arg-type]
            SeededRandom("following"),
            fetch_bytes_max=max_bytes,
            queue_bytes_max=max_bytes,
            on_batches=self._on_batches,
            on_trouble=self._on_trouble,
        )
        self.queues: dict[int, QueueFetch] = {}
        self.next: dict[int, int] = {}
        """The offset that has to come next of each queue."""
        self.wrong: list[str] = []
        self.troubles: list[tuple[int, Trouble]] = []

    @property
    def wire(self) -> Wire:
        assert self.connection is not None
        return self.connection

    def saw_epoch(self, epoch: int) -> bool:
        return True

    def suspect(self) -> None:
        self.suspected += 1

    def add(self, queue: int, position: int) -> None:
        fetch = QueueFetch(QueueKey(TopicId(1), self.group, QueueId(queue)), position)
        self.queues[queue] = fetch
        self.next[queue] = position
        self.session.add(fetch)

    def settle(self) -> None:
        """What was added is asked for, and everything on its way arrives."""
        self.session.wake()
        self.wire.settle()

    def remove(self, queue: int) -> None:
        self.session.remove(self.queues.pop(queue).key)

    def seek(self, queue: int, position: int) -> None:
        self.queues[queue].seek(position)
        self.next[queue] = position
        self.session.wake()

    def reconnect(self) -> None:
        self.wire.lose()
        self.connection = Wire(self.bench)
        self.on_up()

    def _on_batches(self, queue: QueueFetch, batches: list[FetchedBatch], end: int) -> None:
        number = queue.key.queue_id
        if self.queues.get(number) is not queue:
            self.wrong.append(f"queue {number} is not fetched any more")
            return
        for batch in batches:
            header = batch.view.header
            first = header.base_queue_offset + batch.skip
            if first != self.next[number]:
                self.wrong.append(f"queue {number}: {first} for {self.next[number]}")
            self.next[number] = header.end_queue_offset

    def _on_trouble(self, queue: QueueFetch, trouble: Trouble, part: FetchPart | None) -> None:
        self.troubles.append((queue.key.queue_id, trouble))


def a_bench() -> Bench:
    bench = Bench()
    bench.service.view_changed(a_view(version=2, topics={"wide": QUEUES}))
    return bench


async def test_requests_name_what_changed_and_nothing_else() -> None:
    bench = a_bench()
    following = Following(bench)
    for queue in range(QUEUES):
        following.add(queue, 0)
    following.settle()
    before = len(following.wire.rows)

    send(bench, 7)
    await turn()
    following.settle()

    assert [[row.queue_id for row in rows] for rows in following.wire.rows[before:]] == [[7]]
    assert following.next[7] == 1
    assert following.wire.whole == []
    following.session.close()


async def test_an_answer_to_an_older_ask_is_of_no_use() -> None:
    bench = a_bench()
    following = Following(bench)
    send(bench, 0, count=1)
    send(bench, 0, count=1)
    await turn()
    following.add(0, 0)
    following.session.wake()
    following.wire.move(is_answer=False)  # its answer is on the way
    following.seek(0, 1)
    following.wire.move(is_answer=True)
    assert following.next[0] == 1, "nothing was taken of what came from offset 0"
    following.settle()

    assert (following.next[0], following.wrong) == (2, [])
    following.session.close()


async def test_one_who_is_told_of_an_error_says_everything_anew() -> None:
    bench = a_bench()
    following = Following(bench)
    for queue in range(3):
        following.add(queue, 0)
    following.settle()
    sessions = bench.service.fetcher.sessions
    sessions.end(sessions._by_sink[following.wire], PacelineError("ended"))
    following.settle()
    for fetch in following.queues.values():
        fetch.retry_at = 0.0
    following.session.wake()
    for queue in range(3):
        send(bench, queue)
    await turn()
    following.settle()

    assert (following.next, following.wrong) == ({0: 1, 1: 1, 2: 1}, [])
    assert sessions.queue_count == 3
    following.session.close()


@pytest.mark.parametrize("session_queues", [0, 2])
async def test_where_sessions_are_too_small_fetches_name_their_queues(session_queues: int) -> None:
    following = Following(a_bench(), session_queues=session_queues)
    following.connection, wire = None, following.connection
    for queue in range(3):
        following.add(queue, 0)
    following.connection = wire
    following.session.wake()

    assert following.wire.whole == [3]
    following.session.close()


async def test_a_broker_with_too_many_sessions_is_asked_without() -> None:
    bench = Bench(followed_queues_max=1)
    following = Following(bench)
    for queue in range(2):
        following.add(queue, 0)
    following.settle()
    for fetch in following.queues.values():
        fetch.retry_at = 0.0
    following.session.wake()

    assert following.wire.whole == [2]
    assert bench.service.fetcher.sessions.queue_count == 0
    following.session.close()


async def test_a_user_over_its_quota_is_followed_again_later() -> None:
    """The broker has room for its session: only the user has taken too much."""
    bench = a_bench()
    following = Following(bench)
    following.add(0, 0)
    following.settle()
    sessions = bench.service.fetcher.sessions
    refusal = QuotaExceededError("too much was read", retry_after_ms=1000)
    sessions.end(sessions._by_sink[following.wire], refusal)
    following.settle()
    following.queues[0].retry_at = 0.0
    following.session.wake()
    following.settle()

    assert following.wire.whole == []
    assert sessions.queue_count == 1
    following.session.close()


async def test_requests_under_way_are_bounded() -> None:
    following = Following(a_bench())
    for queue in range(QUEUES):
        following.add(queue, 0)
        following.session.wake()

    assert len(following.wire.asked) == FOLLOWS_MAX
    following.settle()
    assert following.bench.service.fetcher.sessions.queue_count == QUEUES
    assert len(following.wire.asked) <= 2
    following.session.close()


async def test_a_session_keeps_a_request_however_many_fetches_replicas_have() -> None:
    """Without one, what its queues wait for comes late; if the connection is lost then, never."""
    bench = a_bench()
    following = Following(bench)
    following.add(0, 0)
    following.add(1, 0)
    following.settle()
    others = {UnderWay([], following.wire, 1e9, ReplicaId(2)) for _ in range(FETCHES_MAX)}
    following.session._under_way |= others

    send(bench, 0)
    await turn()
    following.wire.settle()
    assert following.next == {0: 1, 1: 0}
    following.reconnect()
    following.session._under_way -= others
    for fetch in following.queues.values():
        fetch.retry_at = 0.0
    following.settle()
    send(bench, 1)
    await turn()
    following.settle()

    assert (following.next, following.wrong) == ({0: 1, 1: 1}, [])
    following.session.close()


async def test_queues_that_go_at_one_time_are_said_in_requests_that_brokers_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_session, "FOLLOW_QUEUES_MAX", 4)
    bench = a_bench()
    following = Following(bench)
    for queue in range(QUEUES):
        following.add(queue, 0)
    following.settle()
    before = len(following.wire.rows)
    for queue in range(1, QUEUES):
        following.remove(queue)
    for _ in range(3):
        send(bench, 0)
        await turn()
        following.settle()

    assert [len(rows) for rows in following.wire.rows[before:]] == [4, 4, 4]
    assert bench.service.fetcher.sessions.queue_count == QUEUES - 9
    assert (following.next[0], following.wrong) == (3, [])
    following.session.close()


async def test_queues_that_are_added_in_a_row_are_asked_for_together() -> None:
    following = Following(a_bench())
    for queue in range(QUEUES):
        following.add(queue, 0)
    assert not following.wire.rows
    await turn()

    assert [len(rows) for rows in following.wire.rows] == [QUEUES]
    following.session.close()


@pytest.mark.parametrize("seed", range(40))
async def test_whatever_happens_every_message_comes_once_and_in_order(seed: int) -> None:
    random = Random(f"following/{seed}")
    bench = a_bench()
    following = Following(bench)
    ends = dict.fromkeys(range(QUEUES), 0)
    for queue in range(QUEUES):
        following.add(queue, 0)
    for _ in range(600):
        queue = random.randrange(QUEUES)
        fetch = following.queues.get(queue)
        match random.randrange(24):
            case 0 | 1 | 2 | 3 | 4:
                count = random.randint(1, 3)
                send(bench, queue, size=random.randint(1, 300), count=count)
                ends[queue] += count
            case 5:
                if fetch is not None:
                    fetch.has_room = not fetch.has_room
                    following.session.wake()
            case 6:
                if fetch is None:
                    following.add(queue, random.randint(0, ends[queue]))
                else:
                    following.remove(queue)
            case 7:
                if fetch is not None:
                    following.seek(queue, random.randint(0, ends[queue]))
            case 8:
                if random.random() < 0.2:
                    following.reconnect()
                elif random.random() < 0.2:
                    bench.service.role_changed()
            case 9:
                await turn()
            case other:
                following.wire.move(is_answer=other % 2 == 0)
        assert not following.wrong
    for fetch in following.queues.values():
        fetch.has_room, fetch.retry_at = True, 0.0
    await turn()
    following.session.wake()
    following.settle()
    await turn()
    following.settle()

    assert not following.wrong
    assert not following.troubles
    assert {queue: following.next[queue] for queue in following.queues} == {
        queue: ends[queue] for queue in following.queues
    }
    following.session.close()
