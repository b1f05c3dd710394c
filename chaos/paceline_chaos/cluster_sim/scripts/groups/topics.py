"""What hangs on a deleted topic or group goes with it, on every replica, by a record (R35)."""

from paceline.admin.client import AdminClient
from paceline.consumer.pull import PullConsumer
from paceline.types import TopicName
from paceline.wire.names import retry_topic
from paceline_chaos.cluster_sim.all_ack.questions import fell_silent, unequal_logs, unseen
from paceline_chaos.cluster_sim.jobs.around import Around
from paceline_chaos.cluster_sim.run import Result
from paceline_chaos.cluster_sim.script import Director, Steps

DOOMED = TopicName("doomed")
"""Of nobody's load; nothing is sent to it: a commit hangs on it."""
READERS = "doomed-readers"
WATCHED_MS = 2_000
"""Four looks of a cleaner; one is enough."""


def deleted(d: Director) -> Steps:
    """A topic with a commit is deleted; then the master dies, and another one folds the same."""
    yield d.is_whole
    d.stage.begin_tool(_make)
    yield lambda: d.topic(DOOMED) is not None
    topic_id = _id_of(d, DOOMED)
    assert topic_id is not None
    yield lambda: all(_hanging(d, topic_id))
    d.saw("a commit on every replica")
    d.stage.begin_tool(_delete)
    yield lambda: d.topic(DOOMED) is None
    yield d.pass_ms(WATCHED_MS)
    d.expect(not any(_hanging(d, topic_id)), "a replica keeps what hangs on a deleted topic (R35)")
    yield from d.fail_over(for_ms=1_000)
    d.expect(not any(_hanging(d, topic_id)), "a deleted topic came back with a new master (R35)")
    d.mark("after")
    yield d.pass_ms(500)


def group_deleted(d: Director) -> Steps:
    """A consumer group with a commit is deleted and made again: it stands nowhere, on no replica,
    nor with the next master."""
    yield d.is_whole
    d.stage.begin_tool(_make)
    yield lambda: d.topic(DOOMED) is not None
    yield lambda: all(_standing(d))
    d.saw("a commit on every replica")
    first = _id_of(d, retry_topic(READERS))
    d.stage.begin_tool(_make_group_again)
    yield lambda: _id_of(d, retry_topic(READERS)) not in (None, first)
    yield d.pass_ms(WATCHED_MS)
    d.expect(not any(_standing(d)), "a replica keeps what a deleted group committed (R35)")
    yield from d.fail_over(for_ms=1_000)
    d.expect(not any(_standing(d)), "a deleted group's commits came back with a new master (R35)")
    d.mark("after")
    yield d.pass_ms(500)


async def _make(around: Around) -> None:
    cluster = around.cluster()
    try:
        async with AdminClient(cluster) as admin, PullConsumer(cluster) as consumer:
            await admin.topics.create(DOOMED, queues=2)
            queues = await consumer.queues(DOOMED)
            await admin.consumer_groups.create(READERS)
            await consumer.commit(READERS, dict.fromkeys(queues, 0))
    finally:
        await cluster.close()


async def _delete(around: Around) -> None:
    await around.as_admin(lambda admin: admin.topics.delete(DOOMED))


async def _make_group_again(around: Around) -> None:
    async def make_again(admin: AdminClient) -> None:
        await admin.consumer_groups.delete(READERS)
        await admin.consumer_groups.create(READERS)

    await around.as_admin(make_again)


def _id_of(d: Director, name: str) -> int | None:
    topic = d.topic(name)
    return None if topic is None else int(topic.topic_id)


def _standing(d: Director) -> list[bool]:
    """For each running broker, whether the readers stand anywhere."""
    return [bool(d.projections(node).offsets.of_group(READERS)) for node in d.running]


def _hanging(d: Director, topic_id: int) -> list[bool]:
    """For each running broker, whether anything of its state hangs on that id."""
    return [topic_id in d.projections(node).topic_ids() for node in d.running]


def were_dropped(result: Result) -> list[str]:
    return [
        *unseen(result, a_commit_on_every_replica=1),
        *fell_silent(result, since="after"),
        *unequal_logs(result),
    ]
