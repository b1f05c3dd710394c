"""What tests of follow share with others."""

from tests.support.service.fakes import Bench
from tests.support.service.fetch import Fetches

from paceline.wire.stream import FetchQueue


class Follower:
    """The asking side of one session, by hand."""

    def __init__(self, bench: Bench, *, max_bytes: int = 1 << 20) -> None:
        self.bench = bench
        self.sink = Fetches()
        self.sequence = 0
        self.max_bytes = max_bytes

    def ask(
        self, *queues: tuple[int, int], wait_ms: int = 5_000, filter_id: int = 0, topic: int = 1
    ) -> int:
        """Ask for (queue, offset)s; the number of the request."""
        rows = [FetchQueue(topic, queue, at, 1 << 20, filter_id) for queue, at in queues]
        return self.send(rows, wait_ms=wait_ms)

    def send(self, rows: list[FetchQueue], *, wait_ms: int = 5_000) -> int:
        self.sequence += 1
        self.bench.service.fetcher.sessions.follow(
            rows,
            sequence=self.sequence,
            wait_ms=wait_ms,
            max_bytes=self.max_bytes,
            sink=self.sink,
            request_id=self.sequence,
        )
        return self.sequence

    def parts(self, request_id: int) -> list[tuple[int, int]]:
        """(queue, code) of an answer."""
        return [(part.queue_id, part.code) for part in self.sink.answers[request_id].parts]

    def queues(self, request_id: int) -> list[int]:
        return [queue for queue, _ in self.parts(request_id)]
