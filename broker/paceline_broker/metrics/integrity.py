"""Metrics of the log's integrity: damage, repairs, progress of the scrubber (R23, R24)."""

from paceline.platform.telemetry import Metrics
from paceline_broker.integrity.repair import LogRepairer


def register_repairs(metrics: Metrics, care: LogRepairer) -> None:
    """Name what the care of the log counts; all but the first since this process started."""
    counts = care.scrubber.counts
    gauge = metrics.sampled
    gauge(
        "paceline_log_is_damaged",
        "1 while bytes that were durable are not what was written: this broker acknowledges "
        "nothing and does not lead; alert: 1 for a minute, no member has those bytes.",
        lambda: 0 if care.damage is None else 1,
    )
    gauge(
        "paceline_log_damages_total",
        "Places where the disk had changed the log; alert: rises, replace the disk if it goes on.",
        lambda: care.damages_count,
    )
    gauge(
        "paceline_log_repairs_total",
        "Damaged stretches mended from another member; alert: below the damages found for long.",
        lambda: care.repaired_count,
    )
    gauge(
        "paceline_log_repaired_bytes_total",
        "Bytes of the log written anew from another member.",
        lambda: care.repaired_bytes,
    )
    gauge(
        "paceline_log_quarantine_files_count",
        "Files in quarantine/ with bytes that were replaced; look at them, then delete them.",
        lambda: care.aside.files_count,
    )
    gauge(
        "paceline_log_quarantine_bytes",
        "Their size; the oldest go above 64 MiB.",
        lambda: care.aside.size_bytes,
    )
    gauge(
        "paceline_scrub_passes_total",
        "Times the whole log was read and found right; alert: flat for two scrub_interval_hours.",
        lambda: counts.passes,
    )
    gauge(
        "paceline_scrub_read_bytes_total",
        "Bytes of the log the scrubber has verified.",
        lambda: counts.bytes,
    )
    gauge(
        "paceline_scrub_position_bytes",
        "Where the present pass is in the log; 0 between passes.",
        lambda: counts.position,
    )
    gauge(
        "paceline_scrub_side_files_total",
        "Small files beside the log that were damaged and written anew; alert: rises.",
        lambda: counts.side_files,
    )
