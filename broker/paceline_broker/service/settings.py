"""Limits of the service of one broker; `app.py` fills them from the broker's configuration."""

from dataclasses import dataclass

from paceline.records.dues import MESSAGE_DELAY_LEVEL, parse_levels
from paceline.server.byte_budget import LIMIT_BYTES
from paceline.server.connections import CONNECTIONS_MAX
from paceline_broker.config import BrokerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """Bounds and waits. Defaults are for production and tests alike."""

    send_timeout_ms: int = 3000
    """How long an answer waits for confirm (RocketMQ's slaveTimeout)."""
    lock_lease_ms: int = 60_000
    """Default and longest lease of a queue lock (RocketMQ's lockMaxLiveTime)."""
    fetch_wait_ms_max: int = 30_000
    """Longest long poll (RocketMQ's brokerSuspendMaxTimeMillis is 15 s, Kafka's users ask 30)."""
    fetches_waiting_max: int = 10_000
    """Long polls at one time over all connections; beyond it 429."""
    turn_requests_max: int = 64
    """Requests of streams begun, and long polls answered, in one turn of the event loop."""
    fetch_queues_max: int = 1024
    followed_queues_max: int = 1_000_000
    """Queues that fetch sessions hold, over all connections; beyond it 429."""
    view_wait_ms: int = 1000
    """How long a request for a topic newer than the view waits for it (DESIGN 6)."""
    parked_batches_max: int = 1024
    """Batches that wait for a view at one time; beyond it they are refused at once."""
    slow_read_bytes: int | None = None
    """What lies so far below confirm is read from a replica; None: from the master."""
    member_expiry_ms: int = 10_000
    member_lost_ms: int = 300
    """How long a group member whose stream has closed may take to come back; then it is dropped."""
    member_interval_ms: int = 1000
    """Time between heartbeats of a group member; a new coordinator waits as long (DESIGN 6)."""
    members_max: int = 10_000
    """Members over all groups; beyond it 429 (soft state must be bounded)."""
    channel_expired_timeout_ms: int = 120_000
    """A client that says nothing for so long is on no list of clients any more."""
    clients_max: int = 10_000
    """Listed connections of clients; beyond it 429 (they are served all the same)."""
    auto_create_topic_enable: bool = True
    default_topic_queue_nums: int = 8
    auto_create_subscription_group: bool = True
    create_timeout_ms: int = 3000
    """How long a request for a new topic or group waits for the controllers."""
    producer_expiry_ms: int = 7 * 24 * 3600 * 1000
    """How long a silent producer's sequences are remembered (DESIGN 5)."""
    producer_states_max: int = 200_000
    """Pairs of a producer and a queue that are remembered."""
    message_delay_level_ms: tuple[int, ...] = parse_levels(MESSAGE_DELAY_LEVEL)
    timer_max_delay_sec: int = 3 * 24 * 3600
    timer_pending_max: int = 10_000_000
    """Messages that wait for their time; beyond it 429."""
    timer_congest_num_each_slot: int = 2**31 - 1
    """Messages due in one second; beyond it 429."""
    recall_message_enable: bool = True
    enable_remote_escape: bool = False
    """A new master waits to hear what an acting one has sent elsewhere (R36)."""
    transaction_time_out_ms: int = 6_000
    """A half message this old is checked (RocketMQ's transactionTimeOut), unless it says another
    immunity itself."""
    transaction_check_interval_ms: int = 30_000
    """Between two checks of one half message (transactionCheckInterval)."""
    transaction_check_max: int = 15
    """After so many checks it goes to the check-max topic (transactionCheckMax)."""
    transaction_age_ms_max: int = 72 * 3600 * 1000
    """At this age it does, too, however often it was checked (fileReservedTime)."""
    open_halves_max: int = 100_000
    """Beyond it half messages are refused with 429."""
    reject_transaction_message: bool = False
    pop_inflight_message_threshold: int = 10_000
    """Messages of one queue that may be out at the receivers of a group (RocketMQ's)."""
    pop_polling_size: int = 1024
    """Receivers of a group that may wait at one queue; beyond it POLLING_FULL."""
    request_bytes_max: int = LIMIT_BYTES
    """Bytes held for requests and answers over all connections (ADR 18); beyond it 429."""
    connections_max: int = CONNECTIONS_MAX
    """Connections of clients, over all addresses (ADR 18)."""
    max_pop_polling_size: int = 100_000
    """Receivers that may wait in all."""
    is_closed: bool = False
    """Rights are enforced, also while the cluster has them off."""


def service_settings(config: BrokerConfig, *, slow_read_bytes: int | None) -> ServiceSettings:
    """What the settings of a broker mean for its use-cases."""
    return ServiceSettings(
        send_timeout_ms=config.slave_timeout_ms,
        lock_lease_ms=config.lock_lease_ms,
        request_bytes_max=config.request_bytes_max,
        connections_max=config.connections_max,
        slow_read_bytes=slow_read_bytes,
        channel_expired_timeout_ms=config.channel_expired_timeout_ms,
        message_delay_level_ms=parse_levels(config.message_delay_level),
        timer_max_delay_sec=config.timer_max_delay_sec,
        timer_pending_max=config.timer_pending_max,
        timer_congest_num_each_slot=config.timer_congest_num_each_slot,
        recall_message_enable=config.recall_message_enable,
        enable_remote_escape=config.enable_remote_escape,
        transaction_time_out_ms=config.transaction_time_out_ms,
        transaction_check_interval_ms=config.transaction_check_interval_ms,
        transaction_check_max=config.transaction_check_max,
        transaction_age_ms_max=config.file_reserved_time_ms,
        open_halves_max=config.transaction_halves_max,
        producer_states_max=config.producer_states_max,
        reject_transaction_message=config.reject_transaction_message,
        auto_create_topic_enable=config.auto_create_topic_enable,
        default_topic_queue_nums=config.default_topic_queue_nums,
        auto_create_subscription_group=config.auto_create_subscription_group,
        is_closed=config.is_closed,
    )
