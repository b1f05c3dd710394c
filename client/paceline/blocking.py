"""A blocking façade for scripts: the same clients, driven by an event loop on a thread.

Each object owns one thread. Every call may be made from any thread, one at a time.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from paceline.admin.client import AdminClient
from paceline.consumer.pull import PullConsumer, PullSettings, QueueRange
from paceline.errors import ShuttingDownError
from paceline.message import Message, ReceivedMessage
from paceline.producer.producer import Producer
from paceline.producer.results import SendResult
from paceline.producer.settings import ProducerSettings
from paceline.queues import QueueName
from paceline.types import QueueOffset
from paceline.wire.cluster import GroupSettings
from paceline.wire.consumer_groups import ConsumerGroupView

_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")
_Self = TypeVar("_Self", bound="_Blocking")


class _LoopThread:
    """An event loop on a daemon thread."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def call(self, work: Callable[[], Awaitable[_Result]]) -> _Result:
        """Run `await work()` on the loop and wait for the result."""
        if not self._thread.is_alive():
            raise ShuttingDownError("this client is closed")

        async def run() -> _Result:
            return await work()

        pending = asyncio.run_coroutine_threadsafe(run(), self._loop)
        try:
            return pending.result()
        except BaseException:
            pending.cancel()  # Ctrl-C in the waiting thread ends the work as well
            raise

    def stop(self) -> None:
        """Stop the loop and wait for the thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()


class _Blocking:
    """What the blocking clients share."""

    def __init__(self, name: str) -> None:
        self._thread = _LoopThread(name)
        self._is_closed = False

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Finish and end. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._thread.call(self._close)
        finally:
            self._thread.stop()

    async def _close(self) -> None:
        raise NotImplementedError


class BlockingProducer(_Blocking):
    """`Producer` for scripts."""

    def __init__(
        self, bootstrap: str | Sequence[str], *, settings: ProducerSettings | None = None
    ) -> None:
        """Connects; PeerError when no bootstrap address answers."""
        super().__init__("paceline-producer")
        self._producer = _started(
            self._thread, lambda: Producer(bootstrap, settings=settings).__aenter__()
        )

    def send(self, message: Message) -> SendResult:
        """Send one message and wait until it is acknowledged. Errors as `Producer.send`."""
        return self._thread.call(lambda: self._producer.send(message))

    def send_many(self, messages: Iterable[Message]) -> Sequence[SendResult]:
        """Send messages in order and wait for all: much faster than one by one."""
        listed = list(messages)
        return self._thread.call(lambda: self._producer.send_many(listed))

    def send_batch(self, messages: Iterable[Message]) -> Sequence[SendResult]:
        """Send messages as one unit: all are stored, or none. As `Producer.send_batch`."""
        listed = list(messages)
        return self._thread.call(lambda: self._producer.send_batch(listed))

    def send_bodies(
        self, topic: str, bodies: Iterable[bytes], *, key: str | None = None
    ) -> Sequence[SendResult]:
        """Send bodies that share topic and key: the fastest way. As `Producer.send_bodies`."""
        listed = list(bodies)
        return self._thread.call(lambda: self._producer.send_bodies(topic, listed, key=key))

    def recall(self, topic: str, handle: str, *, timeout_ms: int = 10_000) -> str:
        """Take back a delayed message; its id. As `Producer.recall`."""
        return self._thread.call(
            lambda: self._producer.recall(topic, handle, timeout_ms=timeout_ms)
        )

    def send_oneway(self, message: Message) -> None:
        """Put one message on the wire and forget it. As `Producer.send_oneway`."""

        async def send() -> None:
            self._producer.send_oneway(message)

        self._thread.call(send)

    def request(self, message: Message, *, timeout_ms: int = 3_000) -> ReceivedMessage:
        """Send a message and wait for a consumer's reply. As `Producer.request`."""
        return self._thread.call(lambda: self._producer.request(message, timeout_ms=timeout_ms))

    def reply(self, request: ReceivedMessage, body: bytes) -> SendResult:
        """Answer a request. As `Producer.reply`."""
        return self._thread.call(lambda: self._producer.reply(request, body))

    async def _close(self) -> None:
        await self._producer.close()


class BlockingPullConsumer(_Blocking):
    """`PullConsumer` for scripts."""

    def __init__(
        self, bootstrap: str | Sequence[str], *, settings: PullSettings | None = None
    ) -> None:
        """Connects; PeerError when no bootstrap address answers."""
        super().__init__("paceline-consumer")
        self._consumer = _started(
            self._thread, lambda: PullConsumer(bootstrap, settings=settings).__aenter__()
        )

    def queues(self, topic: str) -> list[QueueName]:
        return self._thread.call(lambda: self._consumer.queues(topic))

    def ranges(self, queues: Iterable[QueueName]) -> dict[QueueName, QueueRange]:
        return self._thread.call(lambda: self._consumer.ranges(queues))

    def subscribe(self, topic: str, *, start: int | str = "first") -> None:
        self._thread.call(lambda: self._consumer.subscribe(topic, start=start))

    def assign(self, positions: Mapping[QueueName, int | str]) -> None:
        self._thread.call(lambda: self._consumer.assign(positions))

    def seek(self, queue: QueueName, position: int | str) -> None:
        self._thread.call(lambda: self._consumer.seek(queue, position))

    def poll(self, *, messages_max: int = 500, timeout_ms: int = 1_000) -> list[ReceivedMessage]:
        return self._thread.call(
            lambda: self._consumer.poll(messages_max=messages_max, timeout_ms=timeout_ms)
        )

    def committed(
        self, consumer_group: str, queues: Iterable[QueueName]
    ) -> dict[QueueName, QueueOffset | None]:
        return self._thread.call(lambda: self._consumer.committed(consumer_group, queues))

    def commit(self, consumer_group: str, offsets: Mapping[QueueName, int] | None = None) -> None:
        self._thread.call(lambda: self._consumer.commit(consumer_group, offsets))

    async def _close(self) -> None:
        await self._consumer.close()


def _on_thread(
    method: Callable[Concatenate[AdminClient, _Arguments], Awaitable[_Result]],
) -> Callable[Concatenate["BlockingAdminClient", _Arguments], _Result]:
    """A method of `AdminClient`, with its arguments and errors, that blocks."""

    def call(
        client: "BlockingAdminClient", /, *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> _Result:
        return client._thread.call(lambda: method(client._admin, *args, **kwargs))

    call.__name__, call.__doc__ = method.__name__, method.__doc__
    return call


class BlockingAdminClient(_Blocking):
    """`AdminClient` for scripts: all that it can do."""

    def __init__(self, bootstrap: str | Sequence[str], *, timeout_ms: int = 10_000) -> None:
        super().__init__("paceline-admin")
        self._admin = _started(
            self._thread, lambda: AdminClient(bootstrap, timeout_ms=timeout_ms).__aenter__()
        )

    create_topic = _on_thread(AdminClient.create_topic)
    alter_topic = _on_thread(AdminClient.alter_topic)
    delete_topic = _on_thread(AdminClient.delete_topic)
    topics = _on_thread(AdminClient.topics)
    topic = _on_thread(AdminClient.topic)
    remap_queue = _on_thread(AdminClient.remap_queue)
    wait_remapped = _on_thread(AdminClient.wait_remapped)

    delete_consumer_group = _on_thread(AdminClient.delete_consumer_group)
    consumer_groups = _on_thread(AdminClient.consumer_groups)
    consumer_group = _on_thread(AdminClient.consumer_group)
    consumer_lag = _on_thread(AdminClient.consumer_lag)
    consumer_members = _on_thread(AdminClient.consumer_members)
    reset_offsets = _on_thread(AdminClient.reset_offsets)
    clone_offsets = _on_thread(AdminClient.clone_offsets)
    clients = _on_thread(AdminClient.clients)

    dead_letters = _on_thread(AdminClient.dead_letters)
    dead_letter = _on_thread(AdminClient.dead_letter)
    resend_dead_letters = _on_thread(AdminClient.resend_dead_letters)
    purge_dead_letters = _on_thread(AdminClient.purge_dead_letters)
    message = _on_thread(AdminClient.message)
    track = _on_thread(AdminClient.track)

    view = _on_thread(AdminClient.view)
    cluster_status = _on_thread(AdminClient.cluster_status)
    group = _on_thread(AdminClient.group)
    set_write_permission = _on_thread(AdminClient.set_write_permission)
    elect = _on_thread(AdminClient.elect)
    transfer = _on_thread(AdminClient.transfer)
    history = _on_thread(AdminClient.history)
    epochs = _on_thread(AdminClient.epochs)
    clean_replica = _on_thread(AdminClient.clean_replica)
    clean_group = _on_thread(AdminClient.clean_group)
    presented_stores = _on_thread(AdminClient.presented_stores)
    recover = _on_thread(AdminClient.recover)
    forget_store = _on_thread(AdminClient.forget_store)
    pins = _on_thread(AdminClient.pins)
    add_pin = _on_thread(AdminClient.add_pin)
    remove_pin = _on_thread(AdminClient.remove_pin)

    controllers = _on_thread(AdminClient.controllers)
    members = _on_thread(AdminClient.members)
    transfer_leadership = _on_thread(AdminClient.transfer_leadership)
    add_controller = _on_thread(AdminClient.add_controller)
    remove_controller = _on_thread(AdminClient.remove_controller)

    def create_consumer_group(self, group: str, **settings: Any) -> ConsumerGroupView:
        """As `AdminClient.create_consumer_group`."""
        return self._thread.call(lambda: self._admin.create_consumer_group(group, **settings))

    def alter_consumer_group(self, group: str, **changes: Any) -> ConsumerGroupView:
        """As `AdminClient.alter_consumer_group`."""
        return self._thread.call(lambda: self._admin.alter_consumer_group(group, **changes))

    def set_group_settings(self, group: str, **changes: Any) -> GroupSettings:
        """As `AdminClient.set_group_settings`, of a broker group."""
        return self._thread.call(lambda: self._admin.set_group_settings(group, **changes))

    def find_messages(
        self,
        topic: str,
        *,
        key: str | None = None,
        unique_key: str | None = None,
        begin_unix_ms: int | None = None,
        end_unix_ms: int | None = None,
        limit: int = 1000,
    ) -> list[dict[str, Any]]:
        """As `AdminClient.find_messages`, the first `limit` of them."""

        async def find() -> list[dict[str, Any]]:
            rows: list[dict[str, Any]] = []
            found = self._admin.find_messages(
                topic,
                key=key,
                unique_key=unique_key,
                begin_unix_ms=begin_unix_ms,
                end_unix_ms=end_unix_ms,
            )
            async with aclosing(cast(AsyncGenerator[dict[str, Any], None], found)):
                async for row in found:
                    if len(rows) >= limit:
                        break
                    rows.append(row)
            return rows

        return self._thread.call(find)

    async def _close(self) -> None:
        await self._admin.close()


def _started(thread: _LoopThread, start: Callable[[], Awaitable[_Result]]) -> _Result:
    """The client made on the thread; the thread ends if it cannot be made."""
    try:
        return thread.call(start)
    except BaseException:
        thread.stop()
        raise
