"""Members of a group of the library's ordered consumer: each queue in order, under its lock.

Unlike `consuming.OrderedConsumer`, which is careless on purpose, it must keep to its leases by
itself: nothing is begun under a token after somebody was handed a message under a newer one (S26).
"""

from typing import Any

from paceline.consumer.links import GroupLinks
from paceline.consumer.ordered import OrderedConsumer, OrderedSettings, SuspendQueueError
from paceline.message import ReceivedMessage
from paceline.runtime import pause
from paceline_chaos.world.jobs.around import Around
from paceline_chaos.world.jobs.consuming import look_at_offsets
from paceline_chaos.world.jobs.reading import asking_to_process

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
_PROCESS_MS_MAX = 20.0
_SLOW_MS_MAX = 3_000.0
"""Longer than a lease, so that it is renewed while a listener runs, or runs out."""
_SESSION_POLLS = 100


class InOrder:
    """A member that joins and leaves."""

    def __init__(self, around: Around, *, group: str = GROUP, label: str = "inorder") -> None:
        self._around = around
        self._group = group
        self._label = label
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
                settings=_SETTINGS,
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
            epoch, position = message.lock_token
            token = (epoch << 64) + position
            with asking_to_process(around, self._group, member, message, token=token) as asking:
                if around.happens(0.005):
                    await pause(around.random.uniform(0, _SLOW_MS_MAX))
                elif around.happens(0.2):
                    await pause(around.random.uniform(0, _PROCESS_MS_MAX))
                if around.happens(0.01):
                    raise SuspendQueueError(50)
                asking.ok()

        return listen
