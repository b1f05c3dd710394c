"""The client's side of a fetch session: what the broker of one connection has been asked for.

The broker keeps it as well (docs/protocol/stream.md). What is asked of a queue stands until a part
answers it, so that a request names only the queues that changed. An answer says up to which request
the broker knew: a part for a queue that was asked for anew since then is of no use.
"""

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from paceline.consumer.fetch.fetched import Ask, Place, QueueFetch, waiting
from paceline.net.cluster import BrokerConnection
from paceline.net.stream_connection import StreamConnection
from paceline.queues import QueueKey
from paceline.types import ReplicaId
from paceline.wire.stream import FOLLOW_QUEUES_MAX, FetchPart, FetchQueue


class _Standing(NamedTuple):
    """What is asked of one queue, and since which request."""

    ask: Ask
    since: int


class Following:
    """One fetch session. It ends with its connection, and with the first error."""

    def __init__(self, connection: StreamConnection) -> None:
        self.connection = connection
        self.sequence = 0
        self.under_way = 0
        """Requests without an answer."""
        self.is_over = False
        self._asked: dict[Place, _Standing] = {}
        self._gone: dict[Place, None] = {}

    @property
    def is_idle(self) -> bool:
        """Queues wait for a part, and the broker has nothing to answer with."""
        return not self.under_way and bool(self._asked) and not self.is_over

    def queues(self) -> list[QueueFetch]:
        """Those that wait for a part."""
        return waiting(standing.ask for standing in self._asked.values())

    def remove(self, key: QueueKey) -> None:
        """Nobody wants the queue any more: said with the next request."""
        place = key.topic_id, key.queue_id
        if self._asked.pop(place, None) is not None:
            self._gone[place] = None

    def ask(self, queues: Sequence[QueueFetch], rows: list[FetchQueue]) -> list[FetchQueue]:
        """The rows of the next request: `rows` of these queues, and what is gone."""
        self.sequence += 1
        for queue, row in zip(queues, rows, strict=True):
            place = row.topic_id, row.queue_id
            self._gone.pop(place, None)
            ask = queue, queue.position, queue.generation
            self._asked[place] = _Standing(ask, self.sequence)
        gone = list(islice(self._gone, max(0, FOLLOW_QUEUES_MAX - len(rows))))  # others later
        for place in gone:
            del self._gone[place]
        return rows + [FetchQueue(topic_id, queue_id, 0, 0) for topic_id, queue_id in gone]

    def answered(
        self, parts: list[tuple[FetchPart, memoryview]], seen: int
    ) -> tuple[dict[Place, Ask], list[tuple[FetchPart, memoryview]]]:
        """The asks that these parts answer, which stand no more, and the parts that answer any."""
        asks: dict[Place, Ask] = {}
        useful = []
        for part in parts:
            place = part[0].topic_id, part[0].queue_id
            standing = self._asked.get(place)
            if standing is not None and standing.since <= seen:
                del self._asked[place]
                asks[place] = standing.ask
                useful.append(part)
        return asks, useful

    def end(self) -> None:
        """The broker knows nothing of it any more, or is to forget it."""
        self.is_over = True
        self._asked.clear()


class UnderWay:
    """One request under way."""

    __slots__ = ("asked", "connection", "following", "replica", "silent_at")

    def __init__(
        self,
        asked: list[Ask],
        connection: BrokerConnection,
        silent_at: float,
        replica: ReplicaId | None,
        following: Following | None = None,
    ) -> None:
        """`following`: the session that this is a request of, and what was asked stands there."""
        self.asked = asked
        self.connection = connection
        self.silent_at = silent_at
        self.replica = replica
        self.following = following

    def queues(self) -> list[QueueFetch]:
        """The queues that still wait for this answer."""
        if self.following is not None:
            return self.following.queues()
        return waiting(self.asked)
