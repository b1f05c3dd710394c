"""Real processes: a group goes on within a second when a member is killed, and over a failover."""

import signal
from functools import partial
from itertools import pairwise
from pathlib import Path

import orjson
import pytest
from tests.support.process.consuming import committed_of
from tests.support.process.harness import (
    BUSY_MS_MAX,
    broker_statuses,
    eventually,
    running_cluster,
    the_master,
)
from tests.support.process.load import all_in_sync
from tests.support.process.members import member, steady_messages

from paceline.admin.client import AdminClient
from paceline.consumer.push import PushConsumer, PushSettings
from paceline.message import ReceivedMessage
from paceline.platform.runtime import SystemClock
from paceline.queues import QueueKey

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

QUEUES = 4
PAUSE_MS_MAX = 1_000
"""The goal for a member's death: 300 ms until it is dropped, and then a queue is opened."""


class Watched:
    """A member in this process: what it got of each queue, and when."""

    def __init__(self) -> None:
        self.numbers: set[int] = set()
        self.arrivals: dict[int, list[int]] = {queue: [] for queue in range(QUEUES)}
        self._clock = SystemClock()

    def now_ms(self) -> int:
        return self._clock.monotonic_ms()

    async def listen(self, message: ReceivedMessage) -> None:
        self.numbers.add(int(message.body))
        self.arrivals[message.queue_id].append(self.now_ms())

    async def has(self, count: int) -> None:
        """Wait until it has got so many messages."""

        async def enough() -> bool:
            return len(self.numbers) >= count

        await eventually(enough, what=f"{count} messages")

    def pause_ms(self, since_ms: int) -> int:
        """The longest silence of any queue since then."""
        return max(longest_gap(arrivals, since_ms) for arrivals in self.arrivals.values())


def longest_gap(arrivals: list[int], since_ms: int) -> int:
    """The longest silence after `since_ms`."""
    times = [since_ms, *(at for at in arrivals if at >= since_ms)]
    assert len(times) > 1, "a queue stood still"
    return max(after - before for before, after in pairwise(times))


@pytest.mark.alone
async def test_a_killed_member_is_replaced_within_a_second_and_nothing_is_skipped(
    tmp_path: Path,
) -> None:
    watched = Watched()
    with running_cluster(tmp_path / "data") as cluster:
        async with AdminClient(cluster.bootstrap) as admin:
            orders = (await admin.topics.create("orders", queues=QUEUES)).topic_id
        consumer = PushConsumer(
            cluster.bootstrap,
            group="audit",
            topics=["orders"],
            listener=watched.listen,
            settings=PushSettings(start="first"),
        )
        async with consumer, steady_messages(cluster, "orders") as stream:
            with member(cluster, tmp_path, topic="orders", group="audit") as other:

                async def shared() -> bool:
                    return len(_of(orders, consumer)) == QUEUES // 2 and len(other.seen()) > 20

                await eventually(shared, what="two members that share the queues")
                killed_at = watched.now_ms()
                other.kill()
                seen_by_other = other.seen()

            async def alone() -> bool:
                return len(_of(orders, consumer)) == QUEUES and watched.now_ms() > killed_at + 3_000

            await eventually(alone, what="the queues of the killed member")
            pause_ms = watched.pause_ms(killed_at)
        count = stream.count
        committed = await committed_of(cluster.bootstrap, "orders", "audit")

    assert pause_ms <= PAUSE_MS_MAX
    assert watched.numbers | {number for _, number in seen_by_other} == set(range(count))
    assert committed == count


async def test_members_go_on_at_the_next_master_with_the_queues_they_had(tmp_path: Path) -> None:
    watched = Watched()
    with running_cluster(tmp_path / "data", restart=True) as cluster:
        async with AdminClient(cluster.bootstrap) as admin:
            orders = (await admin.topics.create("orders", queues=QUEUES)).topic_id
        consumer = PushConsumer(
            cluster.bootstrap,
            group="audit",
            topics=["orders"],
            listener=watched.listen,
            settings=PushSettings(start="first"),
        )
        with member(cluster, tmp_path, topic="orders", group="audit") as other:
            async with consumer, steady_messages(cluster, "orders") as stream:

                async def shared() -> bool:
                    return len(_of(orders, consumer)) == QUEUES // 2 and len(other.seen()) > 20

                await eventually(shared, what="two members that share the queues")
                mine = _of(orders, consumer)
                master = await the_master(cluster)
                killed_at = watched.now_ms()
                cluster.send_signal(master, signal.SIGKILL)

                async def passed() -> bool:
                    return watched.now_ms() > killed_at + 6_000

                await eventually(passed)
                kept = _of(orders, consumer)
                gaps = [longest_gap(watched.arrivals[key.queue_id], killed_at) for key in mine]
            count = stream.count

            async def all_seen() -> bool:
                return len(other.seen()) + len(watched.numbers) >= count

            await eventually(all_seen, what="every message")
            seen_by_other = [number for _, number in other.seen()]

    assert kept == mine  # nobody was dropped by the new coordinator
    assert max(gaps) <= BUSY_MS_MAX
    assert watched.numbers | set(seen_by_other) == set(range(count))
    assert watched.numbers.isdisjoint(seen_by_other)


async def test_queues_far_behind_are_read_from_replicas_also_when_brokers_die(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a ratio of 0 everything is far behind: the master serves no message for long."""
    monkeypatch.setenv("PACELINE_BROKER_ACCESS_MESSAGE_IN_MEMORY_MAX_RATIO", "0")
    watched = Watched()
    with running_cluster(tmp_path / "data", restart=True) as cluster:
        async with AdminClient(cluster.bootstrap) as admin:
            await admin.topics.create("orders", queues=QUEUES)
        consumer = PushConsumer(
            cluster.bootstrap,
            group="audit",
            topics=["orders"],
            listener=watched.listen,
            settings=PushSettings(start="first"),
        )
        async with consumer, steady_messages(cluster, "orders") as stream:
            await watched.has(300)
            master = await the_master(cluster)
            asked = {
                node["name"]: status["service"]["requests"]["stream"]
                for node, status in await broker_statuses(cluster)
                if status is not None and node["name"] != master
            }
            for victim in (min(asked), master):  # a replica that is read, and the master
                cluster.send_signal(victim, signal.SIGKILL)
                await watched.has(stream.count + 300)
                await all_in_sync(cluster)
        count = stream.count
        committed = await committed_of(cluster.bootstrap, "orders", "audit")

    assert sum(asked.values()) > 50
    assert watched.numbers == set(range(count))
    assert committed == count


async def test_a_broadcasting_member_goes_on_where_its_file_says_over_kills_of_all_sorts(
    tmp_path: Path,
) -> None:
    """S35: its own process is killed, the master is, and its process again."""
    path = tmp_path / "offsets/default/audit/offsets.json"
    lives: list[list[int]] = []
    written: list[int] = []
    with running_cluster(tmp_path / "data", restart=True) as cluster:
        async with AdminClient(cluster.bootstrap) as admin:
            await admin.topics.create("orders", queues=QUEUES)
        async with steady_messages(cluster, "orders") as stream:
            for life in range(3):
                with member(
                    cluster, tmp_path, topic="orders", group="audit", is_broadcasting=True
                ) as process:
                    if life == 1:
                        cluster.send_signal(await the_master(cluster), signal.SIGKILL)
                    await eventually(
                        partial(_wrote, path, stream.count + 50), within_ms=60_000, what="its file"
                    )
                    process.kill()
                    lives.append([number for _, number in process.seen()])
                    written.append(_offsets_in(path))

    seen = {number for life in lives for number in life}
    # The last ones of other queues may have been on their way when it was killed.
    assert seen >= set(range(max(seen) - 50))
    for before, numbers in zip(written, lives[1:], strict=False):
        assert len(numbers) <= max(seen) + 1 - before, "it went back behind its file"


def _of(topic_id: int, consumer: PushConsumer) -> list[QueueKey]:
    """The queues of a topic that a member has; it has those of the retry topic, too."""
    return [key for key in consumer.queues if key.topic_id == topic_id]


def _offsets_in(path: Path) -> int:
    """How many messages the file says are done, over all queues."""
    if not path.exists():
        return 0
    return sum(row[-1] for row in orjson.loads(path.read_bytes())["offsets"])


async def _wrote(path: Path, count: int) -> bool:
    return _offsets_in(path) >= count
