"""Requests and replies while masters are killed: each request gets its own reply, once asked."""

import asyncio
import signal
from itertools import count
from pathlib import Path

import pytest
from tests.support.process.harness import running_cluster, the_master
from tests.support.process.load import all_in_sync, create_topic

from paceline.consumer.push import PushConsumer, PushSettings
from paceline.message import Message, ReceivedMessage
from paceline.producer.producer import Producer

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

WORKERS = 8
REQUESTS = 60
"""Of each worker at least; it goes on until the last master was killed and is back."""
TIMEOUT_MS = 20_000
"""Far above a failover: a request that fails has lost its reply, or was never answered."""


async def test_every_request_is_answered_while_masters_are_killed(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "data", restart=True) as cluster:
        await create_topic(cluster, "sums")
        done = 0
        is_over = False

        async def ask(producer: Producer, worker: int) -> None:
            nonlocal done
            for number in count():
                if is_over and number >= REQUESTS:
                    return
                body = b"%d:%d" % (worker, number)
                reply = await producer.request(Message("sums", body), timeout_ms=TIMEOUT_MS)
                assert reply.body == b"reply to " + body
                done += 1

        async def kill_masters() -> None:
            nonlocal is_over
            for _ in range(2):
                cluster.send_signal(await the_master(cluster), signal.SIGKILL)
                await the_master(cluster)  # another one: who is dead says nothing
                await all_in_sync(cluster)
            is_over = True

        async with Producer(cluster.bootstrap) as asking, Producer(cluster.bootstrap) as answering:

            async def answer(request: ReceivedMessage) -> None:
                await answering.reply(request, b"reply to " + request.body)

            async with (
                PushConsumer(
                    cluster.bootstrap,
                    group="adders",
                    topics=["sums"],
                    listener=answer,
                    settings=PushSettings(start="first"),
                ),
                asyncio.TaskGroup() as group,
            ):
                group.create_task(kill_masters())
                for worker in range(WORKERS):
                    group.create_task(ask(asking, worker))

    assert done >= WORKERS * REQUESTS
