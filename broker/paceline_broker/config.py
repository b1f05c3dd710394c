"""Settings of one broker process; those of its broker group live in the controller (DESIGN 5)."""

import re
from dataclasses import dataclass

from paceline.platform.address import Address
from paceline.platform.config import require, require_addresses, setting
from paceline.records.dues import MESSAGE_DELAY_LEVEL, parse_levels
from paceline.security.node_settings import NodeSettings
from paceline.server.byte_budget import LIMIT_BYTES, LIMIT_BYTES_MIN
from paceline.server.connections import CONNECTIONS_MAX
from paceline.server.http_origin import own_hosts
from paceline.wire.commands import NAME_PATTERN
from paceline.wire.session_commands import ELECTION_PRIORITY_MAX
from paceline.wire.topic_commands import QUEUES_MAX

MIB = 1024 * 1024
HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(NodeSettings):
    """Effective configuration of `paceline-broker`; see `deploy/broker.example.toml`."""

    group: str = setting("Broker group this broker is a replica of (RocketMQ's brokerName).")
    data_dir: str = setting("Folder of the log. One broker per folder; never copy one to another.")
    controllers: tuple[str, ...] = setting("Client addresses (host:port) of all controllers.")
    advertised: Address | None = setting(
        "host:port at which clients reach `listen`; default: the same.", default=None
    )
    replication_listen: Address = setting("host:port for the replicas of the group.")
    replication_advertised: Address | None = setting(
        "host:port at which replicas reach `replication_listen`; default: the same.", default=None
    )
    segment_size_bytes: int = setting(
        "Size of a preallocated log file; a record batch never spans two.",
        default=1024 * MIB,
        minimum=MIB,
        maximum=4096 * MIB,
    )
    is_learner: bool = setting(
        "This broker replicates but is never counted for an acknowledgement and never elected "
        "(R18). Change it and restart to promote or demote.",
        default=False,
    )
    election_priority: int = setting(
        "RocketMQ's brokerElectionPriority: of healthy members the one with the least is elected, "
        "and gets mastership back when it was away. Default: nobody is preferred.",
        default=ELECTION_PRIORITY_MAX,
        minimum=0,
        maximum=ELECTION_PRIORITY_MAX,
    )
    heartbeat_interval_ms: int = setting(
        "Time between two heartbeats to the controllers.", default=300, minimum=10
    )
    replica_lag_ms_max: int = setting(
        "A member silent or behind for this long (the master's own running time) leaves the sync "
        "state set (R12).",
        default=2000,
        minimum=100,
    )
    disk_stall_ms: int = setting(
        "A disk that finishes no sync for this long while bytes wait is stalled: a master on it "
        "is replaced if the disk of another member does clearly better. Large syncs get up to a "
        "second more.",
        default=500,
        minimum=100,
    )
    slave_timeout_ms: int = setting(
        "A send not confirmed after this is answered FLUSH_SLAVE_TIMEOUT: stored, outcome unknown.",
        default=3000,
        minimum=50,
    )
    unconfirmed_bytes_max: int = setting(
        "Above this many bytes between confirm and end, sends are refused with 429 (R27). The "
        "broker stays below it by itself: it takes what is confirmed within some 80 ms.",
        default=256 * MIB,
        minimum=MIB,
    )
    request_bytes_max: int = setting(
        "Bytes that this broker holds for requests and answers of clients, over all connections; "
        "beyond it, and beyond a client's share of it, requests are refused with 429 (ADR 18).",
        default=LIMIT_BYTES,
        minimum=LIMIT_BYTES_MIN,
    )
    connections_max: int = setting(
        "Connections of clients, streams included. An address gets half of it at most, and less "
        "the more others there are; beyond that its oldest silent or idle connection goes for each "
        "new one (ADR 18). Each needs an open file.",
        default=CONNECTIONS_MAX,
        minimum=64,
    )
    checkpoint_interval_ms: int = setting(
        "Time between two projection checkpoints; bounds the fold at a restart.",
        default=10_000,
        minimum=100,
    )
    scrub_interval_hours: float = setting(
        "Time from the beginning of one verification of the whole log to that of the next; 0: what "
        "the disk changed is found only by readers.",
        default=24.0,
        minimum=0,
    )
    scrub_bytes_per_s: int = setting(
        "What the scrubber reads at most; 16 MiB/s take some 4 % of one core.",
        default=16 * MIB,
        minimum=4096,
    )
    controller_timeout_ms: int = setting(
        "How long one request to a controller may take before the next one is asked.",
        default=1500,
        minimum=50,
    )
    lock_lease_ms: int = setting(
        "Longest lease of a queue lock, in log time; who asks for more is granted this.",
        default=60_000,
        minimum=1000,
    )
    channel_expired_timeout_ms: int = setting(
        "RocketMQ's channelExpiredTimeout: a client that says nothing for so long is not listed "
        "any more. Clients say every 30 s that they are there.",
        default=120_000,
        minimum=100,
    )
    slave_read_enable: bool = setting(
        "RocketMQ's slaveReadEnable (off there): consumers far behind are sent to a replica.",
        default=True,
    )
    access_message_in_memory_max_ratio: int = setting(
        "Far behind is further than this share of the machine's memory, in percent.",
        default=40,
        minimum=0,
        maximum=100,
    )
    hooks: tuple[str, ...] = setting(
        "Functions of yours, module:function, that add checks before messages are put and watchers "
        "of requests (docs/features/hooks.md). They run in the broker: their bugs are its bugs.",
        default=(),
    )
    auto_create_topic_enable: bool = setting(
        "RocketMQ's autoCreateTopicEnable: a send to a topic that does not exist makes it.",
        default=True,
    )
    default_topic_queue_nums: int = setting(
        "RocketMQ's defaultTopicQueueNums: queues of such a topic in each broker group.",
        default=8,
        minimum=1,
        maximum=QUEUES_MAX,
    )
    auto_create_subscription_group: bool = setting(
        "RocketMQ's autoCreateSubscriptionGroup: a consumer group is made when it first consumes.",
        default=True,
    )
    file_reserved_time_ms: int = setting(
        "How long messages are kept (RocketMQ's fileReservedTime, 72 h): a log file goes when its "
        "newest message is older.",
        default=72 * HOUR_MS,
        minimum=1000,
    )
    log_size_bytes_max: int = setting(
        "Above this size of the log its oldest files go, whatever their age; 0: no limit.",
        default=0,
        minimum=0,
    )
    disk_space_clean_forcibly_ratio: int = setting(
        "Percent of the disk in use above which the oldest file goes whatever its age.",
        default=85,
        minimum=1,
        maximum=100,
    )
    disk_space_warning_level_ratio: int = setting(
        "Percent of the disk in use above which pins no longer hold files back, and sends are "
        "refused (DISK_FULL).",
        default=90,
        minimum=1,
        maximum=100,
    )
    disk_free_bytes_enough: int = setting(
        "The two ratios say nothing while this much of the disk is free.",
        default=16 * 1024 * MIB,
        minimum=0,
    )
    clean_resource_interval_ms: int = setting(
        "Time between two looks at what may be deleted (RocketMQ's cleanResourceInterval).",
        default=10_000,
        minimum=100,
    )
    clock_skew_ms_max: int = setting(
        "A master whose wall clock is further than this from that of most controllers deletes and "
        "forgets nothing (R29).",
        default=5000,
        minimum=10,
    )
    message_delay_level: str = setting(
        "The delays of levels 1, 2, ...: numbers with s, m, h or d (RocketMQ's messageDelayLevel). "
        "The same on all brokers of a group.",
        default=MESSAGE_DELAY_LEVEL,
    )
    timer_max_delay_sec: int = setting(
        "Longest delay of a message (RocketMQ's timerMaxDelaySec, 3 days); above it a send is "
        "refused.",
        default=3 * 24 * 3600,
        minimum=1,
        maximum=366 * 24 * 3600,
    )
    timer_pending_max: int = setting(
        "Messages that wait for their time, at most; above it sends of delayed ones are refused "
        "with 429. A million take some 40 MB of memory.",
        default=10_000_000,
        minimum=1,
    )
    timer_congest_num_each_slot: int = setting(
        "Messages due in the same second, at most (RocketMQ's timerCongestNumEachSlot); above it "
        "429. Default: no limit.",
        default=2**31 - 1,
        minimum=1,
    )
    recall_message_enable: bool = setting(
        "Whether a delayed message can be taken back before it is due (RocketMQ's "
        "recallMessageEnable, which is off there).",
        default=True,
    )
    enable_remote_escape: bool = setting(
        "RocketMQ's enableRemoteEscape: as acting master, send delayed and retried messages that "
        "are due to another broker group; as master after one, wait up to a second to hear which. "
        "The same on all brokers of a group.",
        default=False,
    )
    transaction_time_out_ms: int = setting(
        "A half message that is older is checked: its producers are asked (RocketMQ's "
        "transactionTimeOut). A message may name another time itself.",
        default=6_000,
        minimum=100,
    )
    transaction_check_interval_ms: int = setting(
        "Time between two checks of one half message (transactionCheckInterval).",
        default=30_000,
        minimum=100,
    )
    transaction_check_max: int = setting(
        "A half message that nobody ended after so many checks goes to the topic "
        "TRANS_CHECK_MAX_TIME_TOPIC (transactionCheckMax).",
        default=15,
        minimum=1,
    )
    producer_states_max: int = setting(
        "Pairs of an idempotent producer and a queue that are remembered, some 700 bytes each on "
        "every replica. Beyond it a producer that a queue does not know gets 429; above half of it "
        "silent ones are forgotten after 10 minutes instead of 7 days.",
        default=200_000,
        minimum=1000,
    )
    transaction_halves_max: int = setting(
        "Open half messages of this broker group at one time; beyond it they are refused with 429.",
        default=100_000,
        minimum=1,
    )
    reject_transaction_message: bool = setting(
        "Refuse half messages (rejectTransactionMessage).", default=False
    )

    def own_hosts(self) -> frozenset[str]:
        """Names of this node in requests (http_origin.py)."""
        advertised = self.advertised or self.listen
        return own_hosts(self.listen.host, advertised.host, allowed=self.allowed_hosts)

    def node_id(self) -> str:
        """What tells this broker from the others of the cluster before it has an id."""
        return f"{self.group}@{self.listen}"

    def validate(self) -> None:
        """Relations across fields; raises ConfigError with a sentence for the operator."""
        require(
            re.fullmatch(NAME_PATTERN, self.group) is not None,
            f"group {self.group!r} must be 1 to 127 of A-Z a-z 0-9 _ . - and more than dots",
        )
        require(len(self.controllers) > 0, "controllers is empty: name at least one host:port")
        require_addresses("controllers", self.controllers)
        require(
            self.listen.port == 0 or self.listen != self.replication_listen,
            f"listen and replication_listen are both {self.listen}: they must differ",
        )
        require(
            self.heartbeat_interval_ms * 3 <= self.replica_lag_ms_max,
            f"heartbeat_interval_ms ({self.heartbeat_interval_ms}) must be at most a third of "
            f"replica_lag_ms_max ({self.replica_lag_ms_max})",
        )
        require(
            self.disk_space_clean_forcibly_ratio <= self.disk_space_warning_level_ratio,
            f"disk_space_clean_forcibly_ratio ({self.disk_space_clean_forcibly_ratio}) must not be "
            f"above disk_space_warning_level_ratio ({self.disk_space_warning_level_ratio})",
        )
        try:
            parse_levels(self.message_delay_level)
        except ValueError as error:
            require(False, f"message_delay_level: {error}")
        self.require_protection(
            {"listen": self.listen, "replication_listen": self.replication_listen}
        )
