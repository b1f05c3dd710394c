"""What a stored retention record says, for those who dump logs."""

from paceline.records.decode import BatchView
from paceline.records.header import Kind


def given_up(view: BatchView) -> int:
    """Below this nothing is kept, as the retention record `view` says; 0 for all else (R26)."""
    if view.header.kind != Kind.RETENTION:
        return 0
    return int(view.document()["log_start"] or 0)
