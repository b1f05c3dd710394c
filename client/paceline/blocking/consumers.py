"""Blocking twins of the consumers."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from paceline.blocking.twin import Blocking, in_thread, runs, waits
from paceline.consumer.group.allocation import Allocation, allocate_averagely
from paceline.consumer.lite_pull import LitePullConsumer, LitePullSettings
from paceline.consumer.ordered import OrderedConsumer
from paceline.consumer.pull import PullConsumer, PullSettings
from paceline.consumer.push import PushConsumer
from paceline.consumer.settings.ordered import OrderedSettings
from paceline.consumer.settings.push import ConsumeLater, PushSettings
from paceline.consumer.settings.simple import SimpleSettings
from paceline.consumer.simple import SimpleConsumer
from paceline.filters import Subscription
from paceline.message import ReceivedMessage
from paceline.net.connect import Bootstrap

BlockingListener = Callable[[ReceivedMessage], ConsumeLater | None]
"""Processes one message, as `Listener` does."""
BlockingBatchListener = Callable[[Sequence[ReceivedMessage]], int | None]
"""Processes messages of one queue, as `BatchListener` does."""


class BlockingPullConsumer(Blocking[PullConsumer]):
    """`PullConsumer` for scripts and threads."""

    def __init__(self, bootstrap: Bootstrap, *, settings: PullSettings | None = None) -> None:
        """Connects; PeerError when no bootstrap address answers."""
        super().__init__("pull-consumer", lambda: PullConsumer(bootstrap, settings=settings))

    queues = waits(PullConsumer.queues)
    ranges = waits(PullConsumer.ranges)
    subscribe = waits(PullConsumer.subscribe)
    assign = waits(PullConsumer.assign)
    seek = waits(PullConsumer.seek)
    position = runs(PullConsumer.position)
    poll = waits(PullConsumer.poll)
    committed = waits(PullConsumer.committed)
    commit = waits(PullConsumer.commit)


class BlockingLitePullConsumer(Blocking[LitePullConsumer]):
    """`LitePullConsumer` for scripts and threads."""

    def __init__(
        self,
        bootstrap: Bootstrap,
        *,
        group: str,
        topics: Sequence[str | Subscription] = (),
        settings: LitePullSettings | None = None,
        client_id: str | None = None,
        allocation: Allocation = allocate_averagely,
    ) -> None:
        """As `LitePullConsumer`."""
        super().__init__(
            "lite-pull-consumer",
            lambda: LitePullConsumer(
                bootstrap,
                group=group,
                topics=topics,
                settings=settings,
                client_id=client_id,
                allocation=allocation,
            ),
        )

    assign = runs(LitePullConsumer.assign)
    position = runs(LitePullConsumer.position)
    seek = waits(LitePullConsumer.seek)
    seek_to_time = waits(LitePullConsumer.seek_to_time)
    offset_for_timestamp = waits(LitePullConsumer.offset_for_timestamp)
    pause = runs(LitePullConsumer.pause)
    resume = runs(LitePullConsumer.resume)
    poll = waits(LitePullConsumer.poll)
    commit = waits(LitePullConsumer.commit)


class BlockingSimpleConsumer(Blocking[SimpleConsumer]):
    """`SimpleConsumer` for scripts and threads."""

    def __init__(
        self,
        bootstrap: Bootstrap,
        *,
        group: str,
        topics: Sequence[str | Subscription] = (),
        settings: SimpleSettings | None = None,
        client_id: str | None = None,
    ) -> None:
        """As `SimpleConsumer`."""
        super().__init__(
            "simple-consumer",
            lambda: SimpleConsumer(
                bootstrap, group=group, topics=topics, settings=settings, client_id=client_id
            ),
        )

    receive = waits(SimpleConsumer.receive)
    ack = waits(SimpleConsumer.ack)
    change_invisible = waits(SimpleConsumer.change_invisible)
    change_handle = waits(SimpleConsumer.change_handle)
    give_back = waits(SimpleConsumer.give_back)


class BlockingPushConsumer(Blocking[PushConsumer]):
    """`PushConsumer` for scripts: listeners are plain functions and run in threads."""

    def __init__(
        self,
        bootstrap: Bootstrap,
        *,
        group: str,
        topics: Sequence[str | Subscription],
        listener: BlockingListener | None = None,
        batch_listener: BlockingBatchListener | None = None,
        settings: PushSettings | None = None,
        client_id: str | None = None,
        allocation: Allocation = allocate_averagely,
    ) -> None:
        """As `PushConsumer`. It consumes from here on until `close`."""
        pool = self._pool = _pool("push", (settings or PushSettings()).concurrency)
        super().__init__(
            "push-consumer",
            lambda: PushConsumer(
                bootstrap,
                group=group,
                topics=topics,
                listener=in_thread(pool, listener),
                batch_listener=in_thread(pool, batch_listener),
                settings=settings,
                client_id=client_id,
                allocation=allocation,
            ),
        )

    pause = runs(PushConsumer.pause)
    resume = runs(PushConsumer.resume)
    seek = waits(PushConsumer.seek)


class BlockingOrderedConsumer(Blocking[OrderedConsumer]):
    """`OrderedConsumer` for scripts: listeners are plain functions and run in threads."""

    def __init__(
        self,
        bootstrap: Bootstrap,
        *,
        group: str,
        topics: Sequence[str | Subscription],
        listener: BlockingListener | None = None,
        batch_listener: BlockingBatchListener | None = None,
        settings: OrderedSettings | None = None,
        client_id: str | None = None,
        allocation: Allocation = allocate_averagely,
    ) -> None:
        """As `OrderedConsumer`. It consumes from here on until `close`."""
        pool = self._pool = _pool("ordered", (settings or OrderedSettings()).of_owner().concurrency)
        super().__init__(
            "ordered-consumer",
            lambda: OrderedConsumer(
                bootstrap,
                group=group,
                topics=topics,
                listener=in_thread(pool, listener),
                batch_listener=in_thread(pool, batch_listener),
                settings=settings,
                client_id=client_id,
                allocation=allocation,
            ),
        )

    pause = runs(OrderedConsumer.pause)
    resume = runs(OrderedConsumer.resume)


def _pool(name: str, size: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(size, thread_name_prefix=f"paceline-{name}-listener")
