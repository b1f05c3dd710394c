"""A topic record precedes the first batch of a topic in a group's log, and says when it grew (R35).

Whoever appends messages calls this in the same step, before it stamps.
"""

from paceline.records.header import Kind
from paceline_broker.projections.projections import Projections, TopicRecord
from paceline_broker.service.ledger import append_internal
from paceline_broker.service.ports import LogWriter
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
    record = TopicRecord(topic=topic.topic, topic_id=topic_id, queues=queues)
    append_internal(writer, projections, Kind.TOPIC, record.to_json(), store_unix_ms=store_unix_ms)
