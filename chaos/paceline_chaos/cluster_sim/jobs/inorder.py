"""Members of a group of the library's ordered consumer: each queue in order, under its lock.

Unlike `consuming.OrderedConsumer`, which is careless on purpose, it must keep to its leases by
itself: nothing is begun under a token after somebody was handed a message under a newer one (S26).
"""

from dataclasses import replace
from typing import Any

from paceline.consumer.locks.queue_locks import QueueLocks
from paceline.consumer.ordered import OrderedConsumer, OrderedSettings, SuspendQueueError
from paceline.errors import PacelineError
from paceline.message import ReceivedMessage
from paceline.net.cluster import Cluster
from paceline.net.group_links import GroupLinks
from paceline.platform.runtime import pause
from paceline.queues import QueueKey, reading_address
from paceline.types import GroupName, QueueId, TopicName
from paceline_chaos.cluster_sim.jobs.around import Around, queues_in
from paceline_chaos.cluster_sim.jobs.consuming import ask_committed, look_at_offsets
from paceline_chaos.cluster_sim.jobs.reading import asking_to_process, pull_http
from paceline_chaos.history.model import Deliver, Queue, token_number

GROUP = "inorder-1"
_SETTINGS = OrderedSettings(
    start="first",
    concurrency=4,
    commit_interval_ms=300,
    suspend_current_queue_time_ms=100,
    rebalance_lock_max_live_time_ms=1_500,
    rebalance_lock_interval_ms=500,
    unlock_delay_ms=2_500,
)
_WISHES = replace(_SETTINGS, rebalance_lock_max_live_time_ms=3_000)
"""Who has these asks for more than brokers with fast timers grant."""
_PROCESS_MS_MAX = 20.0
_SLOW_MS_MAX = 3_000.0
"""Longer than a lease, so that it is renewed while a listener runs, or runs out."""
_SESSION_POLLS = 100
_SLOWLY_MS = 40.0
"""Of each message: more is sent meanwhile, so there is always a next one at hand."""


class InOrder:
    """A member that joins and leaves."""

    def __init__(
        self, around: Around, *, group: str = GROUP, label: str = "inorder", process_ms: float = 0
    ) -> None:
        """`process_ms`: of every message; 0: most take no time, some up to `_SLOW_MS_MAX`."""
        self._around = around
        self._group = group
        self._label = label
        self._process_ms = process_ms
        self._sessions = 0

    async def run(self) -> None:
        """One membership after another until it is over."""
        around = self._around
        while not around.is_over():
            self._sessions += 1
            cluster = around.cluster()
            links = GroupLinks(cluster)
            member = f"{around.alias}/{self._label}-{self._sessions}"
            consumer = OrderedConsumer(
                cluster,
                group=self._group,
                topics=[around.topic],
                listener=self._listener(member),
                settings=_WISHES if self._sessions % 2 else _SETTINGS,
                client_id=member,
            )
            async with around.session(links.close, consumer.close, cluster.close):
                await consumer.start()
                for _ in around.turns(_SESSION_POLLS):
                    await pause(100)
                    await look_at_offsets(around, cluster, links, self._group, around.topic)

    def _listener(self, member: str) -> Any:
        around = self._around

        async def listen(message: ReceivedMessage) -> None:
            assert message.lock_token is not None
            token = token_number(message.lock_token)
            with asking_to_process(around, self._group, member, message, token=token) as asking:
                if self._process_ms:
                    await pause(self._process_ms)
                elif around.happens(0.005):
                    await pause(around.random.uniform(0, _SLOW_MS_MAX))
                elif around.happens(0.2):
                    await pause(around.random.uniform(0, _PROCESS_MS_MAX))
                if around.happens(0.01):
                    raise SuspendQueueError(50)
                asking.ok()

        return listen


def slow_member(around: Around) -> InOrder:
    """One that always has messages at hand that it has not begun."""
    return InOrder(around, process_ms=_SLOWLY_MS)


class Taker:
    """A client with fixed queues: it takes their locks under the group's name and is no member, so
    that no member is asked to give a queue back."""

    def __init__(self, around: Around) -> None:
        self._around = around
        self._name = f"{around.alias}/taker"

    async def run(self) -> None:
        """Take one queue after the other, and process a message of it, until it is over."""
        around, cluster = self._around, self._around.cluster()
        links = GroupLinks(cluster)
        locks = QueueLocks(
            links,
            around.clock,
            around.random,
            group=GROUP,
            client_id=self._name,
            lease_ms=_SETTINGS.rebalance_lock_max_live_time_ms,
            renew_ms=_SETTINGS.rebalance_lock_interval_ms,
            on_lost=lambda key: None,  # it asks each time whether its lock is valid
            on_regained=lambda keys: None,
        )
        async with around.session(locks.close, links.close, cluster.close):
            cluster.start()
            while not around.is_over():
                for queue in queues_in(cluster, around.topic):
                    await self._process_one(cluster, links, locks, queue)
                await around.think()

    async def _process_one(
        self, cluster: Cluster, links: GroupLinks, locks: QueueLocks, queue: Queue
    ) -> None:
        around, view, group = self._around, cluster.view, GroupName(queue.group)
        assert view is not None, queue
        address = reading_address(view, group)
        if address is None:
            return
        topic_id = view.topics[TopicName(queue.topic)].topic_id
        key = QueueKey(topic_id, group, QueueId(queue.queue))
        try:
            token = await locks.acquire(key)
        except PacelineError:
            return  # a member has it, or nobody says
        offset = await ask_committed(around, links, GROUP, queue)
        rows = await pull_http(cluster, around, address, queue, offset or 0, "")
        is_ours = locks.is_valid(key, token, now_ms=around.clock.monotonic_ms())
        if is_ours and rows and not isinstance(rows, PacelineError):
            with around.recorder.asking(
                Deliver,
                client=around.client,
                consumer_group=GROUP,
                member=self._name,
                queue=queue,
                message=rows[0],
                token=token_number(token),
            ) as asking:
                asking.ok()
        await locks.give_back([(key, token)])
