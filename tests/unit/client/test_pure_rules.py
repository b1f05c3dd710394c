"""Routing, allocation, retry, process queue: pure rules of the client."""

import pytest

from paceline.consumer.group.allocation import allocate_averagely, queues_for
from paceline.consumer.queues.process_queue import ProcessQueue
from paceline.errors import (
    CorruptBatchError,
    FlushReplicaTimeoutError,
    NotMasterError,
    OutOfOrderSequenceError,
    OverloadedError,
    PacelineError,
    PeerError,
    ProducerFencedError,
    TopicNotFoundError,
)
from paceline.message import ReceivedMessage
from paceline.net.backoff import Backoff, Verdict, judge
from paceline.platform.runtime import SeededRandom
from paceline.queues import QueueKey, index_of_key, next_index, queues_of
from paceline.types import GroupName, QueueId, TopicId, TopicName
from paceline.wire.calls.groups import MemberRow
from paceline.wire.cluster import ClusterView, TopicView

G1, G2 = GroupName("g1"), GroupName("g2")
TOPIC = TopicView(topic=TopicName("orders"), topic_id=TopicId(4), queues={G2: 2, G1: 1})


def key(group: GroupName, queue: int) -> QueueKey:
    return QueueKey(TopicId(4), group, QueueId(queue))


def a_message(offset: int) -> ReceivedMessage:
    return ReceivedMessage("orders", "g1", 0, offset, b"body", None, "", {}, 0, 0)


def test_queues_stand_in_order_of_group_and_id() -> None:
    assert queues_of(TOPIC) == (key(G1, 0), key(G2, 0), key(G2, 1))


def test_a_key_goes_to_its_crc_modulo_the_queues_for_ever() -> None:
    """Other clients and later versions must agree: 0xE3069283 is the CRC-32C of "123456789"."""
    assert index_of_key(b"123456789", 1000) == 0xE3069283 % 1000


def test_keyless_batches_skip_groups_that_are_down_while_another_is_up() -> None:
    queues = queues_of(TOPIC)

    assert [next_index(0, queues, lambda group: group == G2)] == [1]
    assert next_index(2, queues, lambda group: group == G2) == 1
    assert next_index(2, queues, lambda group: False) == 0


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (NotMasterError(""), Verdict.RETRY),
        (OverloadedError(""), Verdict.RETRY),
        (TopicNotFoundError(""), Verdict.RETRY),
        (FlushReplicaTimeoutError(""), Verdict.UNKNOWN),
        (PeerError(""), Verdict.UNKNOWN),
        (PacelineError(""), Verdict.UNKNOWN),
        (OutOfOrderSequenceError(""), Verdict.SEQUENCE),
        (CorruptBatchError(""), Verdict.FATAL),
        (ProducerFencedError(""), Verdict.FATAL),
    ],
)
def test_only_definite_refusals_may_be_retried_elsewhere(
    error: PacelineError, verdict: Verdict
) -> None:
    """R32."""
    assert judge(error) is verdict


def test_back_off_doubles_with_jitter_up_to_its_limit() -> None:
    backoff = Backoff(SeededRandom("backoff"), first_ms=10, max_ms=100)

    waits = [backoff.next_ms() for _ in range(6)]
    backoff.reset()

    for wait, full in zip(waits, (10, 20, 40, 80, 100, 100), strict=True):
        assert full / 2 <= wait <= full
    assert backoff.next_ms() <= 10


@pytest.mark.parametrize(("queues", "members"), [(8, 3), (2, 5), (7, 7), (1, 1), (0, 2)])
def test_average_shares_cover_every_queue_once_and_differ_by_one(queues: int, members: int) -> None:
    keys = [key(G1, number) for number in range(queues)]
    client_ids = [f"c{number}" for number in range(members)]

    shares = [allocate_averagely(keys, client_ids, client_id) for client_id in client_ids]

    assert [queue for share in shares for queue in share] == keys
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_members_share_only_the_topics_they_want() -> None:
    view = ClusterView(cluster_id="c", version=1, topics={TOPIC.topic: TOPIC})
    members = [
        MemberRow(client_id="b", topics=["orders", "gone"], owned=[]),
        MemberRow(client_id="a", topics=["orders"], owned=[]),
        MemberRow(client_id="c", topics=[], owned=[]),
    ]

    assert queues_for(view, members, "a") == {key(G1, 0), key(G2, 0)}
    assert queues_for(view, members, "b") == {key(G2, 1)}
    assert queues_for(view, members, "c") == set()


def test_the_commit_offset_is_the_lowest_that_is_not_done() -> None:
    queue = ProcessQueue(key(G1, 0), 5, generation=0)
    queue.put([a_message(offset) for offset in (5, 6, 8)], 10)
    taken = queue.take_many(3)

    commits = []
    for index in (1, 0, 2):
        queue.finish(taken[index])
        commits.append(queue.commit_offset)

    assert commits == [5, 8, 10]
    assert (queue.bytes_held, queue.in_process_count, len(queue)) == (0, 0, 0)


def test_a_dropped_queue_leaves_what_was_not_taken_to_the_next_owner() -> None:
    queue = ProcessQueue(key(G1, 0), 0, generation=0)
    queue.put([a_message(offset) for offset in range(4)], 4)
    [first] = queue.take_many(1)

    queue.drop()
    queue.finish(first)

    assert not queue.has_waiting
    assert queue.in_process_count == 0
    assert queue.commit_offset == 1


def test_a_failed_message_comes_again_before_the_others() -> None:
    queue = ProcessQueue(key(G1, 0), 0, generation=0)
    queue.put([a_message(offset) for offset in range(3)], 3)
    [first] = queue.take_many(1)

    queue.fail(first)
    queue.put_back(first)

    assert queue.take_many(1)[0] is first
    assert queue.commit_offset == 0
