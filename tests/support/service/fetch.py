"""What tests of fetch share with others."""

from collections.abc import Sequence

from tests.support.http.door import a_batch
from tests.support.service.fakes import Bench
from tests.support.service.send import Answers

from paceline.errors import PacelineError
from paceline.records.decode import iter_batches
from paceline.wire.stream import (
    FetchQueue,
)
from paceline_broker.service.fetch.read import Fetched


class Fetches:
    """A fetch sink that remembers."""

    asker = None

    def __init__(self) -> None:
        self.answers: dict[int, Fetched] = {}
        self.errors: dict[int, PacelineError] = {}

    def fetched(self, request_id: int, answer: Fetched) -> None:
        assert request_id not in self.answers, "answered twice"
        self.answers[request_id] = answer

    def failed(self, request_id: int, error: PacelineError) -> None:
        self.errors[request_id] = error

    def codes(self, request_id: int = 1) -> list[int]:
        return [part.code for part in self.answers[request_id].parts]

    def counts(self, request_id: int = 1) -> int:
        """Batches in an answer."""
        whole = b"".join(self.answers[request_id].buffers)
        return sum(1 for _ in iter_batches(whole))


def fetch(
    bench: Bench,
    sink: Fetches,
    *queues: tuple[int, int],
    request_id: int = 1,
    wait_ms: int = 0,
    max_bytes: int = 1 << 20,
    min_bytes: int = 1,
    topic_id: int = 1,
) -> None:
    """Ask for (queue id, offset)s of topic 1."""
    asked: Sequence[FetchQueue] = [
        FetchQueue(topic_id, queue, offset, max_bytes) for queue, offset in queues
    ]
    bench.service.fetcher.fetch(
        asked,
        wait_ms=wait_ms,
        max_bytes=max_bytes,
        min_bytes=min_bytes,
        sink=sink,
        request_id=request_id,
    )


def send(bench: Bench, queue_id: int = 0, size: int = 10, count: int = 1) -> None:
    bench.service.sender.send(a_batch(*[b"x" * size] * count, queue_id=queue_id), Answers(), 0)
