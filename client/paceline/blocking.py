"""A blocking façade for scripts: the same clients, driven by an event loop on a thread.

Each object owns one thread. Every call may be made from any thread, one at a time.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from paceline.admin import AdminClient
from paceline.consumer.pull import PullConsumer, PullSettings, QueueRange
from paceline.errors import ShuttingDownError
from paceline.message import Message, ReceivedMessage
from paceline.producer import Producer
from paceline.producer_settings import ProducerSettings
from paceline.routing import QueueName
from paceline.sending import SendResult
from paceline.types import QueueOffset
from paceline.wire.cluster import ClusterView, TopicView

_Result = TypeVar("_Result")
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

        async def start() -> Producer:
            return await Producer(bootstrap, settings=settings).__aenter__()

        self._producer = _started(self._thread, start)

    def send(self, message: Message) -> SendResult:
        """Send one message and wait until it is acknowledged. Errors as `Producer.send`."""

        async def send() -> SendResult:
            return await self._producer.send(message)

        return self._thread.call(send)

    def send_many(self, messages: Iterable[Message]) -> Sequence[SendResult]:
        """Send messages in order and wait for all: much faster than one by one."""
        listed = list(messages)

        async def send() -> Sequence[SendResult]:
            return await self._producer.send_many(listed)

        return self._thread.call(send)

    def send_batch(self, messages: Iterable[Message]) -> Sequence[SendResult]:
        """Send messages as one unit: all are stored, or none. As `Producer.send_batch`."""
        listed = list(messages)

        async def send() -> Sequence[SendResult]:
            return await self._producer.send_batch(listed)

        return self._thread.call(send)

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

        async def send() -> SendResult:
            return await self._producer.reply(request, body)

        return self._thread.call(send)

    async def _close(self) -> None:
        await self._producer.close()


class BlockingPullConsumer(_Blocking):
    """`PullConsumer` for scripts."""

    def __init__(
        self, bootstrap: str | Sequence[str], *, settings: PullSettings | None = None
    ) -> None:
        """Connects; PeerError when no bootstrap address answers."""
        super().__init__("paceline-consumer")

        async def start() -> PullConsumer:
            return await PullConsumer(bootstrap, settings=settings).__aenter__()

        self._consumer = _started(self._thread, start)

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


class BlockingAdminClient(_Blocking):
    """`AdminClient` for scripts."""

    def __init__(self, bootstrap: str | Sequence[str], *, timeout_ms: int = 10_000) -> None:
        super().__init__("paceline-admin")

        async def start() -> AdminClient:
            return await AdminClient(bootstrap, timeout_ms=timeout_ms).__aenter__()

        self._admin = _started(self._thread, start)

    def create_topic(self, topic: str, *, queues: int | Mapping[str, int] = 8) -> TopicView:
        return self._thread.call(lambda: self._admin.create_topic(topic, queues=queues))

    def create_static_topic(
        self, topic: str, *, logical_queues: int, groups: Sequence[str] | None = None
    ) -> TopicView:
        return self._thread.call(
            lambda: self._admin.create_topic(topic, logical_queues=logical_queues, groups=groups)
        )

    def remap_queue(self, topic: str, logical_queue: int, group: str) -> TopicView:
        return self._thread.call(lambda: self._admin.remap_queue(topic, logical_queue, group))

    def delete_topic(self, topic: str) -> None:
        self._thread.call(lambda: self._admin.delete_topic(topic))

    def topics(self) -> list[TopicView]:
        return self._thread.call(self._admin.topics)

    def topic(self, topic: str) -> TopicView:
        return self._thread.call(lambda: self._admin.topic(topic))

    def view(self) -> ClusterView:
        return self._thread.call(self._admin.view)

    def cluster_status(self) -> dict[str, Any]:
        return self._thread.call(self._admin.cluster_status)

    async def _close(self) -> None:
        await self._admin.close()


def _started(thread: _LoopThread, start: Callable[[], Awaitable[_Result]]) -> _Result:
    """The client made on the thread; the thread ends if it cannot be made."""
    try:
        return thread.call(start)
    except BaseException:
        thread.stop()
        raise
