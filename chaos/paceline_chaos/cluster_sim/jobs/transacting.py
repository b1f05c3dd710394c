"""Transactions: halves that are committed, rolled back, left to a check, and ended twice, one after
the other or at the same time.

Each client is a group of producers of its own, and answers its checks from what it has decided: the
application's record, which outlives the producer object and not the client. Whatever is asked for
is entered: ends of its own, and those that the library sends for an answer to a check.
"""

import asyncio
from functools import partial

from paceline.errors import PacelineError
from paceline.message import Message
from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline.producer.settings import ProducerSettings
from paceline.producer.transaction import (
    HalfMessage,
    Transaction,
    TransactionProducer,
    TransactionState,
)
from paceline_chaos.cluster_sim.bodies import crc_of, make_body, value_of
from paceline_chaos.cluster_sim.jobs.around import Around
from paceline_chaos.cluster_sim.jobs.sending import SETTINGS
from paceline_chaos.history.model import BeginTransaction, CheckTransaction, EndTransaction

_WORKERS = 2
_SESSION_TRANSACTIONS = 60
_COMMIT_SHARE = 0.6
_ROLLBACK_SHARE = 0.25
_AGAIN_SHARE = 0.3
_RACING_SHARE = 0.25
_UNSURE_SHARE = 0.2
CHECK = "CHECK"
"""Error of an end that the library has sent for a check: nobody heard its outcome."""


class Transactor:
    """One client that transacts."""

    def __init__(
        self,
        around: Around,
        *,
        group: str = "",
        label: str = "tx",
        decide_ms_max: float = 0,
        settings: ProducerSettings = SETTINGS,
    ) -> None:
        """`group`: of producers; empty: one of the client's own. `label`: tells its messages from
        those of another transactor of the same client. `decide_ms_max`: the longest time from a
        half to its end."""
        self._around = around
        self._group = group or f"payers-{around.client}"
        self._label = label
        self._decide_ms_max = decide_ms_max
        self._settings = settings
        self._decided: dict[str, bool | None] = {}
        """By the name of the message: is it committed? None: that is never known."""
        self._numbers = 0

    async def run(self) -> None:
        """One producer after another until it is over."""
        while not self._around.is_over():
            await self._session()

    async def _session(self) -> None:
        around = self._around
        cluster = around.cluster()
        producer = TransactionProducer(
            cluster, group=self._group, check=self._check, settings=self._settings
        )
        workers: list[asyncio.Task[None]] = []
        async with around.session(
            lambda: cancel_and_wait(*workers), partial(producer.close, timeout_ms=0), cluster.close
        ):
            await producer.start()
            end = self._numbers + _SESSION_TRANSACTIONS
            workers += [
                spawn(self._work(producer, end), name=f"transactor-{number}")
                for number in range(_WORKERS)
            ]
            await asyncio.wait(workers)

    async def _work(self, producer: TransactionProducer, end: int) -> None:
        around = self._around
        while not around.is_over() and self._numbers < end:
            await self._transact(producer)
            await around.think()

    async def _transact(self, producer: TransactionProducer) -> None:
        around = self._around
        self._numbers += 1
        value = f"{around.alias}-{self._label}{self._numbers}"
        body = make_body(value, around.whole(8, around.body_bytes_max))
        immunity_s = around.choice((0, 0, 1, None))
        dice = around.random.uniform(0.0, 1.0)
        with around.recorder.asking(
            BeginTransaction,
            client=around.client,
            topic=around.topic,
            value=value,
            crc=crc_of(body),
            producer_group=self._group,
        ) as asking:
            try:
                transaction = await producer.begin(
                    Message(around.topic, body), check_immunity_s=immunity_s
                )
            except PacelineError as error:
                asking.raised(error)
                return
            asking.ok(group=str(transaction.taken.group))
        if self._decide_ms_max:
            await pause(around.random.uniform(0, self._decide_ms_max))
        if dice < _COMMIT_SHARE:
            await self._end(transaction, value, is_commit=True)
        elif dice < _COMMIT_SHARE + _ROLLBACK_SHARE:
            await self._end(transaction, value, is_commit=False)
        else:  # left to a check
            self._decided[value] = around.choice((True, False, None))
            if around.happens(_RACING_SHARE):  # while it may be about to be asked about
                await pause(around.random.uniform(0, 3_000))
                await self._end_at_once(transaction, value)
            return
        if around.happens(_RACING_SHARE):
            await self._end_at_once(transaction, value)
        while not around.is_over() and around.happens(
            _AGAIN_SHARE
        ):  # the same, or the other one: R34
            await self._end(transaction, value, is_commit=around.happens(0.5))

    async def _end_at_once(self, transaction: Transaction, value: str) -> None:
        """Twice or thrice at the same time, in the same way or not: one end at most is carried out,
        and all answers agree with it (R34)."""
        around = self._around
        wanted = [around.happens(0.5) for _ in range(around.whole(2, 3))]
        await asyncio.gather(
            *(self._end(transaction, value, is_commit=is_commit) for is_commit in wanted)
        )

    async def _end(self, transaction: Transaction, value: str, *, is_commit: bool) -> None:
        around = self._around
        self._decided.setdefault(value, is_commit)
        with around.recorder.asking(
            EndTransaction, client=around.client, value=value, is_commit=is_commit
        ) as asking:
            try:
                await (transaction.commit() if is_commit else transaction.rollback())
            except PacelineError as error:
                asking.raised(error)
            else:
                asking.ok()

    def _check(self, half: HalfMessage) -> TransactionState:
        around = self._around
        value = value_of(half.body)
        with around.recorder.asking(CheckTransaction, client=around.client, value=value) as asked:
            asked.ok()
        if around.happens(_UNSURE_SHARE):
            return TransactionState.UNKNOWN
        is_commit = self._decided.get(value, False)
        if is_commit is None:
            return TransactionState.UNKNOWN
        with around.recorder.asking(
            EndTransaction, client=around.client, value=value, is_commit=is_commit
        ) as asking:
            asking.unknown(CHECK)
        return TransactionState.COMMIT if is_commit else TransactionState.ROLLBACK
