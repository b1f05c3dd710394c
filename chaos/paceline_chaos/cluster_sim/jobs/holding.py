"""What waits for as long as somebody says: what scripts have power fail on, or retention meet.

Nobody is asked about transactions that are held open, and their producer lives on: so that they
were forgotten is told by nothing but their commits, which S24 judges. Of delayed messages some are
taken back, and the others come, which S25 judges.
"""

from collections.abc import Callable

from paceline.errors import PacelineError, TransactionNotFoundError
from paceline.message import Message
from paceline.platform.runtime import pause
from paceline.producer.producer import Producer
from paceline.producer.transaction import (
    HalfMessage,
    Transaction,
    TransactionProducer,
    TransactionState,
)
from paceline_chaos.cluster_sim.bodies import crc_of, make_body
from paceline_chaos.cluster_sim.jobs.around import Around
from paceline_chaos.cluster_sim.jobs.delaying import enter_delayed, recall
from paceline_chaos.cluster_sim.jobs.sending import SETTINGS, asking_to_send
from paceline_chaos.history.model import BeginTransaction, EndTransaction

_IMMUNITY_S = 600
"""Longer than a world: they are never due for a check."""
_LOOK_MS = 20
_BODY_BYTES = 64


class Holder:
    """Halves that wait for their commit. Owner of what it holds; it runs once."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._held: dict[str, Transaction] = {}
        self.committed_count = 0

    @property
    def is_holding(self) -> bool:
        """Every half has been acknowledged; as long as nobody says `may_end`, all are open."""
        return len(self._held) == self._count

    async def run(self, around: Around, *, may_end: Callable[[], bool]) -> None:
        """Begin them, wait until they may end, and commit each until it is heard how it ended."""
        cluster = around.cluster()
        producer = TransactionProducer(cluster, group=f"holders-{around.alias}", check=_unknown)
        try:
            await around.try_again(producer.start)
            for number in range(self._count):
                await self._begin(around, producer, f"{around.alias}-held{number}")
            while not may_end() and not around.is_over():
                await pause(_LOOK_MS)
            for value, transaction in self._held.items():
                await self._commit(around, transaction, value)
        finally:
            await producer.close(timeout_ms=0)
            await cluster.close()

    async def _begin(self, around: Around, producer: TransactionProducer, value: str) -> None:
        """One that is unknown is another message than its next try."""
        tries = 0
        while not around.is_over():
            tries += 1
            name = f"{value}.{tries}"
            body = make_body(name, _BODY_BYTES)
            with around.recorder.asking(
                BeginTransaction,
                client=around.client,
                topic=around.topic,
                value=name,
                crc=crc_of(body),
            ) as asking:
                try:
                    transaction = await producer.begin(
                        Message(around.topic, body), check_immunity_s=_IMMUNITY_S
                    )
                except PacelineError as error:
                    asking.raised(error)
                else:
                    asking.ok(group=str(transaction.taken.group))
                    self._held[name] = transaction
                    return
            await around.think()

    async def _commit(self, around: Around, transaction: Transaction, value: str) -> None:
        while True:
            with around.recorder.asking(
                EndTransaction, client=around.client, value=value, is_commit=True
            ) as asking:
                try:
                    await transaction.commit()
                except PacelineError as error:
                    asking.raised(error)
                    if around.is_over() or isinstance(error, TransactionNotFoundError):
                        return
                else:
                    asking.ok()
                    self.committed_count += 1
                    return
            await around.think()


def _unknown(_: HalfMessage) -> TransactionState:
    return TransactionState.UNKNOWN


class LaterHolder:
    """Delayed messages of which every other one is taken back when somebody says so."""

    def __init__(self, count: int, *, later_ms: int) -> None:
        self._count = count
        self._later_ms = later_ms
        self._handles: dict[str, str] = {}
        self.recalled_count = 0
        """Asked for, whatever came of it."""

    @property
    def is_holding(self) -> bool:
        return len(self._handles) == self._count

    async def run(self, around: Around, *, may_recall: Callable[[], bool]) -> None:
        """Send them, wait until they may be recalled, and recall every other one."""
        cluster = around.cluster()
        producer = Producer(cluster, settings=SETTINGS)
        try:
            await around.try_again(producer.start)
            for number in range(self._count):
                await self._send(around, producer, f"{around.alias}-late{number}")
            while not may_recall() and not around.is_over():
                await pause(_LOOK_MS)
            for value, handle in list(self._handles.items())[::2]:
                await recall(around, producer, value, handle)
                self.recalled_count += 1
        finally:
            await producer.close(timeout_ms=0)
            await cluster.close()

    async def _send(self, around: Around, producer: Producer, value: str) -> None:
        body = make_body(value, _BODY_BYTES)
        asking = asking_to_send(around, value, body, around.alias, delay_ms=self._later_ms)
        try:
            result = await producer.send(Message(around.topic, body, delay_ms=self._later_ms))
        except PacelineError as error:
            asking.raised(error)
            return
        enter_delayed(asking, result)
        if result.recall_handle is not None:
            self._handles[value] = result.recall_handle
