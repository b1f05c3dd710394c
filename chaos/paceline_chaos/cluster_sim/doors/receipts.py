"""Consumers by receipt: what they receive, acknowledge, forget, give back, whatever the protocol.

Clients are members of one group, at gateways that die. Handles say to the history which message it
was; to clients they say nothing.
"""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

from paceline.errors import PacelineError
from paceline_chaos.cluster_sim.jobs.around import Around
from paceline_chaos.history.model import Ack, Pop, Queue, Seen

INVISIBLE_MS = 10_000
"""The least that brokers take."""
BATCH_MAX = 16
_BACK_SHARE, _LONGER_SHARE = 0.1, 0.1


class Received(NamedTuple):
    """A message in the hands of a consumer."""

    message_id: str
    handle: str
    queue: Queue
    seen: Seen


class Receiver(ABC):
    """One consumer, one receive after the other."""

    is_ordered = False
    """Its group is given a queue's messages one receive after the other."""
    forget_share = 0.1

    def __init__(self, around: Around, name: str, group: str) -> None:
        self._around = around
        self._name = name
        self.group = group

    async def run(self) -> None:
        """Receive until it is over."""
        around = self._around
        while not around.is_over():
            for received in await self._receive():
                if around.is_over():
                    return
                await self._settle(received)
            await around.think()

    @abstractmethod
    async def _receive(self) -> list[Received]:
        """What one receive gives; entered as it comes."""

    @abstractmethod
    async def _done(self, received: Received) -> PacelineError | None:
        """Acknowledge it; why that has failed."""

    @abstractmethod
    async def _change(self, received: Received, invisible_ms: int) -> str | PacelineError:
        """The new handle."""

    def _enter(self, received: Received, *, asked_us: int, attempt: int) -> Received:
        with self._around.recorder.asking(
            Pop,
            asked_us=asked_us,
            queue=received.queue,
            message=received.seen,
            attempt=attempt,
            invisible_ms=INVISIBLE_MS,
            is_ordered=self.is_ordered,
            **self._members(),
        ) as asking:
            asking.ok()
        return received

    def _members(self) -> dict[str, Any]:
        return {
            "client": self._around.client,
            "consumer_group": self.group,
            "member": self._name,
        }

    async def _settle(self, received: Received) -> None:
        drawn = self._around.random.uniform(0, 1)
        if (drawn := drawn - self.forget_share) < 0:
            return  # it comes again
        if (drawn := drawn - _BACK_SHARE) < 0:
            await self._ack(received, is_back=True)
            return
        if drawn < _LONGER_SHARE:
            answer = await self._change(received, INVISIBLE_MS)
            if isinstance(answer, PacelineError):
                return
            received = received._replace(handle=answer)
        await self._ack(received)

    async def _ack(self, received: Received, *, is_back: bool = False) -> None:
        """It is done, or given back."""
        with self._around.recorder.asking(
            Ack,
            queue=received.queue,
            offset=received.seen.offset,
            is_back=is_back,
            **self._members(),
        ) as asking:
            if is_back:
                answer = await self._change(received, 0)
                error = answer if isinstance(answer, PacelineError) else None
            else:
                error = await self._done(received)
            if error is None:
                asking.ok()
            else:
                asking.raised(error)
