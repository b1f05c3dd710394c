"""Pure: the metrics that dashboards made for RocketMQ query, by name, kind and labels.

paceline's own metrics are named `paceline_<subsystem>_<noun>_<unit>[_total]` where they are made.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

NODE_LABELS = ("cluster", "node_type", "node_id")
"""The first labels of every RocketMQ metric."""

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """A metric that RocketMQ's dashboards query. `labels` come after `NODE_LABELS`."""

    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


_OF_TOPIC = ("topic", "message_type", "is_system")
_OF_GROUP = ("topic", "consumer_group", "is_retry", "is_system")

ROCKETMQ: Mapping[str, Expected] = {
    "rocketmq_messages_in_total": Expected(
        kind="counter", help="Messages stored; flat = no producers.", labels=_OF_TOPIC
    ),
    "rocketmq_throughput_in_total": Expected(
        kind="counter", help="Bytes stored; alert on disk growth.", labels=_OF_TOPIC
    ),
    "rocketmq_messages_out_total": Expected(
        kind="counter", help="Messages delivered; flat = no consumers.", labels=_OF_GROUP
    ),
    "rocketmq_throughput_out_total": Expected(
        kind="counter", help="Bytes delivered.", labels=_OF_GROUP
    ),
    "rocketmq_consumer_lag_messages": Expected(
        kind="gauge", help="Messages not yet consumed; alert when it grows.", labels=_OF_GROUP
    ),
    "rocketmq_consumer_lag_latency": Expected(
        kind="gauge", help="Age in ms of the oldest unconsumed message.", labels=_OF_GROUP
    ),
    "rocketmq_consumer_inflight_messages": Expected(
        kind="gauge", help="Delivered, not yet acknowledged.", labels=_OF_GROUP
    ),
    "rocketmq_consumer_ready_messages": Expected(
        kind="gauge", help="Ready for delivery.", labels=_OF_GROUP
    ),
    "rocketmq_consumer_queueing_latency": Expected(
        kind="gauge", help="Age in ms of the oldest message in flight.", labels=_OF_GROUP
    ),
    "rocketmq_send_to_dlq_messages_total": Expected(
        kind="counter", help="Dead-lettered; alert on any.", labels=_OF_GROUP
    ),
    "rocketmq_producer_connections": Expected(kind="gauge", help="Connected producers."),
    "rocketmq_consumer_connections": Expected(
        kind="gauge", help="Connected consumers.", labels=("consumer_group",)
    ),
    "rocketmq_half_messages": Expected(
        kind="gauge", help="Undecided transactions; alert when it grows.", labels=_OF_TOPIC
    ),
    "rocketmq_message_size": Expected(
        kind="histogram", help="Size of message bodies in bytes.", labels=("topic", "message_type")
    ),
}
