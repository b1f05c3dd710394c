"""A topic record precedes the first batch of a topic in a group's log, and says when it grew (R35).

Whoever appends messages calls `log_topic` in the same step, before it stamps. What consumer groups
have here hangs on their retry topics, so whoever changes that calls `log_group` before it decides.
"""

from collections.abc import Iterable

from paceline.records.header import Kind
from paceline.wire.names import group_of_retries, retry_topic
from paceline_broker.appender import Outcomes
from paceline_broker.ports import LogWriter
from paceline_broker.projections.cursors import group_of
from paceline_broker.projections.offsets import Committed
from paceline_broker.projections.projections import Projections, TopicRecord
from paceline_broker.service.ledger import Refusal
from paceline_broker.service.routes import Routes


def log_topic(
    writer: LogWriter,
    projections: Projections,
    routes: Routes,
    topic_id: int,
    *,
    store_unix_ms: int,
) -> None:
    """Append the topic's record, unless the log has it. Raises StorageError.

    The topic is in the routes, and the caller has asked `ensure_can_append`.
    """
    queues = routes.queue_counts[topic_id]
    logged = projections.topics.get(topic_id)
    if logged is not None and logged.queues >= queues:
        return
    topic = routes.topics_by_id[topic_id]
    group = group_of_retries(topic.topic)
    if group is not None:
        end_former(writer, projections, routes, group, store_unix_ms=store_unix_ms)
    record = TopicRecord(topic=topic.topic, topic_id=topic_id, queues=queues)
    writer.appender.record(Kind.TOPIC, record.to_json(), store_unix_ms=store_unix_ms)


def log_group(
    writer: LogWriter,
    projections: Projections,
    routes: Routes,
    group: str,
    *,
    store_unix_ms: int,
) -> None:
    """Have the log know the consumer group by the topic of its retries. Raises StorageError.

    What hangs on an earlier one of that name goes first. As for deleted topics, only with a view of
    the own epoch: a later master's is then as new. The caller has asked `ensure_can_append`.
    """
    known = projections.group_ids.get(group)
    topic = routes.find_topic(retry_topic(group))
    if known == (None if topic is None else topic.topic_id):
        return
    if not _is_of_own_epoch(writer, routes):
        return
    end_former(writer, projections, routes, group, store_unix_ms=store_unix_ms)
    if topic is not None:
        log_topic(writer, projections, routes, topic.topic_id, store_unix_ms=store_unix_ms)


def end_former(
    writer: LogWriter,
    projections: Projections,
    routes: Routes,
    group: str,
    *,
    store_unix_ms: int,
) -> None:
    """Log that a consumer group was deleted, if the one that the log knows was (R35).

    Before the log knows the next one of that name, else that one would take over its state.
    """
    known = projections.group_ids.get(group)
    if known is not None and routes.is_deleted(known) and _is_of_own_epoch(writer, routes):
        log_deletion(writer, projections, known, store_unix_ms=store_unix_ms)


def _is_of_own_epoch(writer: LogWriter, routes: Routes) -> bool:
    here = None if routes.view is None else routes.view.groups.get(routes.group)
    return here is not None and here.master_epoch == writer.epoch


def knowing_group(routes: Routes, group: str, refusal: Refusal) -> Refusal:
    """The same, of a request about a consumer group: the log knows it before it is decided."""

    def decide(projections: Projections, writer: LogWriter, now_ms: int) -> Outcomes:
        log_group(writer, projections, routes, group, store_unix_ms=now_ms)
        return refusal(projections, writer, now_ms)

    return decide


def is_former_group(projections: Projections, routes: Routes, group: str) -> bool:
    """Whether what the log has of a consumer group is of one that was deleted since."""
    known = projections.group_ids.get(group)
    return known is not None and routes.is_deleted(known)


def standing(projections: Projections, routes: Routes, group: str) -> dict[int, Committed]:
    """What a consumer group has committed, by queue key; of a former one, nothing."""
    if is_former_group(projections, routes, group):
        return {}
    return projections.offsets.of_group(group)


def slowest(projections: Projections, routes: Routes, group: str) -> dict[int, Committed]:
    """How far a consumer group has come, by queue key: of one that broadcasts, its client that is
    farthest behind on each queue, as long as it has clients with cursors."""
    known = standing(projections, routes, group)
    if not routes.settings_of(group).is_broadcasting or is_former_group(projections, routes, group):
        return known
    return projections.offsets.of_cursors(group) or known


def slowest_of_all(
    projections: Projections, routes: Routes
) -> Iterable[tuple[str, dict[int, Committed]]]:
    """The same of each group."""
    groups = sorted(set(map(group_of, projections.offsets.groups())))
    return ((group, slowest(projections, routes, group)) for group in groups)


def log_deletion(
    writer: LogWriter, projections: Projections, topic_id: int, *, store_unix_ms: int
) -> TopicRecord:
    """Append the record that takes a topic away, with all that hangs on it (R35)."""
    known = projections.topics.get(topic_id)
    record = TopicRecord(
        topic="" if known is None else known.topic,
        topic_id=topic_id,
        queues=0 if known is None else known.queues,
        is_deleted=True,
    )
    writer.appender.record(Kind.TOPIC, record.to_json(), store_unix_ms=store_unix_ms)
    return record
