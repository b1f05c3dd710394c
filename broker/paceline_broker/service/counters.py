"""What a broker counts about its service, and how it is named for Prometheus.

The hot path adds to plain integers of `Counters`, per batch; `register` makes metrics that read
them at a scrape. RocketMQ's names (reference interop.md, section 3) carry its labels, so that
dashboards made for it work; fetches do not name their consumer group, so that label is empty there.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from paceline.platform.telemetry import Metrics, Samples
from paceline_broker.ports import Role, RoleState
from paceline_broker.projections.consume_queues import topic_of
from paceline_broker.service.routes import Routes
from paceline_broker.service.topic_records import slowest_of_all


class TopicCounters:
    """Counts of one topic since this process started."""

    __slots__ = ("bytes_in", "bytes_out", "messages_in", "messages_out")

    def __init__(self) -> None:
        self.messages_in = self.bytes_in = self.messages_out = self.bytes_out = 0


@dataclass(slots=True)
class Counters:
    """All counts of the service of one broker. Owned by its event loop."""

    topics: dict[int, TopicCounters] = field(default_factory=dict)
    batches_in: int = 0
    stream_requests: int = 0
    http_requests: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    """Problems answered, by code."""
    streams_open: int = 0
    send_backs: int = 0
    """Messages that wait for another attempt of their group."""
    dead_letters: int = 0
    replica_messages_out: int = 0
    replica_bytes_out: int = 0
    """Handed to readers while this broker was a replica; in those of topics, too."""
    resent: int = 0
    """Dead letters that were put into a topic again."""

    def stored(self, topic_id: int, messages: int, size_bytes: int) -> None:
        """A batch was appended."""
        topic = self.topics.get(topic_id)
        if topic is None:
            topic = self.topics[topic_id] = TopicCounters()
        self.batches_in += 1
        topic.messages_in += messages
        topic.bytes_in += size_bytes

    def delivered(self, topic_id: int, messages: int, size_bytes: int) -> None:
        """Batches were handed to a reader."""
        topic = self.topics.get(topic_id)
        if topic is None:
            topic = self.topics[topic_id] = TopicCounters()
        topic.messages_out += messages
        topic.bytes_out += size_bytes

    def refused(self, code: str) -> None:
        self.errors[code] = self.errors.get(code, 0) + 1


def register(metrics: Metrics, counters: Counters, role: Role, routes: Routes) -> None:
    """Name the counts of one broker's service in its metrics."""

    def per_topic(attribute: str, *rest: str) -> Callable[[], Samples]:
        def read() -> Samples:
            return {
                (routes.topic_name(topic_id), *rest): getattr(topic, attribute)
                for topic_id, topic in counters.topics.items()
            }

        return read

    _topic_metrics(metrics, per_topic)
    metrics.sampled(
        "rocketmq_consumer_lag_messages",
        "Messages not yet consumed; alert when it grows.",
        lambda: _lag(role, routes),
    )
    _retry_metrics(metrics, counters)
    metrics.sampled(
        "paceline_service_batches_in_total",
        "Record batches stored; batches per message says how well clients coalesce.",
        lambda: counters.batches_in,
    )
    metrics.sampled(
        "paceline_service_requests_total",
        "Requests taken, by endpoint.",
        lambda: {("stream",): counters.stream_requests, ("http",): counters.http_requests},
        labels=("endpoint",),
    )
    metrics.sampled(
        "paceline_service_errors_total",
        "Problems answered, by code; alert on OUTCOME_UNKNOWN and INTERNAL.",
        lambda: {(code,): count for code, count in counters.errors.items()},
        labels=("code",),
    )
    metrics.sampled(
        "paceline_service_streams_open_count",
        "Open stream connections.",
        lambda: counters.streams_open,
    )
    metrics.sampled(
        "paceline_acting_since_unix_seconds",
        "When this broker began to act as master (R36), 0 if it does not; alert: above 0.",
        lambda: 0.0 if role.acting is None else role.acting.since_unix_ms / 1000,
    )
    metrics.sampled(
        "paceline_log_end_offset_bytes",
        "Position up to which the projections are folded: end on a master, else confirm.",
        lambda: role.projections.position,
    )
    metrics.sampled(
        "paceline_log_confirm_offset_bytes",
        "Confirmed position; alert when it stands while end moves.",
        lambda: role.reader.confirm,
    )


def _retry_metrics(metrics: Metrics, counters: Counters) -> None:
    metrics.sampled(
        "paceline_send_backs_total",
        "Messages that consumers sent back and that come again later.",
        lambda: counters.send_backs,
    )
    metrics.sampled(
        "paceline_dead_letters_total",
        "Messages of consumer groups without an attempt left; alert when it grows.",
        lambda: counters.dead_letters,
    )
    metrics.sampled(
        "paceline_dead_letters_resent_total",
        "Dead letters that were put into a topic again.",
        lambda: counters.resent,
    )


def _topic_metrics(metrics: Metrics, per_topic: Callable[..., Callable[[], Samples]]) -> None:
    metrics.sampled(
        "rocketmq_messages_in_total",
        "Messages stored; flat = no producers.",
        per_topic("messages_in", "normal", "false"),
    )
    metrics.sampled(
        "rocketmq_throughput_in_total",
        "Bytes stored; alert on disk growth.",
        per_topic("bytes_in", "normal", "false"),
    )
    metrics.sampled(
        "rocketmq_messages_out_total",
        "Messages delivered; flat = no consumers.",
        per_topic("messages_out", "", "false", "false"),
    )
    metrics.sampled(
        "rocketmq_throughput_out_total",
        "Bytes delivered.",
        per_topic("bytes_out", "", "false", "false"),
    )


def _lag(role: Role, routes: Routes) -> Samples:
    """Lag of every group here, on a master only (others would count it again)."""
    if role.state is not RoleState.MASTER:
        return {}
    lags: dict[tuple[str, ...], float] = {}
    projections, confirm = role.projections, role.reader.confirm
    for group, of_group in slowest_of_all(projections, routes):
        for key, committed in of_group.items():
            queue = projections.consume_queues.get(key)
            end = 0 if queue is None else queue.confirmed_end(confirm)
            at = (routes.topic_name(topic_of(key)), group, "false", "false")
            lags[at] = lags.get(at, 0) + max(0, end - committed.offset)
    return lags
