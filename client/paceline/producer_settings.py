"""Settings of a producer."""

from dataclasses import dataclass

from paceline.errors import ConfigError
from paceline.outbox import MESSAGE_OVERHEAD_BYTES
from paceline.records.header import BATCH_BYTES_MAX, MESSAGE_BYTES_MAX, Codec


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """How a producer behaves; durations in ms."""

    delivery_timeout_ms: int = 30_000
    """From `send` to a reported failure. Must cover a failover; then the outcome is reported."""
    request_timeout_ms: int = 5_000
    """A broker that answers no batch for so long is given up. Above its slave_timeout_ms (3000)."""
    topic_wait_ms: int = 2_000
    """How long a message waits for its topic to appear (a topic made a moment ago)."""
    buffer_bytes_max: int = 64 * 1024 * 1024
    """Unacknowledged bytes held, each message charged 64 bytes more; then `send` waits."""
    batch_bytes_max: int = 1024 * 1024
    """Where a batch is closed; one larger message goes alone."""
    flights_max: int = 2
    """Writes in the air per broker; two hide the round trip, more only split batches (measured)."""
    codec: Codec = Codec.NONE
    """Compression of whole batches."""

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
