"""Settings of a producer."""

from dataclasses import dataclass

from paceline.errors import ConfigError
from paceline.producer.batch import MESSAGE_OVERHEAD_BYTES, Compression
from paceline.producer.hooks import CheckForbiddenHook, SendMessageHook
from paceline.producer.latency import LATENCY_MAX_MS, NOT_AVAILABLE_DURATION_MS
from paceline.records.compression import LZ4_LEVEL_MAX, ZSTD_LEVEL_MAX
from paceline.records.header import BATCH_BYTES_MAX, MESSAGE_BYTES_MAX, Codec
from paceline.wire.names import check_client_id, check_name


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """How a producer behaves; durations in ms."""

    delivery_timeout_ms: int = 30_000
    """From `send` to a reported failure. Must cover a failover; then the outcome is reported."""
    request_timeout_ms: int = 5_000
    """A broker that answers no batch for so long is given up. Above its slave_timeout_ms (3000)."""
    topic_wait_ms: int = 2_000
    """How long a message waits for its topic to appear: made a moment ago, or by brokers for it."""
    buffer_bytes_max: int = 64 * 1024 * 1024
    """Unacknowledged bytes held, each message charged 64 bytes more; then `send` waits."""
    batch_bytes_max: int = 1024 * 1024
    """Where a batch is closed; one larger message goes alone."""
    flights_max: int = 2
    """Writes in the air per broker; two hide the round trip, more only split batches (measured)."""
    group: str = "DEFAULT_PRODUCER"
    """Names the producers that do the same work (RocketMQ's producer group)."""
    client_id: str = ""
    """Names this producer for people who look at the brokers; empty: a random name."""
    retry_times_when_send_failed: int = 2
    """How often a keyless batch that was definitely refused may go to another broker group (R32).
    Attempts at one and the same queue go on until the delivery timeout."""
    max_message_size: int = MESSAGE_BYTES_MAX
    """Bytes of a body; larger ones are refused here."""
    compress_msg_body_over_howmuch: int = 4096
    """Batches with a body of more bytes are compressed; 0: all batches."""
    codec: Codec = Codec.ZSTD
    """How batches are compressed; Codec.NONE: never. What would not shrink is left as it is."""
    compress_level: int = 1
    """From fast to small: 1 to 22 for zstd, 1 to 12 for lz4."""
    timer_max_delay_sec: int = 3 * 24 * 3600
    """Longest delay that brokers take (their setting of this name). Longer ones are refused here:
    one would spoil its whole batch there."""
    send_latency_enable: bool = False
    """New keyless messages avoid broker groups that were slow or failed for a while."""
    latency_max_ms: tuple[int, ...] = LATENCY_MAX_MS
    not_available_duration_ms: tuple[int, ...] = NOT_AVAILABLE_DURATION_MS
    """From a latency of the first table on, the pause of the second."""
    send_hooks: tuple[SendMessageHook, ...] = ()
    """Called around each batch."""
    forbidden_hooks: tuple[CheckForbiddenHook, ...] = ()
    """Asked about each message before it is taken."""

    @property
    def compression(self) -> Compression:
        return Compression(self.codec, self.compress_level, self.compress_msg_body_over_howmuch)

    def validate(self) -> None:
        """Raises ConfigError with the sentence for the user."""
        if not 0 < self.request_timeout_ms <= self.delivery_timeout_ms:
            raise ConfigError(
                f"request_timeout_ms ({self.request_timeout_ms}) must be from 1 to"
                f" delivery_timeout_ms ({self.delivery_timeout_ms})"
            )
        if not 0 < self.batch_bytes_max <= BATCH_BYTES_MAX - MESSAGE_BYTES_MAX:
            raise ConfigError(f"batch_bytes_max ({self.batch_bytes_max}) must be 1 B to 12 MiB")
        if self.buffer_bytes_max < MESSAGE_BYTES_MAX + MESSAGE_OVERHEAD_BYTES:
            raise ConfigError(
                f"buffer_bytes_max ({self.buffer_bytes_max}) must hold a message of"
                f" {MESSAGE_BYTES_MAX} bytes"
            )
        if not 1 <= self.flights_max <= 4:
            # Brokers remember the last 5 batches per producer and queue (R31).
            raise ConfigError(f"flights_max ({self.flights_max}) must be 1 to 4")
        check_name(self.group, "group")
        if self.client_id:
            check_client_id(self.client_id)
        if self.retry_times_when_send_failed < 0:
            raise ConfigError(
                f"retry_times_when_send_failed ({self.retry_times_when_send_failed}) is negative"
            )
        if not 0 < self.max_message_size <= MESSAGE_BYTES_MAX:
            raise ConfigError(
                f"max_message_size ({self.max_message_size}) must be 1 to {MESSAGE_BYTES_MAX}"
            )
        self._check_compression()
        self._check_latency()

    def _check_compression(self) -> None:
        if self.compress_msg_body_over_howmuch < 0:
            raise ConfigError(
                f"compress_msg_body_over_howmuch ({self.compress_msg_body_over_howmuch}) is"
                " negative; 0 compresses all batches, codec = Codec.NONE none"
            )
        level_max = LZ4_LEVEL_MAX if self.codec is Codec.LZ4 else ZSTD_LEVEL_MAX
        if not 1 <= self.compress_level <= level_max:
            raise ConfigError(
                f"compress_level ({self.compress_level}) must be 1 to {level_max} for"
                f" {self.codec.name.lower()}"
            )

    def _check_latency(self) -> None:
        latencies, pauses = self.latency_max_ms, self.not_available_duration_ms
        if len(latencies) != len(pauses) or list(latencies) != sorted(latencies):
            raise ConfigError(
                f"latency_max_ms {latencies} must rise, with one value in"
                f" not_available_duration_ms {pauses} for each"
            )
        if min((*latencies, *pauses), default=0) < 0:
            raise ConfigError(f"latency_max_ms {latencies} or its pauses {pauses} are negative")
