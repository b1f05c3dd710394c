"""Sending back: a consumer could not process a message, so its group gets it again later, or never.

A message that was sent back waits in the log (kind DELAY, cause RETRIED) for the group's retry
topic; one without an attempt left lies in the group's dead-letter topic by the same record that
says so (R34). Which of the two, and when, is decided here in one step with the append, and the
record is the decision (R29). A message is made into a retry or a dead letter once
(`projections/send_backs.py`): whoever asks again is told what the first was told (R28).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from paceline.errors import (
    BadRequestError,
    ForbiddenError,
    GroupNotFoundError,
    LockFencedError,
    NotYetAvailableError,
    PacelineError,
    TopicNotFoundError,
)
from paceline.records.header import Cause, Kind, unpack_source
from paceline.wire import properties as names
from paceline.wire.message_ids import OffsetMessageId
from paceline.wire.names import dlq_topic, is_system_topic, retry_topic
from paceline_broker.ports import LogWriter, Role
from paceline_broker.projections.consume_queues import queue_of, topic_of
from paceline_broker.projections.locks import Token
from paceline_broker.projections.projections import Projections
from paceline_broker.service.counters import Counters
from paceline_broker.service.ledger import Ledger
from paceline_broker.service.produce.auto_create import AutoCreator
from paceline_broker.service.retry.derived import Made, Target, append_derived, origin_of
from paceline_broker.service.retry.source_messages import Source, SourceReader, Wanted
from paceline_broker.service.routes import Routes
from paceline_broker.service.settings import ServiceSettings
from paceline_broker.service.topic_records import end_former

REQUEST_BYTES_MAX = 16 * 1024 * 1024
"""Bodies of one request: they are all in memory at one time."""
DEAD_AT_ONCE = -1
"""The delay level of a message that is not to be tried again."""


class Row(NamedTuple):
    """One message to send back."""

    wanted: Wanted
    delay_level: int = 0
    """Below 0: dead at once. 0: by the group's retry policy. Above: that level of the ladder."""
    token: Token | None = None
    """Of the queue's lock, where the group holds one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a consumer asks."""

    group: str
    rows: Sequence[Row]
    max_reconsume_times: int | None = None
    """None: the group's `retry_max_times`."""
    only_uncommitted: bool = False
    """Leave messages alone that the group has committed: their queue has another owner by now,
    who was done with them."""


class SentBack(NamedTuple):
    """What became of one message; the record made is None when nothing was made."""

    outcome: str
    """"retry", "dead", or "passed": the group had committed it."""
    reconsume_times: int
    due_unix_ms: int | None
    made: int | None
    """Where the record made lies (`pack_source`)."""
    is_duplicate: bool


class _Topics(NamedTuple):
    """The system topics of a group, in this broker group."""

    retry_id: int
    retry_queues: int
    dead_id: int
    dead_queues: int


class SendBack:
    """The use-case, on the master of the moment."""

    def __init__(
        self,
        role: Role,
        routes: Routes,
        ledger: Ledger,
        sources: SourceReader,
        creator: AutoCreator,
        counters: Counters,
        settings: ServiceSettings,
        *,
        delays_from_ms: Callable[[], int],
        on_pending: Callable[[], None],
    ) -> None:
        """As `Sender`. Delays do not count from log time (R29): it is wrong for as long as a clock
        once ran ahead."""
        self._role = role
        self._routes = routes
        self._ledger = ledger
        self._sources = sources
        self._creator = creator
        self._counters = counters
        self._levels_ms = settings.message_delay_level_ms
        self.delays_from_ms = delays_from_ms
        self._on_pending = on_pending

    async def send_back(self, request: Request) -> list[SentBack | PacelineError]:
        """Each message's outcome, once it is confirmed; or why that message was refused.

        Raises GroupNotFoundError, TooLargeError, and what an append and its wait may raise.
        """
        for row in request.rows:
            self._check_topic(request.group, topic_of(row.wanted.key))
        await self.ensure(request.group)
        self._role.writer().ensure_can_append()  # before anything is read
        wanted = [row.wanted for row in request.rows]
        found = await self._sources.read(wanted, bytes_max=REQUEST_BYTES_MAX)
        writer = self._role.writer()
        answers = self._decide(writer, request, found)
        await self._ledger.confirmed(writer)
        return [await self._with_due(answer) for answer in answers]

    async def ensure(self, group: str) -> None:
        """Have the group and its system topics, before `dead_letter`; GroupNotFoundError."""
        await self._creator.ensure_group(group)
        if self._topics(group) is None:
            raise GroupNotFoundError(f"no consumer group {group!r}", group=group)

    def dead_topic_id(self, group: str) -> int:
        """Where `dead_letter` puts them. NotYetAvailableError if it went away since `ensure`."""
        topics = self._topics(group)
        if topics is None:
            raise NotYetAvailableError(f"the topics of group {group} are being deleted")
        return topics.dead_id

    def dead_letter(
        self,
        writer: LogWriter,
        projections: Projections,
        group: str,
        sources: Sequence[Source],
        *,
        store_unix_ms: int,
    ) -> None:
        """Bury messages of a group, in the caller's step: once each, however often it is asked.

        The caller has asked `writer.ensure_can_append` and `ensure(group)`, and waits for confirm.
        Raises StorageError (R22).
        """
        topics = self._topics(group)
        assert topics is not None, group
        news = [
            source
            for source in sources
            if projections.send_backs.made_for(
                topics.dead_id, source.packed, group=group, key=source.key
            )
            is None
        ]
        by_target: dict[Target, list[Made]] = {}
        for source in news:
            made = Made(source, self._dead_properties(source, group))
            by_target.setdefault(_dead_target(topics, source), []).append(made)
        for target, part in by_target.items():
            append_derived(
                writer, projections, self._routes, target, part, store_unix_ms=store_unix_ms
            )
        self._counters.dead_letters += len(news)

    # -- deciding ----------------------------------------------------------------------------------

    def _decide(
        self, writer: LogWriter, request: Request, found: Sequence[Source | PacelineError]
    ) -> list[SentBack | PacelineError]:
        """Decide each message and append what comes of them: one synchronous step (R28)."""
        writer.ensure_can_append()
        projections = self._role.projections
        topics = self._topics(request.group)
        if topics is None:
            raise NotYetAvailableError(f"the topics of group {request.group} are being deleted")
        now, delays_from_ms = self._ledger.log_time_ms(), self.delays_from_ms()
        end_former(writer, projections, self._routes, request.group, store_unix_ms=now)
        answers: list[SentBack | PacelineError] = []
        by_target: dict[Target, list[tuple[int, Made]]] = {}
        for row, source in zip(request.rows, found, strict=True):
            if isinstance(source, PacelineError):
                answers.append(source)
                continue
            if self._routes.is_deleted(topic_of(source.key)):  # while it was read (R35)
                answers.append(TopicNotFoundError("the message's topic is deleted"))
                continue
            fence = self._fence(projections, request.group, row, now)
            if fence is not None:
                answers.append(fence)
                continue
            times = reconsume_times(source, self._routes)
            answer = self._known(projections, request, topics, source, times)
            if answer is None:
                answer, target, made = self._new(
                    request, row, topics, source, times, delays_from_ms
                )
                by_target.setdefault(target, []).append((len(answers), made))
            answers.append(answer)
        for target, part in by_target.items():
            places = append_derived(
                writer,
                projections,
                self._routes,
                target,
                [made for _, made in part],
                store_unix_ms=now,
            )
            for (index, _), place in zip(part, places, strict=True):
                decided = answers[index]
                assert isinstance(decided, SentBack)
                answers[index] = decided._replace(made=place)
            self._count(target, len(places))
        if by_target:
            self._on_pending()
        return answers

    def _fence(
        self, projections: Projections, group: str, row: Row, now: int
    ) -> PacelineError | None:
        """Work under a lock that is lost is refused, as commits are (R33, INV-11)."""
        key = row.wanted.key
        if row.token is None:
            is_fenced = projections.is_locked(group, key, now)
        else:
            is_fenced = row.token != projections.lock_token(group, key)
        return LockFencedError("another member holds the queue's lock") if is_fenced else None

    def _known(
        self,
        projections: Projections,
        request: Request,
        topics: _Topics,
        source: Source,
        times: int,
    ) -> SentBack | None:
        """The answer if the message was made into something before, or is done."""
        group, key = request.group, source.key
        known = projections.send_backs
        made = known.made_for(topics.dead_id, source.packed, group=group, key=key)
        if made is not None:
            return SentBack("dead", times, None, made, is_duplicate=True)
        made = known.made_for(topics.retry_id, source.packed, group=group, key=key)
        if made is not None:
            return SentBack("retry", times + 1, None, made, is_duplicate=True)
        committed = projections.offsets.get(group, key)
        if request.only_uncommitted and committed is not None and committed.offset > source.offset:
            return SentBack("passed", times, None, None, is_duplicate=False)
        return None

    def _new(
        self,
        request: Request,
        row: Row,
        topics: _Topics,
        source: Source,
        times: int,
        delays_from_ms: int,
    ) -> tuple[SentBack, Target, Made]:
        settings = self._routes.settings_of(request.group)
        times_max = request.max_reconsume_times
        if times_max is None:
            times_max = settings.retry_max_times
        if row.delay_level < 0 or times >= times_max:
            made = Made(source, self._dead_properties(source, request.group))
            answer = SentBack("dead", times, None, None, is_duplicate=False)
            return answer, _dead_target(topics, source), made
        delay_ms = settings.retry_policy.delay_ms(times)
        if row.delay_level > 0:
            delay_ms = self._levels_ms[min(row.delay_level, len(self._levels_ms)) - 1]
        properties = self._retry_properties(source, times + 1)
        due_unix_ms = delays_from_ms + delay_ms
        made = Made(source, properties, due_unix_ms)
        queue = queue_of(source.key) % topics.retry_queues
        target = Target(topics.retry_id, queue, Kind.DELAY, Cause.RETRIED)
        answer = SentBack("retry", times + 1, due_unix_ms, None, is_duplicate=False)
        return answer, target, made

    async def _with_due(self, answer: SentBack | PacelineError) -> SentBack | PacelineError:
        """A duplicate is told when the first one is due, which its record knows."""
        if isinstance(answer, PacelineError) or answer.made is None:
            return answer
        if answer.outcome != "retry" or not answer.is_duplicate:
            return answer
        return answer._replace(due_unix_ms=await self._sources.due_of(answer.made))

    # -- what the messages made say ----------------------------------------------------------------

    def _retry_properties(self, source: Source, times: int) -> dict[str, str]:
        return {
            **_without_system(source),
            **origin_of(source, self._routes),
            names.RETRY_TOPIC: self._origin_topic(source),
            names.RECONSUME_TIMES: str(times),
        }

    def _dead_properties(self, source: Source, group: str) -> dict[str, str]:
        origin = origin_of(source, self._routes)
        topic = self._origin_topic(source)
        return {
            **_without_system(source),
            **origin,
            names.RETRY_TOPIC: topic,
            names.RECONSUME_TIMES: str(reconsume_times(source, self._routes)),
            names.DLQ_ORIGIN_TOPIC: topic,
            names.DLQ_ORIGIN_MESSAGE_ID: origin[names.ORIGIN_MESSAGE_ID],
        }

    def _origin_topic(self, source: Source) -> str:
        """The topic that the message was sent to in the first place."""
        topic = self._routes.topic_name(topic_of(source.key))
        if is_system_topic(topic):
            return source.properties.get(names.RETRY_TOPIC, topic)
        return topic

    # -- groups ------------------------------------------------------------------------------------

    def _topics(self, group: str) -> _Topics | None:
        """The group's system topics, if this broker knows both."""
        ids = []
        for name in (retry_topic(group), dlq_topic(group)):
            topic = self._routes.find_topic(name)
            count = 0 if topic is None else self._routes.queue_counts.get(topic.topic_id, 0)
            if topic is None or not count:
                return None
            ids += [topic.topic_id, count]
        return _Topics(*ids)

    def _check_topic(self, group: str, topic_id: int) -> None:
        """A consumer sends back what it was given: messages of users' topics, and its retries."""
        topic = self._routes.topic_name(topic_id)
        if topic == dlq_topic(group):
            raise BadRequestError("a dead letter cannot be sent back: resend it", field="topic")
        if is_system_topic(topic) and topic != retry_topic(group):
            raise ForbiddenError(f"group {group} is not given messages of {topic}", field="topic")

    def _count(self, target: Target, count: int) -> None:
        if target.cause == Cause.DEAD:
            self._counters.dead_letters += count
        else:
            self._counters.send_backs += count


def reconsume_times(source: Source, routes: Routes) -> int:
    """How often the message was sent back; what a retry topic says, as only brokers write there."""
    if not routes.topic_name(topic_of(source.key)).startswith(retry_topic("")):
        return 0
    return int(source.properties.get(names.RECONSUME_TIMES, "0"))


def message_id(group: str, made: int) -> str:
    """The offset message id of a record made, in broker group `group`."""
    return str(OffsetMessageId(group, *unpack_source(made)))


def _dead_target(topics: _Topics, source: Source) -> Target:
    queue = queue_of(source.key) % topics.dead_queues
    return Target(topics.dead_id, queue, Kind.NORMAL, Cause.DEAD)


_DROPPED = frozenset(
    {
        names.DELAY_LEVEL,
        names.TIMER_DELIVER_MS,
        names.TIMER_DELAY_MS,
        names.TIMER_OUT_MS,
        names.ESCAPED_FROM,  # a retry is no repetition of what it was made from
        names.RETRY_TOPIC,
        names.RECONSUME_TIMES,
        names.DLQ_ORIGIN_TOPIC,
        names.DLQ_ORIGIN_MESSAGE_ID,
    }
)


def _without_system(source: Source) -> dict[str, str]:
    """The application's properties, and those of the system that stay true."""
    return {name: value for name, value in source.properties.items() if name not in _DROPPED}
