"""Connections of clients: requests in order one way, answers in order the other.

Like TCP: a connection that breaks loses a random tail of what is under way each way. What was sent
before may still reach the broker long after, when the client has tried again elsewhere: that is how
one batch comes to be stored by an attempt that nobody waits for any more (R32). The client learns
of the break only when it is told.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

from paceline.errors import PacelineError
from paceline.platform.runtime import spawn
from paceline.security import access
from paceline.security.identity import Principal
from paceline.wire.stream import FetchPart, FetchQueue, ProduceAnswer
from paceline.wire.users import ANONYMOUS
from paceline_broker.service.fetch.read import Fetched
from paceline_chaos.protocol_sim.dice import Dice
from paceline_chaos.protocol_sim.process import Process


class Produce(NamedTuple):
    """A batch, as `Outbox` encoded it."""

    batch: bytes


class Fetch(NamedTuple):
    """Read a queue."""

    queue: FetchQueue


class Call(NamedTuple):
    """A call by name: offsets, locks, ends."""

    name: str
    document: Mapping[str, Any]


Request: TypeAlias = Produce | Fetch | Call


class FetchAnswer(NamedTuple):
    """What a fetch of one queue was answered."""

    part: FetchPart
    content: bytes


Answer: TypeAlias = ProduceAnswer | FetchAnswer | dict[str, Any] | PacelineError


class Asker(Protocol):
    """The client behind a door."""

    name: str

    def answered(self, number: int, answer: Answer, node: str) -> None:
        """The answer to request `number`."""
        ...

    def lost(self) -> None:
        """The connection is gone: what it asked has an unknown outcome."""
        ...


class Door:
    """One connection of a client to one process. Also the sink that the service answers to."""

    asker = None  # of a `FetchSink`: all clients count as one address

    def __init__(self, client: Asker, node: Process) -> None:
        self.client = client
        self.node = node
        self.generation = node.generation
        self.requests: deque[tuple[int, Request]] = deque()
        self.answers: deque[tuple[int, Answer]] = deque()
        self.is_broken = False
        self.is_left = False
        """The client has turned away; requests under way may still arrive."""
        self._numbers = 0

    @property
    def is_over(self) -> bool:
        return self.is_left and not self.requests

    def ask(self, request: Request) -> int:
        self._numbers += 1
        if not self.is_broken:
            self.requests.append((self._numbers, request))
        return self._numbers

    def leave(self) -> None:
        """The client gives up: nothing of it is heard any more."""
        self.is_left = True
        self.answers.clear()

    def break_off(self, dice: Dice) -> None:
        """The network or the process ends it."""
        self.is_broken = True
        for under_way in (self.requests, self.answers):
            while under_way and dice.happens(0.4):
                under_way.pop()
        if not self.node.is_up or self.node.generation != self.generation:
            self.requests.clear()

    # -- the broker's side

    def serve(self) -> None:
        """The next request reaches the process."""
        number, request = self.requests.popleft()
        service = self.node.service
        match request:
            case Produce(batch):
                service.sender.send(batch, self, number)
            case Fetch(queue):
                service.fetcher.fetch(
                    [queue],
                    wait_ms=0,
                    max_bytes=queue.max_bytes,
                    min_bytes=1,
                    sink=self,
                    request_id=number,
                )
            case Call(name, document):
                spawn(self._call(number, name, document), name="call")

    async def _call(self, number: int, name: str, document: Mapping[str, Any]) -> None:
        try:
            service = self.node.service
            asker = access.Asker(service.access, Principal(ANONYMOUS, ""))
            answer: Answer = await service.calls.named(name, document, asker=asker)
        except PacelineError as error:
            answer = error
        self._answer(number, answer)

    def produced(self, request_id: int, answer: ProduceAnswer) -> None:
        self._answer(request_id, answer)

    def fetched(self, request_id: int, answer: Fetched) -> None:
        content = b"".join(answer.buffers)  # the log may be cut under a view before it arrives
        self._answer(request_id, FetchAnswer(answer.parts[0], content))

    def failed(self, request_id: int, error: PacelineError) -> None:
        self._answer(request_id, error)

    def _answer(self, number: int, answer: Answer) -> None:
        if not self.is_broken and not self.is_left:
            self.answers.append((number, answer))

    # -- the client's side

    def deliver(self) -> None:
        """The next answer reaches the client, or the news that there will be none."""
        if self.answers:
            number, answer = self.answers.popleft()
            self.client.answered(number, answer, self.node.name)
        elif self.is_broken:
            self.leave()
            self.client.lost()
