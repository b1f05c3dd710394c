"""Pulls by offset, as consumers of the remoting protocol make them (11), and offsets (14, 15)."""

from collections.abc import Iterable
from typing import NamedTuple

from paceline.errors import PacelineError
from paceline_chaos.cluster_sim.doors.remoting.client import (
    DEADLINE_MS,
    RemotingClient,
    error_of,
)
from paceline_chaos.cluster_sim.doors.remoting.producing import ONEWAY
from paceline_chaos.cluster_sim.jobs.reading import seen
from paceline_chaos.history.model import Commit, Pull, QueryOffset, Queue, Seen
from paceline_chaos.history.recorder import Asking
from paceline_gateway.remoting.codec.codes import (
    PULL_COMMIT,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    RequestCode,
    ResponseCode,
)
from paceline_gateway.remoting.codec.store_format import Stored, decode_messages

WAIT_MS = 1_000
_BATCH_MAX = 32


class Pulled(NamedTuple):
    """What came of a pull."""

    messages: list[Stored]
    next_offset: int
    """Where the client goes on."""
    has_moved: bool = False
    """The offset is none that the queue has: the client begins there anew."""


class Puller:
    """One member's pulls and offsets of one queue. What it says it has consumed, it has."""

    def __init__(
        self, client: RemotingClient, group: str, queue: Queue, assignment: str = ""
    ) -> None:
        """`assignment`: pulls under this name follow each other without gap; empty: they need
        not."""
        self._client = client
        self._group = group
        self._queue = queue
        self._assignment = assignment

    def _of(self) -> dict[str, object]:
        return {
            "consumerGroup": self._group,
            "topic": self._queue.topic,
            "queueId": self._queue.queue,
        }

    async def pull(self, offset: int, *, done: int, token: int | None = None) -> Pulled | None:
        """Messages from `offset` on; None: nobody says. `done`: all below is consumed, and is
        committed on the way; 0: nothing."""
        around, queue = self._client.around, self._queue
        flags = PULL_SUSPEND | PULL_SUBSCRIPTION | (PULL_COMMIT if done else 0)
        fields = {
            **self._of(),
            "queueOffset": offset,
            "maxMsgNums": _BATCH_MAX,
            "sysFlag": flags,
            "commitOffset": done,
            "suspendTimeoutMillis": WAIT_MS,
            "subscription": "*",
            "subVersion": 0,
            "expressionType": "TAG",
        }
        if done:
            self._committing(done, token).unknown(ONEWAY)
        with around.recorder.asking(
            Pull,
            client=around.client,
            queue=queue,
            offset=offset,
            assignment=self._assignment,
        ) as asking:
            try:
                answer = await self._client.ask(
                    queue.group,
                    RequestCode.PULL_MESSAGE,
                    fields,
                    deadline_ms=WAIT_MS + DEADLINE_MS,
                )
            except PacelineError as error:
                asking.raised(error)
                return None
            if answer.code not in _PULLED:
                failure = error_of(answer)
                assert failure is not None, answer.code
                asking.raised(failure)
                return None
            found = [message for message, _ in decode_messages(bytes(answer.body))]
            next_offset = int(answer.fields["nextBeginOffset"])
            has_moved = answer.code == ResponseCode.PULL_OFFSET_MOVED
            asking.ok(messages=tuple(_seen(found)))
            return Pulled(found, next_offset, has_moved)

    async def committed(self) -> int | None:
        """Where the group stands (14), 0 if it never committed; None: nobody says. Whether whoever
        says it may be behind, the protocol has no word for."""
        around = self._client.around
        with around.recorder.asking(
            QueryOffset, client=around.client, consumer_group=self._group, queue=self._queue
        ) as asking:
            try:
                answer = await self._client.ask(
                    self._queue.group, RequestCode.QUERY_CONSUMER_OFFSET, self._of()
                )
            except PacelineError as error:
                asking.raised(error)
                return None
            if answer.code == ResponseCode.QUERY_NOT_FOUND:
                asking.ok(offset=None, maybe_stale=True)
                return 0
            failure = error_of(answer)
            if failure is not None:
                asking.raised(failure)
                return None
            offset = int(answer.fields["offset"])
            asking.ok(offset=offset, maybe_stale=True)
            return offset

    def commit(self, offset: int, token: int | None = None) -> None:
        """Tell where the group stands (15), one-way."""
        with self._committing(offset, token) as asking:
            fields = {**self._of(), "commitOffset": offset}
            self._client.tell(self._queue.group, RequestCode.UPDATE_CONSUMER_OFFSET, fields)
            asking.unknown(ONEWAY)

    def _committing(self, offset: int, token: int | None) -> Asking[Commit]:
        around = self._client.around
        return around.recorder.asking(
            Commit,
            client=around.client,
            consumer_group=self._group,
            member=self._client.name,
            queue=self._queue,
            offset=offset,
            token=token,
        )


def _seen(messages: Iterable[Stored]) -> Iterable[Seen]:
    return (seen(message.queue_offset, message.body) for message in messages)


_PULLED = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)
