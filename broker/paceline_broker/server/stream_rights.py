"""What one stream may do: decided once for each topic, until users or rights change."""

from collections.abc import Iterable

from paceline.errors import UnauthenticatedError
from paceline.platform.ports import Buffer
from paceline.security.access import Asker
from paceline.wire.rights import PUB, SUB
from paceline.wire.stream import FetchQueue

_TOPIC_ID = slice(68, 72)
"""In a record batch, little-endian."""


def topic_of_batch(batch: Buffer) -> int:
    """The topic id in a batch's header; anything, of what is no batch."""
    return int.from_bytes(batch[_TOPIC_ID], "little")


class StreamRights:
    """Of one connection, while rights are switched on."""

    def __init__(self, asker: Asker) -> None:
        self.asker = asker._replace(granted=set())
        self._sent: set[int] = set()
        self._read: set[int] = set()

    def check_send(self, batch: Buffer) -> None:
        """Raise unless it may send to the batch's topic. What is no batch, the sender refuses."""
        topic_id = topic_of_batch(batch)
        if topic_id not in self._sent and len(batch) >= _TOPIC_ID.stop:
            self.asker.check_topic(topic_id, PUB)
            self._sent.add(topic_id)

    def check_read(self, queues: Iterable[FetchQueue]) -> None:
        """Raise unless it may read the topics of all these queues."""
        new = {queue.topic_id for queue in queues} - self._read
        if new:
            self.asker.check_topics(new, SUB)
            self._read |= new

    def still_holds(self) -> bool:
        """Whether all that it has done, it may do again: asked when users or rights changed."""
        self._sent.clear()
        self._read.clear()
        return self.asker.still_holds()

    def is_valid(self) -> bool:
        """Whether its key counts, where that is enforced."""
        access = self.asker.access
        try:
            if access.is_enforced:
                access.check_valid(self.asker.principal)
        except UnauthenticatedError:
            return False
        return True
