"""A store whose group the controllers do not know: what it shows, how it is taken over (R18)."""

from dataclasses import replace
from typing import Any, cast

import msgspec
import pytest
from tests.support.broker.brokers import (
    CLUSTER,
    DATA,
    Broker,
    a_group,
    eventually,
    registered,
    tell,
)

from paceline.errors import ConfigError
from paceline.platform.disk_memory import MemoryDisk
from paceline.platform.runtime import SeededRandom
from paceline.records.header import Kind
from paceline.types import PhysicalOffset, ReplicaId
from paceline.wire.cluster import ClusterView
from paceline.wire.session_commands import PresentedTopic, PresentStore, RegisterReplica
from paceline_broker.acting.locks import longest_leases_ms
from paceline_broker.controllers.recovery_offer import (
    PRESENT_MS,
    RETRY_MS,
    TOPIC_BYTES_MAX,
    parts_of,
    presentation_of,
)
from paceline_broker.log.layout import segment_name
from paceline_broker.projections.projections import TopicRecord

GONE = {"reason": "STORE_UNKNOWN"}
NEEDED = {"ok": False, "reason": "RECOVERY_NEEDED", "detail": "decide"}


async def a_store(disk: MemoryDisk, *, confirms: bool = True, more_topics: int = 0) -> None:
    """Replica 1 was master of epoch 1; topics and a message lie at the end of its log."""
    broker = Broker(disk=disk)
    async with broker.running():
        minimum = 1 if confirms else 2
        tell(a_group(broker, sync_state_set=frozenset({1}), minimum=minimum, epoch=1), 1, broker)
        await eventually(lambda: broker.role.mastership is not None)
        if confirms:
            await eventually(lambda: broker.mastership.is_open)
        names = ["orders", *(f"t{number}" for number in range(2, 2 + more_topics))]
        for topic_id, name in enumerate(names, start=1):
            record = TopicRecord(topic=name, topic_id=topic_id, queues=4)
            broker.mastership.appender.record(
                Kind.TOPIC,
                record.to_json(),
                store_unix_ms=broker.role.projections.log_time_ms,
            )
        end = broker.send()
        await eventually(lambda: broker.store.log.flushed >= end)
    broker.store.close(clean=True)


def presented(broker: Broker) -> PresentStore:
    return presentation_of(
        broker.store,
        client_address="127.0.0.1:1",
        replication_address="127.0.0.1:2",
        config=broker.config,
    ).store


@pytest.mark.parametrize("confirms", [True, False])
async def test_a_store_shows_its_whole_log_also_above_confirm(confirms: bool) -> None:
    """R35: a topic that the controllers do not hear of would be deleted from the log."""
    disk = MemoryDisk()
    await a_store(disk, confirms=confirms)
    broker = Broker(disk=disk)
    before = broker.store.projections.position

    store = presented(broker)

    assert store.topics == (PresentedTopic(topic="orders", topic_id=1, queues=4),)
    assert store.topic_id_max == 1
    assert (store.end, store.last_epoch, store.epoch) == (broker.store.log.end, 1, 1)
    assert (store.cluster_id, store.replica_id, store.incarnation) == (CLUSTER, 1, 2)
    assert (store.is_damaged, store.is_suspect) == (False, False)
    assert store.leases_ms == longest_leases_ms(broker.config.lock_lease_ms)
    assert broker.store.projections.position == before


async def test_a_damaged_store_says_so_and_tells_no_topics() -> None:
    disk = MemoryDisk()
    await a_store(disk)
    disk.flip_bit(f"{DATA}/log/{segment_name(PhysicalOffset(0))}", 300)
    broker = Broker(disk=disk)
    assert broker.store.log.damage is not None

    store = presented(broker)

    assert store.is_damaged
    assert store.is_suspect


class Controllers:
    """Answers in turn; remembers what it was asked."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self.requests: list[Any] = []
        self._answers = list(answers)

    async def request(self, command: Any) -> dict[str, Any]:
        self.requests.append(command)
        return self._answers.pop(0)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    taken: list[float] = []

    async def pause(milliseconds: float) -> None:
        taken.append(milliseconds)

    monkeypatch.setattr("paceline_broker.controllers.recovery_offer.pause", pause)
    return taken


async def test_a_store_waits_and_takes_the_new_cluster_when_it_was_recovered(
    pauses: list[float],
) -> None:
    disk = MemoryDisk()
    await a_store(disk)
    broker = Broker(disk=disk)
    taken_over = {"ok": True, "cluster_id": "new", "replica_id": 7, "replaces_cluster": CLUSTER}
    rounds = PRESENT_MS // RETRY_MS
    broker.controllers = cast(
        Any, Controllers(NEEDED, NEEDED, *[NEEDED] * rounds, NEEDED, taken_over)
    )

    await registered(broker)

    kinds = [type(command) for command in broker.controllers.requests]
    assert kinds[:3] == [RegisterReplica, PresentStore, RegisterReplica]
    assert kinds.count(PresentStore) == 2, "again after a while, not each time"
    assert len(pauses) == rounds + 1
    disk.crash(SeededRandom("power"), keep_page_cache=False)
    identity = Broker(disk=disk).identity.identity
    assert (identity.cluster_id, identity.replica_id) == ("new", 7)


@pytest.mark.parametrize("replaces", [None, "another"])
async def test_a_store_leaves_its_cluster_only_if_that_very_one_is_replaced(
    replaces: str | None,
) -> None:
    disk = MemoryDisk()
    await a_store(disk)
    broker = Broker(disk=disk)
    answer = {"ok": True, "cluster_id": "new", "replica_id": 1, "replaces_cluster": replaces}
    broker.controllers = cast(Any, Controllers(answer))

    with pytest.raises(ConfigError, match="another cluster's data"):
        await registered(broker)

    assert broker.identity.identity.cluster_id == CLUSTER


async def test_a_store_that_will_not_be_heard_ends_with_the_reason(pauses: list[float]) -> None:
    disk = MemoryDisk()
    await a_store(disk)
    broker = Broker(disk=disk)
    twice = {"ok": False, "reason": "STORE_TWICE", "detail": "a copy runs"}
    broker.controllers = cast(Any, Controllers(NEEDED, twice))

    with pytest.raises(ConfigError, match=r"a copy runs \(STORE_TWICE\)"):
        await registered(broker)


TOPICS = [PresentedTopic(topic=f"t{at}", topic_id=at + 1, queues=4) for at in range(5)]


def test_topics_are_cut_into_parts_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline_broker.controllers.recovery_offer.PART_BYTES_MAX", 80)

    assert list(parts_of([])) == [()]
    assert list(parts_of(TOPICS)) == [tuple(TOPICS[:2]), tuple(TOPICS[2:4]), tuple(TOPICS[4:])]
    long = PresentedTopic(topic="x" * 255, topic_id=2**31 - 1, queues=4096)
    assert list(parts_of([long, TOPICS[0]])) == [(long,), (TOPICS[0],)]
    assert len(msgspec.json.encode(long)) + 1 <= 255 + TOPIC_BYTES_MAX


@pytest.mark.parametrize(
    ("shown_before", "answer", "parts"),
    [(2, {}, [(2, 4), (4, 5)]), (4, {}, [(4, 5)]), (5, {}, []), (2, GONE, [(2, 4)])],
    ids=["none was shown", "some were shown", "all were shown", "it is forgotten meanwhile"],
)
async def test_topics_that_do_not_fit_follow_in_parts(
    pauses: list[float],
    monkeypatch: pytest.MonkeyPatch,
    shown_before: int,
    answer: dict[str, Any],
    parts: list[tuple[int, int]],
) -> None:
    """Those that the controllers have already are not shown again."""
    monkeypatch.setattr("paceline_broker.controllers.recovery_offer.PART_BYTES_MAX", 80)
    disk = MemoryDisk()
    await a_store(disk, more_topics=4)
    broker = Broker(disk=disk)
    shown = {**NEEDED, "topics_shown": shown_before}
    accepted = {"ok": True, "cluster_id": CLUSTER, "replica_id": 1}
    answers = [{**NEEDED, **answer} for _ in parts]
    broker.controllers = cast(Any, Controllers(NEEDED, shown, *answers, accepted))

    await registered(broker)

    requests: list[Any] = broker.controllers.requests
    _, store, *more, _ = requests
    assert (len(store.topics), store.topics_to_come) == (2, 3)
    assert [(part.first, part.first + len(part.topics)) for part in more] == parts
    for part in more:
        ids = [topic.topic_id for topic in part.topics]
        assert ids == list(range(part.first + 1, part.first + len(part.topics) + 1))
        assert (part.group, part.store_id, part.incarnation) == (
            store.group,
            store.store_id,
            store.incarnation,
        )


async def test_a_store_of_no_cluster_at_all_is_not_presented() -> None:
    broker = Broker()
    broker.controllers = cast(Any, Controllers(NEEDED))

    with pytest.raises(ConfigError, match="RECOVERY_NEEDED"):
        await registered(broker)


async def test_the_view_that_came_before_the_takeover_is_taken_after_it() -> None:
    """The view that shows the registration comes before its answer, and no other may follow."""
    disk = MemoryDisk()
    await a_store(disk)
    broker = Broker(disk=disk)
    async with broker.running(is_registered=False):
        group = a_group(broker, sync_state_set=frozenset({1}), minimum=1, epoch=9)
        group = replace(group, master=None, master_incarnation=None)
        for cluster_id, version in ((CLUSTER, 40), ("new", 41)):
            view = ClusterView(cluster_id=cluster_id, version=version, groups={group.group: group})
            broker.role.view_arrived(view)
        assert broker.role.epoch == 1

        broker.identity.join_cluster(
            cluster_id="new", replica_id=ReplicaId(1), replaces_cluster=CLUSTER
        )
        broker.role.registered()

        await eventually(lambda: broker.role.epoch == 9)
        assert broker.role.view is not None
        assert broker.role.view.cluster_id == "new"
