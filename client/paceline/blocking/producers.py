"""Blocking twins of the producers."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from paceline.blocking.twin import Blocking, LoopThread, in_thread, runs, waits
from paceline.message import Message
from paceline.net.connect import Bootstrap
from paceline.producer.producer import Producer
from paceline.producer.settings import ProducerSettings
from paceline.producer.transaction import (
    HalfMessage,
    Transaction,
    TransactionProducer,
    TransactionState,
)


class BlockingProducer(Blocking[Producer]):
    """`Producer` for scripts and threads. To send many messages fast, use `send_many`."""

    def __init__(self, bootstrap: Bootstrap, *, settings: ProducerSettings | None = None) -> None:
        """Connects; PeerError when no bootstrap address answers."""
        super().__init__("producer", lambda: Producer(bootstrap, settings=settings))

    send = waits(Producer.send)
    send_many = waits(Producer.send_many)
    send_batch = waits(Producer.send_batch)
    send_bodies = waits(Producer.send_bodies)
    send_oneway = runs(Producer.send_oneway)
    recall = waits(Producer.recall)
    request = waits(Producer.request)
    reply = waits(Producer.reply)
    flush = waits(Producer.flush)


class BlockingTransaction:
    """An open transaction, begun by `BlockingTransactionProducer.begin`."""

    def __init__(self, thread: LoopThread, transaction: Transaction) -> None:
        self._thread = thread
        self._transaction = transaction
        self.half = transaction.half
        self.taken = transaction.taken

    @property
    def transaction_id(self) -> str:
        return self._transaction.transaction_id

    def commit(self) -> None:
        """As `Transaction.commit`."""
        self._thread.call(self._transaction.commit)

    def rollback(self) -> None:
        """As `Transaction.rollback`."""
        self._thread.call(self._transaction.rollback)


class BlockingTransactionProducer(Blocking[TransactionProducer]):
    """`TransactionProducer` for scripts and threads. `execute` and `check` run in threads."""

    def __init__(
        self,
        bootstrap: Bootstrap,
        *,
        group: str,
        execute: Callable[[HalfMessage], TransactionState] | None = None,
        check: Callable[[HalfMessage], TransactionState] | None = None,
        settings: ProducerSettings | None = None,
    ) -> None:
        """As `TransactionProducer`."""
        pool = self._pool = ThreadPoolExecutor(thread_name_prefix="paceline-transactions")
        super().__init__(
            "transactions",
            lambda: TransactionProducer(
                bootstrap,
                group=group,
                execute=in_thread(pool, execute),
                check=in_thread(pool, check),
                settings=settings,
            ),
        )

    send_in_transaction = waits(TransactionProducer.send_in_transaction)
    end = waits(TransactionProducer.end)

    def begin(
        self, message: Message, *, check_immunity_s: int | None = None
    ) -> BlockingTransaction:
        """As `TransactionProducer.begin`."""
        begun = self._thread.call(
            lambda: self._client.begin(message, check_immunity_s=check_immunity_s)
        )
        return BlockingTransaction(self._thread, begun)
