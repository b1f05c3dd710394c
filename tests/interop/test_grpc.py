"""RocketMQ's own gRPC clients: what a sender of one language sends, a consumer of it receives."""

import pytest
from interop.jobs import Filter, Job, expected
from tests.interop.scene import Scene, acknowledged, came

from interop import judge

pytestmark = pytest.mark.asyncio(loop_scope="session")

PYTHON = pytest.param("python_grpc", marks=pytest.mark.python_client)
PUSHING = (PYTHON, "java_grpc", "go_grpc", "node_grpc")
CLIENTS = (*PUSHING, "rust_grpc")
"""Rust's client has simple consumers alone, and neither recalls nor priorities."""


def consumer_of(client: str) -> str:
    """The scenario by which a client consumes."""
    return "simple" if client == "rust_grpc" else "push"


def all_fields(scene: Scene, scenario: str, count: int) -> Job:
    return scene.job(
        scenario,
        count=count,
        prefix="größe-日本",
        tags=["a", "", "b"],
        keys=2,
        properties={"color": "dunkelgrün"},
        body_size=200,
    )


@pytest.mark.parametrize("scenario", ["send", "send-async"])
@pytest.mark.parametrize("client", CLIENTS)
async def test_messages_come_as_they_were_sent(scene: Scene, client: str, scenario: str) -> None:
    await scene.prepare()
    consumer = await scene.start(client, scene.job(consumer_of(client)))
    job = all_fields(scene, scenario, 40)

    sent = await scene.send(client, job)

    await came(consumer, sent)
    received = await consumer.stop()
    assert judge.failures(sent) + judge.failures(received) == []
    assert judge.lost(sent, received) + judge.strangers(job, received) == []
    assert judge.changed(job, sent, received) == []
    assert judge.duplicates(received) == {}


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_simple_consumer_receives_what_was_sent_before(scene: Scene, client: str) -> None:
    await scene.prepare()
    job = all_fields(scene, "send", 20)
    sent = await scene.send(client, job)

    consumer = await scene.start(client, scene.job("simple"))

    await came(consumer, sent)
    await acknowledged(consumer, len(sent) - 2)
    received = await consumer.stop()
    assert judge.failures(received) == []
    assert judge.changed(job, sent, received) == []


@pytest.mark.parametrize("client", CLIENTS)
async def test_message_groups_keep_their_order(scene: Scene, client: str) -> None:
    await scene.prepare("FIFO", is_ordered=True)
    taker = "java_grpc" if client == "rust_grpc" else client
    consumer = await scene.start(taker, scene.job("push-fifo"))
    job = scene.job("send-fifo", count=45, groups=["one", "two", "three"])

    sent = await scene.send(client, job)

    await came(consumer, sent)
    received = await consumer.stop()
    assert judge.failures(sent) == []
    assert judge.out_of_order(job, received) == []
    assert judge.changed(job, sent, received) == []


async def test_a_message_group_of_several_languages_keeps_its_order(scene: Scene) -> None:
    await scene.prepare("FIFO", is_ordered=True)
    consumer = await scene.start("java_grpc", scene.job("push-fifo"))
    jobs, sent = [], []
    for client in ("python_grpc", "java_grpc", "go_grpc", "node_grpc", "rust_grpc"):
        job = scene.job("send-fifo", prefix=client, count=10, groups=["one"])
        jobs.append(job)
        sent += await scene.send(client, job)

    await came(consumer, sent)

    received = await consumer.stop()
    in_order = [event["body"] for event in judge.of_kind(received, "received")]
    assert list(dict.fromkeys(in_order)) == [body for job in jobs for body in expected(job)]


@pytest.mark.parametrize("client", CLIENTS)
async def test_delayed_messages_are_not_early(scene: Scene, client: str) -> None:
    await scene.prepare("DELAY")
    consumer = await scene.start(client, scene.job(consumer_of(client)))

    sent = await scene.send(client, scene.job("send-delay", count=5, delay_ms=4000))

    await came(consumer, sent)
    received = await consumer.stop()
    assert judge.failures(sent) == []
    assert len(judge.of_kind(sent, "sent")) == 5
    assert judge.early(sent, received, tolerance_ms=scene.peer.early_ms_max) == []
    assert judge.late(sent, received, tolerance_ms=10_000) == []


@pytest.mark.parametrize("client", PUSHING)
async def test_recalled_messages_never_come(scene: Scene, client: str) -> None:
    await scene.prepare("DELAY")
    consumer = await scene.start(client, scene.job("push"))
    job = scene.job("send-recall", count=6, delay_ms=6000)

    sent = await scene.send(client, job)

    last = await scene.send(client, scene.job("send-delay", prefix="last", count=1, delay_ms=8000))
    await came(consumer, last)
    received = await consumer.stop()
    assert judge.failures(sent) == []
    assert judge.recalled_in_vain(job, sent, received) == []
    kept = {body for body, message in expected(job).items() if message.index % 2 == 0}
    assert judge.differences(kept, judge.bodies(received, "received") - {"last-0"}) == []


@pytest.mark.parametrize("client", CLIENTS)
async def test_transactions_come_if_they_were_committed(scene: Scene, client: str) -> None:
    await scene.prepare("TRANSACTION")
    consumer = await scene.start(client, scene.job(consumer_of(client)))
    answers = ["commit", "rollback", "check-commit", "check-rollback"]
    job = scene.job("send-transaction", count=8, answers=answers)

    sender = await scene.start(client, job)

    await sender.until(
        lambda events: len({e["message_id"] for e in judge.of_kind(events, "checked")}) >= 4,
        what="4 transactions were asked about",
        within_s=120,
    )
    committed = {body for body in expected(job) if body.endswith("commit")}
    await consumer.until(
        lambda events: committed <= judge.bodies(events, "received"),
        what="what was committed was received",
    )
    sent, received = await sender.stop(), await consumer.stop()
    assert judge.failures(sent) == []
    assert judge.wrong_outcomes(job, sent, received) == []
    assert judge.unchecked(job, sent) == []


@pytest.mark.parametrize("client", PUSHING)
async def test_messages_with_a_priority_come(scene: Scene, client: str) -> None:
    await scene.prepare("PRIORITY")
    consumer = await scene.start(client, scene.job("simple"))
    # Node's client takes 0 for none, and refuses such a message itself.
    priorities = [1, 2, 3] if client == "node_grpc" else [0, 1, 2]

    sent = await scene.send(client, scene.job("send-priority", count=6, priorities=priorities))

    assert judge.failures(sent) == []
    await came(consumer, sent)
    assert judge.lost(sent, await consumer.stop()) == []


@pytest.mark.parametrize(
    "wanted",
    [
        Filter(type="tag", expression="a || c"),
        Filter(type="sql", expression="color = 'red' AND index BETWEEN 3 AND 7"),
    ],
    ids=["tag", "sql"],
)
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_filter_selects(scene: Scene, client: str, wanted: Filter) -> None:
    await scene.prepare()
    job = scene.job("send", count=12, tags=["a", "b", "c", ""], properties={"color": "red"})
    consumer = await scene.start(client, scene.job(consumer_of(client), filter=wanted))

    sent = await scene.send(client, job)

    selected = {
        body
        for body, message in expected(job).items()
        if (message.tag in ("a", "c") if wanted.type == "tag" else 3 <= message.index <= 7)
    }
    await consumer.until(
        lambda events: selected <= judge.bodies(events, "received"),
        what=f"{len(selected)} messages were received",
    )
    received = await consumer.stop()
    assert judge.failures(sent) + judge.failures(received) == []
    assert judge.differences(selected, judge.bodies(received, "received")) == []


@pytest.mark.parametrize("client", PUSHING)
async def test_a_message_that_failed_comes_again(scene: Scene, client: str) -> None:
    await scene.prepare()
    consumer = await scene.start(client, scene.job("push", fail_first=2))

    sent = await scene.send(client, scene.job("send", count=4))

    await acknowledged(consumer, 4, within_s=120)
    received = await consumer.stop()
    assert judge.lost(sent, received) == []
    assert judge.wrong_attempts(received, count=3) == []


@pytest.mark.parametrize("client", PUSHING)
async def test_what_fails_for_good_is_a_dead_letter(scene: Scene, client: str) -> None:
    await scene.prepare(retries_max=1)
    consumer = await scene.start(client, scene.job("push", fail_first=99))

    sent = await scene.send(client, scene.job("send", count=3))

    await consumer.until(
        lambda events: len(judge.of_kind(events, "received")) >= 6,
        what="3 messages failed twice",
        within_s=120,
    )
    await scene.dead_letters(3)
    received = await consumer.stop()
    assert judge.lost(sent, received) == []
    assert judge.wrong_attempts(received, count=2) == []


@pytest.mark.parametrize("client", PUSHING)
async def test_a_renewed_message_stays_invisible(scene: Scene, client: str) -> None:
    await scene.prepare()
    job = scene.job("simple", invisible_ms=10_000, renew_ms=40_000, hold_ms=13_000)
    consumer = await scene.start(client, job)
    sent = await scene.send(client, scene.job("send", count=1))
    await consumer.until(
        lambda events: bool(judge.of_kind(events, "renewed")), what="it is invisible for longer"
    )

    other = await scene.start(client, scene.job("simple"))

    await acknowledged(consumer, 1)
    received = await consumer.stop() + await other.stop()
    assert judge.lost(sent, received) == []
    assert judge.duplicates(received) == {}


@pytest.mark.parametrize("client", CLIENTS)
async def test_what_is_not_acknowledged_comes_again(scene: Scene, client: str) -> None:
    await scene.prepare()
    sent = await scene.send(client, scene.job("send", count=3))
    job = scene.job("simple", invisible_ms=10_000, fail_first=1)

    consumer = await scene.start(client, job)

    await acknowledged(consumer, 3)
    received = await consumer.stop()
    assert judge.lost(sent, received) == []
    assert judge.wrong_attempts(received, count=2) == []


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_topic_that_is_not_there_is_told(scene: Scene, client: str) -> None:
    await scene.prepare()

    told = await scene.refused(client, scene.job("send", topic="t-nowhere", count=1))

    # Java's and Node's tell their users no more than that they did not start, but log why.
    words = ("nowhere", "40402", "TOPIC_NOT_FOUND")
    is_logged = scene.logged("TOPIC_NOT_FOUND") or scene.peer.name == "rocketmq"
    assert any(word in told for word in words) or (told and is_logged), told


@pytest.mark.parametrize("client", CLIENTS)
async def test_nothing_is_lost_when_the_master_is_killed(scene: Scene, client: str) -> None:
    await scene.prepare()
    consumer = await scene.start(client, scene.job(consumer_of(client)))
    job = scene.job("send", count=30 * scene.peer.load_s, rate=30)
    sender = await scene.start(client, job)
    await sender.until(lambda events: len(events) > 60, what="60 messages were sent")

    await scene.peer.kill_master()

    sent = await sender.finish(within_s=180)
    await came(consumer, sent, within_s=120)
    received = await consumer.stop()
    assert len(judge.of_kind(sent, "sent")) > 100
    assert judge.lost(sent, received) + judge.strangers(job, received) == []


@pytest.mark.parametrize("client", CLIENTS)
async def test_each_consumer_of_a_broadcasting_group_gets_everything(
    scene: Scene, client: str
) -> None:
    await scene.prepare(is_broadcasting=True)
    consumers = [await scene.start(client, scene.job(consumer_of(client))) for _ in range(2)]
    job = scene.job("send", count=20, tags=["a", "b"])

    sent = await scene.send(client, job)

    for consumer in consumers:
        await came(consumer, sent)
        received = await consumer.stop()
        assert judge.failures(sent) + judge.failures(received) == []
        assert judge.lost(sent, received) + judge.strangers(job, received) == []
        assert judge.duplicates(received) == {}


@pytest.mark.parametrize("client", PUSHING)
async def test_a_consumer_of_a_broadcasting_group_has_retries_of_its_own(
    scene: Scene, client: str
) -> None:
    await scene.prepare(is_broadcasting=True, retries_max=1)
    good = await scene.start(client, scene.job("push"))
    bad = await scene.start(client, scene.job("push", fail_first=99))

    sent = await scene.send(client, scene.job("send", count=3))

    await came(good, sent)
    await bad.until(
        lambda events: len(judge.of_kind(events, "received")) >= 6,
        what="3 messages failed twice",
        within_s=120,
    )
    await scene.dead_letters(3)
    received, failed = await good.stop(), await bad.stop()
    assert judge.lost(sent, failed) == []
    assert judge.wrong_attempts(received, count=1) + judge.wrong_attempts(failed, count=2) == []


@pytest.mark.parametrize("client", CLIENTS)
async def test_no_consumer_of_a_broadcasting_group_loses_anything_when_the_master_is_killed(
    scene: Scene, client: str
) -> None:
    await scene.prepare(is_broadcasting=True)
    consumers = [await scene.start(client, scene.job(consumer_of(client))) for _ in range(2)]
    job = scene.job("send", count=30 * scene.peer.load_s, rate=30)
    sender = await scene.start(client, job)
    await sender.until(lambda events: len(events) > 60, what="60 messages were sent")

    await scene.peer.kill_master()

    sent = await sender.finish(within_s=180)
    assert len(judge.of_kind(sent, "sent")) > 100
    for consumer in consumers:
        await came(consumer, sent, within_s=120)
        received = await consumer.stop()
        assert judge.lost(sent, received) + judge.strangers(job, received) == []
