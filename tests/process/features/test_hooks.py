"""Real processes: hooks see each batch and each message once, also while masters are killed."""

import random
import signal
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from tests.support.process.examples import fenced_blocks
from tests.support.process.harness import (
    RunningCluster,
    eventually,
    http_session,
    running_cluster,
    the_master,
)

from paceline import ConsumeContext, SendContext
from paceline.admin.client import AdminClient
from paceline.consumer.push import PushConsumer, PushSettings
from paceline.errors import ForbiddenError
from paceline.message import Message, ReceivedMessage
from paceline.producer.producer import Producer
from paceline.producer.settings import ProducerSettings

pytestmark = [pytest.mark.process, pytest.mark.timeout(90)]

COUNT = 300


class Watch:
    """What hooks were told of: each thing that began, and how it ended."""

    def __init__(self) -> None:
        self.begun = 0
        self.stored: Counter[bytes] = Counter()
        self.done: Counter[bytes] = Counter()

    def before_send(self, context: SendContext) -> None:
        self.begun += 1
        context.state["begun"] = self.begun

    def after_send(self, context: SendContext) -> None:
        assert context.state["begun"], "told of an end without its beginning"
        assert context.error is None, context.error
        self.begun -= 1
        self.stored.update(context.bodies)

    def before_consume(self, context: ConsumeContext) -> None:
        context.state["bodies"] = [message.body for message in context.messages]

    def after_consume(self, context: ConsumeContext) -> None:
        if context.error is None:
            self.done.update(context.state["bodies"][: context.done_count])


async def watched_sends(cluster: RunningCluster) -> float:
    """What the watcher in the present master has counted."""
    master = await the_master(cluster)
    address = cluster.node(master)["address"]
    async with http_session() as http, http.get(f"http://{address}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    counted = [line for line in lines if line.startswith("paceline_service_operations_total{")]
    return sum(float(line.rpartition(" ")[2]) for line in counted if "PRODUCE" in line)


async def test_each_message_is_told_of_once_while_masters_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retries at the next master lie between the two calls, and are no sends of their own. The
    hooks of brokers are those of whoever leads."""
    monkeypatch.setenv("PACELINE_BROKER_HOOKS", "paceline_broker.service.request_times:register")
    watch = Watch()
    listened: Counter[bytes] = Counter()

    async def listen(message: ReceivedMessage) -> None:
        listened[message.body] += 1

    with running_cluster(tmp_path / "data", restart=True) as cluster:
        async with AdminClient(cluster.bootstrap) as admin:
            await admin.topics.create("watched", queues=2)
        consumer = PushConsumer(
            cluster.bootstrap,
            group="watchers",
            topics=["watched"],
            listener=listen,
            settings=PushSettings(start="first", consume_hooks=(watch,)),
        )
        settings = ProducerSettings(send_hooks=(watch,))
        async with consumer, Producer(cluster.bootstrap, settings=settings) as producer:
            for number in range(COUNT):
                if number in (COUNT // 3, COUNT * 2 // 3):
                    cluster.send_signal(await the_master(cluster), signal.SIGKILL)
                await producer.send(Message("watched", b"%d" % number, key=f"{number % 7}"))

            async def all_done() -> bool:
                return len(watch.done) == COUNT

            await eventually(all_done, what="every message, told of as consumed")
            assert (producer.hook_errors, consumer.hooks.errors) == (0, 0)
        assert await watched_sends(cluster) > 0, "the last master has no watcher"

    bodies = {b"%d" % number for number in range(COUNT)}
    assert watch.begun == 0, "a send has begun and not ended"
    assert watch.stored == Counter(bodies)
    assert watch.done == listened
    assert set(listened) == bodies


async def test_hooks_of_the_page_do_in_a_broker_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = {one.language: one.text for one in fenced_blocks("docs/features/hooks.md")}
    names = tomllib.loads(blocks["toml"])["hooks"]
    (tmp_path / "shop_checks.py").write_text(blocks["py"])
    monkeypatch.setenv("PACELINE_BROKER_HOOKS", ",".join(names))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    with running_cluster(tmp_path / "data", "--brokers", "1", "--controllers", "1") as cluster:
        async with Producer(cluster.bootstrap) as producer:
            await producer.send(Message("small", b"small"))
            with pytest.raises(ForbiddenError, match="this cluster is for small messages"):
                await producer.send(Message("small", random.Random(1).randbytes(70_000)))
