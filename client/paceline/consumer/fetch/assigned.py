"""The queues of a pull consumer: what was fetched of each and is not handed out yet."""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from paceline.consumer.fetch.fetched import FetchedBatch, QueueFetch
from paceline.errors import PacelineError
from paceline.filters import ALL, Filter
from paceline.message import ReceivedMessage, received_messages
from paceline.queues import QueueName
from paceline.records.decode import BatchView
from paceline.wire.static_topics import Place


class PulledBatch(NamedTuple):
    """A whole record batch, CRC checked; records before number `skip` are not wanted."""

    queue: QueueName
    view: BatchView
    skip: int
    wanted: Filter = ALL
    place: Place | None = None
    """Which segment of a logical queue it is in, if the topic is static."""

    def messages(self) -> Iterable[ReceivedMessage]:
        """The wanted messages."""
        name, wanted = self.queue, self.wanted
        return received_messages(
            self.view,
            topic=name.topic,
            group=name.group,
            skip=self.skip,
            wanted=wanted,
            place=self.place,
        )


class Assigned:
    """One assigned queue. `position` is what `poll` returns next."""

    __slots__ = (
        "_decoded",
        "batches",
        "corrupt_attempts",
        "decoded_at",
        "error",
        "fetch",
        "goes_on_at",
        "held_bytes",
        "is_behind",
        "name",
        "place",
        "position",
    )

    def __init__(self, name: QueueName, fetch: QueueFetch) -> None:
        self.name = name
        self.fetch = fetch
        self.position = fetch.position
        self.batches: deque[FetchedBatch] = deque()
        self.held_bytes = 0
        self.error: PacelineError | None = None
        self.goes_on_at: int | None = None
        """The first kept offset, once `error` has told that what comes before it is deleted."""
        self.corrupt_attempts = 0
        self.place: Place | None = None
        """Which segment of a logical queue it is, if the topic is static."""
        self.is_behind = False
        """It waits for an earlier segment: nothing of it is fetched or handed out."""
        self._decoded: list[ReceivedMessage] | None = None
        self.decoded_at = 0

    def decoded(self) -> list[ReceivedMessage]:
        """The messages of the first batch; those before `decoded_at` were handed out."""
        if self._decoded is None:
            view = self.batches[0].view
            skip = max(0, self.position - view.header.base_queue_offset)
            name = self.name
            self._decoded = list(
                received_messages(
                    view,
                    topic=name.topic,
                    group=name.group,
                    skip=skip,
                    wanted=self.fetch.wanted,
                    place=self.place,
                )
            )
            self.decoded_at = 0
        return self._decoded

    def forget_decoded(self) -> None:
        """The first batch changes."""
        self._decoded = None
