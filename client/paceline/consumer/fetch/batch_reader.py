"""Reading messages by their place: ranges of queues, from the master of their broker group.

A broker answers with whole batches, of which a range is often a part, and the next ranges lie
behind it: what was decoded of the last answers is kept, up to a bound.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from paceline.consumer.queues.segments import SegmentBook
from paceline.errors import CorruptLogError, DeadlineError, OutcomeUnknownError, PacelineError
from paceline.message import ReceivedMessage, received_messages
from paceline.net.backoff import Backoff
from paceline.net.cluster import BrokerConnection, Cluster
from paceline.net.group_links import PASSING, GroupLinks
from paceline.net.stream_connection import FetchAnswer, error_of, parse_fetch_answer
from paceline.platform.runtime import pause
from paceline.queues import QueueKey
from paceline.records.decode import BatchView
from paceline.types import GroupName, QueueId, TopicId
from paceline.wire.stream import STATUS_OK, FetchCode, FetchPart, FetchQueue

log = logging.getLogger("paceline.client")

QUEUE_BYTES = 256 * 1024
"""Of one queue in one answer; the first always brings a whole batch."""
ANSWER_BYTES = 4 * 1024 * 1024
_ANSWER_TIMEOUT_MS = 5_000


class Range(NamedTuple):
    """Messages [first, end) of a queue."""

    topic_id: int
    queue_id: int
    first: int
    end: int


class _Kept(NamedTuple):
    """Consecutive messages of a queue, of one answer."""

    messages: list[ReceivedMessage]
    size_bytes: int

    def of(self, first: int, end: int) -> list[ReceivedMessage]:
        """Those of [first, end) that follow `first` without a gap."""
        start = self.messages[0].queue_offset if self.messages else end
        if not start <= first < start + len(self.messages):
            return []
        return self.messages[first - start : end - start]


class BatchReader:
    """Owned by one consumer; all calls on its event loop."""

    def __init__(self, cluster: Cluster, links: GroupLinks, *, kept_bytes_max: int) -> None:
        self._cluster = cluster
        self._links = links
        self._kept_bytes_max = kept_bytes_max
        self._kept: OrderedDict[tuple[GroupName, int, int], _Kept] = OrderedDict()
        self._kept_bytes = 0
        self._fetching: dict[tuple[GroupName, int, int], asyncio.Future[None]] = {}
        """Queues that are read now: whoever wants messages of one waits for what comes."""
        self._book = SegmentBook(lambda: cluster.view)

    async def read(
        self, group: GroupName, ranges: Sequence[Range], *, timeout_ms: int
    ) -> list[list[ReceivedMessage]]:
        """The messages of each range, in order; what was deleted meanwhile is missing.

        DeadlineError when that does not succeed in time.
        """
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        backoff = Backoff(self._cluster.random, first_ms=10)
        found: list[list[ReceivedMessage]] = [[] for _ in ranges]
        left = list(ranges)
        while missing := self._take_kept(group, left, found):
            left_ms = (deadline - asyncio.get_running_loop().time()) * 1000
            if left_ms <= 0:
                raise DeadlineError(f"messages of group {group} were not readable in time")
            queues = [(group, row.topic_id, row.queue_id) for row in missing]
            other = next((self._fetching[at] for at in queues if at in self._fetching), None)
            if other is not None:  # what it brings may be enough for both
                await asyncio.wait([other], timeout=left_ms / 1000)
                continue
            fetched: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._fetching.update(dict.fromkeys(queues, fetched))
            try:
                has_helped = self._keep(group, await self._fetch(group, missing, left_ms), left)
            except PASSING as error:
                log.debug("read_failed", extra={"group": group, "error": error.message})
                has_helped = False
            finally:
                for at in dict.fromkeys(queues):
                    del self._fetching[at]
                fetched.set_result(None)
            if not has_helped:
                await pause(min(backoff.next_ms(), left_ms))  # not readable there yet
        return found

    def _take_kept(
        self, group: GroupName, left: list[Range], found: list[list[ReceivedMessage]]
    ) -> list[Range]:
        """Move what is kept to `found`; what is still missing."""
        for index, (topic_id, queue_id, first, end) in enumerate(left):
            kept = self._kept.get((group, topic_id, queue_id))
            if kept is None or first >= end:
                continue
            messages = kept.of(first, end)
            found[index] += messages
            left[index] = Range(topic_id, queue_id, first + len(messages), end)
        return [row for row in left if row.first < row.end]

    async def _fetch(self, group: GroupName, missing: list[Range], left_ms: float) -> FetchAnswer:
        link = self._links.link(group)
        connection = await link.wait_up(timeout_ms=left_ms)
        lowest: dict[tuple[int, int], int] = {}  # a queue is asked for once at a time
        for topic_id, queue_id, first, _ in missing:
            key = (topic_id, queue_id)
            lowest[key] = min(first, lowest.get(key, first))
        rows = [FetchQueue(*key, first, QUEUE_BYTES) for key, first in lowest.items()]
        try:
            answer = await fetched_once(connection, rows, min(left_ms, _ANSWER_TIMEOUT_MS))
        except DeadlineError:
            link.suspect()
            raise
        if not link.saw_epoch(answer.master_epoch):
            raise OutcomeUnknownError(f"an answer of epoch {answer.master_epoch}, which has ended")
        return answer

    def _keep(self, group: GroupName, answer: FetchAnswer, left: list[Range]) -> bool:
        """Keep what came; False if nothing of the answer helps."""
        has_helped = False
        for part, data in answer.parts:
            if part.code == FetchCode.OFFSET_OUT_OF_RANGE or part.code == FetchCode.UNKNOWN_QUEUE:
                _pass_over(part, left)
                has_helped = True
            elif part.size and part.code == FetchCode.OK:
                self._keep_part(group, part, data)
                has_helped = True
        return has_helped

    def _keep_part(self, group: GroupName, part: FetchPart, data: memoryview) -> None:
        topic = self._cluster.topic_name(TopicId(part.topic_id)) or ""
        queue = QueueKey(TopicId(part.topic_id), group, QueueId(part.queue_id))
        place = self._book.place_of(queue)
        messages: list[ReceivedMessage] = []
        at = 0
        while at < len(data):
            view = BatchView(data, at)
            try:
                view.verify()
            except CorruptLogError:
                self._links.link(group).suspect()  # asked again, over a fresh connection
                break
            messages += received_messages(view, topic=topic, group=group, place=place)
            at += view.header.size_bytes
        key = (group, part.topic_id, part.queue_id)
        before = self._kept.pop(key, None)
        self._kept_bytes += part.size - (0 if before is None else before.size_bytes)
        self._kept[key] = _Kept(messages, part.size)
        while self._kept_bytes > self._kept_bytes_max and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= oldest.size_bytes


def _pass_over(part: FetchPart, left: list[Range]) -> None:
    """Retention has overtaken the range, or its queue is gone: that much of it is nowhere."""
    for index, (topic_id, queue_id, first, end) in enumerate(left):
        if (topic_id, queue_id) == (part.topic_id, part.queue_id):
            is_gone = part.code == FetchCode.UNKNOWN_QUEUE
            begins = end if is_gone else min(end, max(first, part.start))
            left[index] = Range(topic_id, queue_id, begins, end)


async def fetched_once(
    connection: BrokerConnection, rows: list[FetchQueue], timeout_ms: float
) -> FetchAnswer:
    """What is there now of queues. DeadlineError, OutcomeUnknownError."""
    waiter: asyncio.Future[FetchAnswer] = asyncio.get_running_loop().create_future()

    def on_answer(_: object, status: int, body: memoryview) -> None:
        if waiter.done():
            return
        try:
            if status != STATUS_OK:
                raise error_of(body)
            waiter.set_result(parse_fetch_answer(body))
        except PacelineError as error:
            waiter.set_exception(error)

    def on_lost(_: object) -> None:
        if not waiter.done():
            waiter.set_exception(OutcomeUnknownError("the connection was lost"))

    connection.begin_fetch(
        rows,
        wait_ms=0,
        max_bytes=ANSWER_BYTES,
        on_answer=on_answer,
        on_lost=on_lost,
        context=None,
    )
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            return await waiter
    except TimeoutError:
        raise DeadlineError(f"no messages came within {timeout_ms:.0f} ms") from None
