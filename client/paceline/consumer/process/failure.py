"""What becomes of a message whose listener call failed: the policy, and the way back to the broker.

Clustering consumers send a failed message back: its group gets it again later, from the retry
topic, or it becomes a dead letter. The queue goes on meanwhile, so a message that always fails
holds up nobody. When sending back fails too, the listener is called again in a while.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, Protocol, TypeAlias

from paceline.consumer.settings.ordered import SuspendQueueError
from paceline.consumer.settings.push import ConsumeLater
from paceline.errors import BY_CODE, OutcomeUnknownError, PacelineError
from paceline.message import ReceivedMessage
from paceline.net.group_links import GroupLinks
from paceline.platform.runtime import cancel_and_wait, spawn
from paceline.queues import QueueKey
from paceline.types import GroupName
from paceline.wire import properties as names
from paceline.wire.calls import messages as wire
from paceline.wire.namespaces import Namespace

log = logging.getLogger("paceline.client")

SEND_BACK_AGAIN_MS = 5_000
"""RocketMQ's: when sending back has failed, the listener is called again after so long."""
_CALL_TIMEOUT_MS = 5_000
_ATTEMPT_MS = 3_000
_ROWS_MAX = 256
_BYTES_MAX = 4 * 1024 * 1024
DEAD_AT_ONCE = -1


class Action(Enum):
    """What to do with a message whose listener call failed."""

    AGAIN = "again"
    """Call the listener again, here, after `wait_ms`."""
    SEND_BACK = "send_back"
    """To the broker, with `delay_level`."""
    GIVE_UP = "give_up"
    """Report it and count it as done."""


class Decision(NamedTuple):
    action: Action
    wait_ms: float = 0
    delay_level: int = 0


class FailurePolicy(Protocol):
    """Decides about failed listener calls; pure."""

    def decide(self, message: ReceivedMessage, error: Exception, attempts: int) -> Decision:
        """`attempts`: failed calls of this message in this process, this one counted."""
        ...


class SendBack:
    """The policy of clustering consumers (RocketMQ's RECONSUME_LATER)."""

    def decide(self, message: ReceivedMessage, error: Exception, attempts: int) -> Decision:
        level = error.delay_level if isinstance(error, ConsumeLater) else 0
        return Decision(Action.SEND_BACK, delay_level=level)


class TryHere:
    """Again in this process with growing back-off; after `attempts_max` calls it is given up."""

    def __init__(self, *, attempts_max: int, first_ms: int, max_ms: int) -> None:
        self._attempts_max = attempts_max
        self._first_ms = first_ms
        self._max_ms = max_ms

    def decide(self, message: ReceivedMessage, error: Exception, attempts: int) -> Decision:
        if attempts >= self._attempts_max:
            return Decision(Action.GIVE_UP)
        wait_ms = min(self._max_ms, self._first_ms * 2 ** (attempts - 1))
        return Decision(Action.AGAIN, wait_ms=wait_ms)


# -- the way back ---------------------------------------------------------------------------------


class SentBack(NamedTuple):
    """The broker's answer."""

    outcome: str
    """"retry", "dead", or "passed": another member was done with it."""
    reconsume_times: int


OnSentBack = Callable[[SentBack | PacelineError], None]


class _Row(NamedTuple):
    asked: wire.SendBackRow
    size_bytes: int
    done: list[OnSentBack]
    """Who waits for the answer: a message may be sent back a second time before it is taken."""


_Waiting: TypeAlias = OrderedDict[tuple[int, int, int], _Row]
"""By topic id, queue and offset: a request names a message once."""


class SendBacker:
    """Sends messages back to the brokers they came from; what fails at one time rides together.

    Repeating is safe: a message is made into a retry or a dead letter once (R34).
    """

    def __init__(
        self, links: GroupLinks, *, group: str, max_reconsume_times: int | None = None
    ) -> None:
        """`max_reconsume_times`: None = the group's `retry_max_times`."""
        self._links = links
        self._group = group
        self._max_reconsume_times = max_reconsume_times
        self._waiting: dict[GroupName, _Waiting] = {}
        self._tasks: dict[GroupName, asyncio.Task[None]] = {}

    def send_back(
        self,
        key: QueueKey,
        message: ReceivedMessage,
        done: OnSentBack,
        *,
        delay_level: int = 0,
        token: tuple[int, int] | None = None,
    ) -> None:
        """Send one message of queue `key` back; `done` is called once, on the loop.

        `token`: of the queue's lock, where one is held. A message that waits here already rides
        once, as it was sent back first, but under the newest token.
        """
        waiting = self._waiting.setdefault(key.group, OrderedDict())
        place = (key.topic_id, key.queue_id, int(message.queue_offset))
        known = waiting.get(place)
        if known is not None:
            known.done.append(done)
            if token is not None:
                known.asked.token = token
            return
        asked = wire.SendBackRow(
            topic_id=key.topic_id,
            queue=key.queue_id,
            offset=message.queue_offset,
            delay_level=max(DEAD_AT_ONCE, delay_level),
            token=token,
        )
        waiting[place] = _Row(asked, len(message.body), [done])
        if key.group not in self._tasks:
            name = f"send-back-{key.group}"
            self._tasks[key.group] = spawn(self._work(key.group, waiting), name=name)

    async def close(self) -> None:
        """Stop; what was not answered stays the group's, as nothing of it is committed."""
        await cancel_and_wait(*self._tasks.values())

    async def _work(self, group: GroupName, waiting: _Waiting) -> None:
        try:
            while waiting:
                rows = _taken(waiting)
                answers = await self._ask(group, rows)
                for row, answer in zip(rows, answers, strict=True):
                    _tell(row, answer)
        finally:
            del self._tasks[group]

    async def _ask(self, group: GroupName, rows: list[_Row]) -> list[SentBack | PacelineError]:
        request = wire.SendBack(
            group=self._group,
            messages=[row.asked for row in rows],
            only_uncommitted=True,
            max_reconsume_times=self._max_reconsume_times,
        )
        try:
            answer, _ = await self._links.call(
                group, request, timeout_ms=_CALL_TIMEOUT_MS, attempt_ms=_ATTEMPT_MS
            )
        except PacelineError as error:
            return [error] * len(rows)
        if len(answer.messages) != len(rows):
            log.error("send_back_answer_malformed", extra={"rows": len(answer.messages)})
            unknown = OutcomeUnknownError("the broker's answer is not one to these messages")
            return [unknown] * len(rows)
        return [_answer(row) for row in answer.messages]


def _taken(waiting: _Waiting) -> list[_Row]:
    """The next rows, at least one."""
    rows: list[_Row] = []
    size_bytes = 0
    while waiting and len(rows) < _ROWS_MAX:
        size_bytes += next(iter(waiting.values())).size_bytes
        if rows and size_bytes > _BYTES_MAX:
            break
        rows.append(waiting.popitem(last=False)[1])
    return rows


def _tell(row: _Row, answer: SentBack | PacelineError) -> None:
    """Tell whoever waits; one that raises keeps no other from its answer."""
    for done in row.done:
        try:
            done(answer)
        except Exception as failure:  # of the consumer: the other messages are not to blame
            asked = row.asked
            at = {"topic_id": asked.topic_id, "queue": asked.queue, "offset": asked.offset}
            log.exception("sent_back_not_noted", extra={**at, "error": repr(failure)})


def _answer(row: wire.SentBackRow) -> SentBack | PacelineError:
    if row.code is not None:
        error_class = BY_CODE.get(row.code, OutcomeUnknownError)
        return error_class(f"message {row.offset} was not sent back: {row.code}")
    if row.outcome is None or row.reconsume_times is None:
        return OutcomeUnknownError(f"message {row.offset}: the answer says not what became of it")
    return SentBack(row.outcome, row.reconsume_times)


class NotProcessedError(Exception):
    """A batch listener has said that it did not get so far."""


def log_failed(message: ReceivedMessage, error: Exception, attempt: int) -> None:
    """Say that a listener call failed. What it raised by mistake is a warning with its traceback,
    also where nobody has set up logging; what it answered, such as `ConsumeLater`, is news."""
    fields = {
        "topic": message.topic,
        "queue": f"{message.group}/{message.queue_id}",
        "offset": message.queue_offset,
        "attempt": attempt,
    }
    if isinstance(error, ConsumeLater | SuspendQueueError | NotProcessedError):
        log.info("message_failed", extra={**fields, "error": repr(error)})
        return
    log.warning(
        "message_failed: the listener raised on topic %(topic)s queue %(queue)s offset %(offset)d,"
        " attempt %(attempt)d; the message comes again, or becomes a dead letter",
        fields,
        exc_info=error,
        extra={**fields, "error": repr(error)},
    )


def tell_given_up(
    tell: Callable[[ReceivedMessage, Exception], None] | None,
    message: ReceivedMessage,
    error: Exception,
) -> None:
    """Tell the application of a message that it gets no more; what it raises stops no queue."""
    if tell is None:
        return
    try:
        tell(message, error)
    except Exception as failure:  # the application's code
        at = {"topic": message.topic, "queue": message.queue_id, "offset": message.queue_offset}
        log.error("on_given_up_failed", extra={**at, "error": repr(failure)})


def as_first_sent(message: ReceivedMessage, namespace: Namespace) -> ReceivedMessage:
    """A message of a group's retry topic under the topic it was sent to, as listeners know it.

    Queue and offset stay those of the retry topic, whose name is in property REAL_TOPIC.
    """
    topic = message.properties.get(names.RETRY_TOPIC)
    if topic is None:
        return message
    properties = {**message.properties, names.REAL_TOPIC: message.topic}
    return message._replace(topic=namespace.own_topic(topic), properties=properties)
