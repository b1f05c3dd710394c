"""What a consumer that was too slow has missed: messages that retention deleted before it came."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from paceline.queues import QueueName


class Gap(NamedTuple):
    """Messages [start, end) of a queue are deleted and were not delivered; `end` is next."""

    queue: QueueName
    start: int
    end: int

    def __str__(self) -> str:
        queue = self.queue
        return (
            f"messages {self.start} to {self.end - 1} of {queue.topic}"
            f" {queue.group}/{queue.queue_id} were deleted before they were read"
        )


OnGap: TypeAlias = Callable[[Gap], None]
"""Told once of each gap; consuming goes on behind it."""
