"""The metrics of the disk that the log lies on: what operators watch before sends are refused."""

from paceline.platform.telemetry import Metrics
from paceline_broker.retention.cleaner import Cleaner
from paceline_broker.storage.store import Store


def register_disk(metrics: Metrics, cleaner: Cleaner, store: Store) -> None:
    """Name what the cleaner saw at its last look (R26)."""
    metrics.sampled(
        "paceline_disk_free_bytes",
        "Free on the disk of the data folder.",
        lambda: cleaner.space.free_bytes,
    )
    metrics.sampled(
        "paceline_disk_used_ratio",
        "Percent of that disk in use; alert below disk_space_warning_level_ratio.",
        lambda: cleaner.space.used_ratio,
    )
    metrics.sampled(
        "paceline_disk_is_full",
        "1 while the disk has no room and sends are refused with DISK_FULL; alert at 1.",
        lambda: 0 if store.log.has_room else 1,
    )
    metrics.sampled(
        "paceline_log_start_offset_bytes",
        "Nothing below is kept, as the newest confirmed retention record says.",
        lambda: store.projections.retained.log_start,
    )
