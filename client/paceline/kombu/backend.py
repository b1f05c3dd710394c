"""Celery's result backend, on a topic of results (`table`)."""

import threading
from collections import deque
from collections.abc import Iterable
from typing import Any

from celery import states
from celery.backends.asynchronous import AsyncBackendMixin, BaseResultConsumer
from celery.backends.base import BaseKeyValueStoreBackend

from paceline.errors import PacelineError
from paceline.kombu.names import escaped
from paceline.kombu.session import Session, session_of
from paceline.kombu.table import FORGOTTEN, KEPT_MAX, QUEUES_DEFAULT, ResultTable
from paceline.kombu.target import SCHEME, connect_settings_of, masked

TOPIC = "celery-results"


class ResultConsumer(BaseResultConsumer):
    """Hands results to those in this process that wait for them, as they are stored."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._reset()

    def _reset(self) -> None:
        self._stored: deque[bytes] = deque()
        self._awaited: set[str] = set()
        self._condition = threading.Condition()
        self._handed_over = 0
        """Results, by any thread."""
        self._seen = threading.local()
        """How many of them a thread knows of."""

    def on_after_fork(self) -> None:
        self._reset()

    def on_stored(self, key: str, value: bytes) -> None:
        """On the session's loop."""
        if key in self._awaited and value:
            with self._condition:
                self._stored.append(value)
                self._condition.notify()

    def on_wait_for_pending(self, result: Any, **options: Any) -> None:
        for meta in result._iter_meta(**options):
            if meta is not None:
                self.on_state_change(meta, None)

    def on_state_change(self, meta: Any, message: Any) -> None:
        super().on_state_change(meta, message)
        if meta["status"] in states.READY_STATES:
            self.cancel_for(meta["task_id"])

    def drain_events(self, timeout: float | None = None) -> None:
        """One result, or news that another thread has handed some over: perhaps ours."""
        seen = getattr(self._seen, "count", 0)
        with self._condition:
            self._condition.wait_for(
                lambda: bool(self._stored) or self._handed_over != seen,
                1.0 if timeout is None else timeout,
            )
            value = self._stored.popleft() if self._stored else None
            is_over = value is None and self._handed_over == seen
            self._seen.count = self._handed_over
        if is_over:
            raise TimeoutError("no result came in time")
        if value is not None:
            self.on_state_change(self.backend.decode_result(value), None)
            with self._condition:
                self._handed_over += 1
                self._condition.notify_all()

    def start(self, initial_task_id: str, **options: Any) -> None:
        self.consume_from(initial_task_id)

    def consume_from(self, task_id: str) -> None:
        key = self.backend.table_key(task_id)
        if key not in self._awaited:
            self._awaited.add(key)
            self.backend.follow(key)  # what is there already is asked for by who waits

    def cancel_for(self, task_id: str) -> None:
        self._awaited.discard(self.backend.table_key(task_id))


class PacelineBackend(BaseKeyValueStoreBackend, AsyncBackendMixin):
    """`result_backend="paceline://host:port,..."`. Transport options (`result_backend_transport_
    options`): `topic` ("celery-results"), `queues` (16) of it, `kept_max` (10,000) results that a
    process keeps."""

    supports_native_join = True
    supports_autoexpire = True
    persistent = True
    key_t = str
    ResultConsumer = ResultConsumer

    def __init__(self, url: str | None = None, **options: Any) -> None:
        super().__init__(url=url or f"{SCHEME}://127.0.0.1:7700", **options)
        told = self.app.conf.get("result_backend_transport_options", {})
        self._topic = escaped(str(told.get("topic", TOPIC)))
        self._queues = int(told.get("queues", QUEUES_DEFAULT))
        self._kept_max = int(told.get("kept_max", KEPT_MAX))
        self._made: tuple[Session, ResultTable] | None = None
        self.result_consumer = self.ResultConsumer(
            self, self.app, self.accept, self._pending_results, self._pending_messages
        )

    def as_uri(self, include_password: bool = False) -> str:
        return str(self.url) if include_password else masked(str(self.url))

    def table_key(self, task_id: str) -> str:
        """The key of a task's result."""
        return str(self.get_key_for_task(task_id))

    def _table(self) -> tuple[Session, ResultTable]:
        """Of this process."""
        session = session_of(self.url, connect_settings_of(self.url))
        if self._made is None or self._made[0] is not session:
            clients = session.clients

            async def make() -> ResultTable:
                return ResultTable(
                    clients,
                    self._topic,
                    expires_ms=int(self.expires * 1000) if self.expires else None,
                    on_stored=self.result_consumer.on_stored,
                    queues=self._queues,
                    kept_max=self._kept_max,
                )

            self._made = session, session.call(make)
        return self._made

    def follow(self, key: str) -> None:
        """What is stored for the key from now on is told to `result_consumer`."""
        session, table = self._table()
        session.call(lambda: table.follow(key))

    # -- Celery's key-value store -----------------------------------------------------------------

    def get(self, key: str) -> bytes | None:
        return self.mget([key])[0]

    def mget(self, keys: Iterable[str]) -> list[bytes | None]:
        asked = list(keys)
        session, table = self._table()
        found = session.call(lambda: table.get(asked))
        return [found.get(key) for key in asked]

    def set(self, key: str, value: Any) -> None:
        self._set_with_state(key, value, "")

    def _set_with_state(self, key: str, value: Any, state: str) -> None:
        session, table = self._table()
        body = value.encode() if isinstance(value, str) else bytes(value)
        session.call(lambda: table.put(key, body, state))

    def delete(self, key: str) -> None:
        self._set_with_state(key, b"", FORGOTTEN)

    def _store_result(
        self,
        task_id: str,
        result: Any,
        state: str,
        traceback: Any = None,
        request: Any = None,
        **options: Any,
    ) -> Any:
        """Nothing is read first: that a success stays is said when results are read (`table`)."""
        meta = self._get_result_meta(
            result=result, state=state, traceback=traceback, request=request
        )
        meta["task_id"] = task_id
        self._set_with_state(self.table_key(task_id), self.encode(meta), state)
        return result

    def on_task_call(self, producer: Any, task_id: str) -> dict[str, Any]:
        session, table = self._table()
        session.soon(lambda: table.is_new(self.table_key(task_id)))
        return {}

    def exception_safe_to_retry(self, exc: BaseException) -> bool:
        """What the client itself has not got over may pass."""
        return isinstance(exc, PacelineError)

    def __reduce__(self, args: Any = (), kwargs: Any = None) -> Any:
        return super().__reduce__(args, {**(kwargs or {}), "url": self.url})
