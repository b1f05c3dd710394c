"""Dead letters again: put back into the topic they came from, or given to their group once more.

The message made names the dead letter as its source (R34), so resending one a second time stores
nothing: it is answered with the first one's place. A message that dies again is another dead letter
and can be resent again. The dead letter itself stays until retention has it.
"""

from collections.abc import Sequence
from typing import NamedTuple

from crc32c import crc32c

from paceline.errors import (
    BadRequestError,
    MessageNotFoundError,
    NotAuthorizedError,
    NotYetAvailableError,
    PacelineError,
    QueueSealedError,
    TopicNotFoundError,
)
from paceline.records.header import Cause, Kind
from paceline.security.access import Asker
from paceline.wire import properties as names
from paceline.wire.calls import messages as wire
from paceline.wire.cluster import TopicView
from paceline.wire.names import dlq_topic, is_system_topic, retry_topic
from paceline_broker.ports import LogWriter, Role
from paceline_broker.projections.consume_queues import queue_key, queue_of, topic_of
from paceline_broker.service.counters import Counters
from paceline_broker.service.ledger import Ledger
from paceline_broker.service.produce.logical_queues import open_queue
from paceline_broker.service.retry.derived import Made, Target, append_derived, origin_of
from paceline_broker.service.retry.send_back import REQUEST_BYTES_MAX
from paceline_broker.service.retry.source_messages import Source, SourceReader, Wanted
from paceline_broker.service.routes import Routes

_OF_THE_DLQ = frozenset(
    {
        names.DLQ_ORIGIN_TOPIC,
        names.DLQ_ORIGIN_MESSAGE_ID,
        names.RETRY_TOPIC,
        names.RECONSUME_TIMES,
    }
)


class Resent(NamedTuple):
    """Where a dead letter was put."""

    topic: str
    queue: int
    made: int
    """`pack_source`"""
    is_duplicate: bool


class Resend:
    """The use-case, on the master of the moment."""

    def __init__(
        self, role: Role, routes: Routes, ledger: Ledger, sources: SourceReader, counters: Counters
    ) -> None:
        self._role = role
        self._routes = routes
        self._ledger = ledger
        self._sources = sources
        self._counters = counters

    async def resend(
        self, group: str, rows: Sequence[Wanted], *, is_for_group: bool, asker: Asker
    ) -> list[Resent | PacelineError]:
        """Each dead letter's new place, once it is confirmed; or why it was refused.

        `is_for_group`: only the group that failed on it gets it, with all its attempts anew; else
        it is sent to its topic again, for every group that reads it, if `asker` may send there.
        Raises BadRequestError for messages of other topics, TooLargeError, and what an append and
        its wait may raise.
        """
        dead = self._routes.topic_named(dlq_topic(group)).topic_id
        for row in rows:
            if topic_of(row.key) != dead:
                raise BadRequestError(
                    f"only messages of {dlq_topic(group)} are resent", field="topic"
                )
        self._role.writer().ensure_can_append()  # before anything is read
        found = await self._sources.read(rows, bytes_max=REQUEST_BYTES_MAX)
        writer = self._role.writer()
        found = [self._denied(writer, *pair) for pair in zip(rows, found, strict=True)]
        answers = self._decide(writer, group, found, is_for_group=is_for_group, asker=asker)
        await self._ledger.confirmed(writer)
        return [await self._with_queue(answer) for answer in answers]

    def _denied(
        self, writer: LogWriter, row: Wanted, found: Source | PacelineError
    ) -> Source | PacelineError:
        """MessageNotFoundError where no log has come so far: an open master knows (R3)."""
        if not isinstance(found, NotYetAvailableError) or not writer.is_open:
            return found
        queue = self._role.projections.consume_queues.get(row.key)
        end = 0 if queue is None else queue.end
        if row.offset < end:
            return found
        return MessageNotFoundError(
            f"there is no dead letter {row.offset} in queue {queue_of(row.key)} of broker group"
            f" {self._routes.group}: the queue ends at {end}",
            offset=row.offset,
            end=end,
        )

    def _decide(
        self,
        writer: LogWriter,
        group: str,
        found: Sequence[Source | PacelineError],
        *,
        is_for_group: bool,
        asker: Asker,
    ) -> list[Resent | PacelineError]:
        """One synchronous step (R28)."""
        writer.ensure_can_append()
        projections = self._role.projections
        now = self._ledger.log_time_ms()
        answers: list[Resent | PacelineError] = []
        by_target: dict[Target, list[tuple[int, Made]]] = {}
        for source in found:
            if isinstance(source, PacelineError):
                answers.append(source)
                continue
            try:
                topic = self._topic(group, source, is_for_group=is_for_group)
                if not is_for_group:
                    asker.check_topic(topic.topic, *wire.Resend.finds)
                # Before its queue is chosen: all may be sealed since, and it is stored all the same
                made = projections.send_backs.made(topic.topic_id, source.packed)
                queue = self._queue(topic, source) if made is None else 0
            except (NotAuthorizedError, TopicNotFoundError, QueueSealedError) as error:
                answers.append(error)
                continue
            if made is None:
                properties = self._properties(source, is_for_group=is_for_group)
                target = Target(topic.topic_id, queue, Kind.NORMAL, Cause.RESENT)
                row = (len(answers), Made(source, properties))
                by_target.setdefault(target, []).append(row)
            answers.append(Resent(topic.topic, queue, made or 0, made is not None))
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
                assert isinstance(decided, Resent)
                answers[index] = decided._replace(made=place)
            self._counters.resent += len(places)
        return answers

    async def _with_queue(self, answer: Resent | PacelineError) -> Resent | PacelineError:
        """A duplicate is told the first one's queue: the topic may have other queues since."""
        if isinstance(answer, PacelineError) or not answer.is_duplicate:
            return answer
        header = await self._sources.header_of(answer.made)
        return answer if header is None else answer._replace(queue=header.queue_id)

    def _topic(self, group: str, source: Source, *, is_for_group: bool) -> TopicView:
        """TopicNotFoundError if it is gone, or has no queue here any more."""
        name = retry_topic(group)
        if not is_for_group:
            name = source.properties.get(names.DLQ_ORIGIN_TOPIC, "")
        topic = self._routes.find_topic(name)
        count = 0 if topic is None else self._routes.queue_counts.get(topic.topic_id, 0)
        if topic is None or not count or (is_system_topic(name) and not is_for_group):
            raise TopicNotFoundError(
                f"the topic {name} that the message came from has no queue here any more",
                topic=name,
            )
        return topic

    def _queue(self, topic: TopicView, source: Source) -> int:
        """QueueSealedError if no logical queue of a static topic is here, or if the log has sealed
        the queue: of a topic that was recovered it alone knows."""
        turn = source.offset
        if source.message_key:
            turn = crc32c(source.message_key.encode())
        seals = self._role.projections.seals.by_key
        if topic.is_static:
            return open_queue(topic, self._routes.group, turn, seals)
        queue = turn % self._routes.queue_counts[topic.topic_id]
        if queue_key(topic.topic_id, queue) in seals:
            raise QueueSealedError(
                f"queue {queue} of topic {topic.topic} is sealed; nothing was stored",
                topic_id=topic.topic_id,
                queue=queue,
            )
        return queue

    def _properties(self, source: Source, *, is_for_group: bool) -> dict[str, str]:
        kept = {name: value for name, value in source.properties.items() if name not in _OF_THE_DLQ}
        kept |= origin_of(source, self._routes)
        if is_for_group:
            kept[names.RETRY_TOPIC] = source.properties.get(names.DLQ_ORIGIN_TOPIC, "")
            kept[names.RECONSUME_TIMES] = "0"
        return kept
