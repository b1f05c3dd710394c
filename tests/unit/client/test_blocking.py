"""The blocking twins of all clients, each on a loop of its own, used from another thread."""

import asyncio
import logging
import os
import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.client.fake_cluster import FakeCluster

from paceline import (
    BlockingLitePullConsumer,
    BlockingOrderedConsumer,
    BlockingProducer,
    BlockingPushConsumer,
    LitePullSettings,
    Message,
    OrderedSettings,
    Producer,
    PushSettings,
    ReceivedMessage,
    ShuttingDownError,
)
from paceline.blocking.twin import LoopThread

FIRST = PushSettings(start="first")


async def in_a_thread(script: Callable[[str], Any]) -> Any:
    """What `script` returns, with a cluster of three messages of `orders`."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        async with Producer(cluster.controller) as producer:
            await producer.send_many([Message("orders", b"%d" % number) for number in range(3)])
        return await asyncio.to_thread(script, cluster.controller)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (BlockingPushConsumer, FIRST),
        (BlockingOrderedConsumer, OrderedSettings(start="first")),
    ],
)
async def test_listeners_are_plain_functions_that_may_block(kind: Any, settings: Any) -> None:
    def script(bootstrap: str) -> set[tuple[bytes, bool]]:
        got: queue.Queue[tuple[bytes, bool]] = queue.Queue()

        def listener(message: ReceivedMessage) -> None:
            name = threading.current_thread().name
            got.put((message.body, name.startswith("paceline-")))

        with kind(bootstrap, group="g", topics=["orders"], listener=listener, settings=settings):
            return {got.get(timeout=20) for _ in range(3)}

    assert await in_a_thread(script) == {(b"0", True), (b"1", True), (b"2", True)}


async def test_what_a_listener_raises_is_logged_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nobody has set up logging: WARNING is what Python shows."""
    caplog.set_level(logging.WARNING, logger="paceline")

    def script(bootstrap: str) -> None:
        failed = threading.Event()

        def listener(message: ReceivedMessage) -> None:
            failed.set()
            raise ValueError("a mistake")

        with BlockingPushConsumer(
            bootstrap, group="g", topics=["orders"], listener=listener, settings=FIRST
        ):
            assert failed.wait(20)

    await in_a_thread(script)

    found = [record for record in caplog.records if "message_failed" in record.getMessage()]
    assert found
    assert "topic orders queue g1/0 offset" in found[0].getMessage()
    assert found[0].levelno == logging.WARNING
    assert "a mistake" in caplog.text
    assert "in listener" in caplog.text, "the traceback leads into the application"


async def test_a_lite_pull_consumer_polls_and_commits() -> None:
    def script(bootstrap: str) -> list[bytes]:
        settings = LitePullSettings(start="first", auto_commit=False)
        with BlockingLitePullConsumer(
            bootstrap, group="g", topics=["orders"], settings=settings
        ) as consumer:
            found: list[bytes] = []
            while len(found) < 3:
                found += [message.body for message in consumer.poll(max_messages=2)]
            consumer.commit()
            return found

    assert await in_a_thread(script) == [b"0", b"1", b"2"]


def in_a_fork(act: Callable[[], object]) -> str:
    """The error that `act` raises in a forked child."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            act()
        except BaseException as error:
            os.write(writer, repr(error).encode())
        os._exit(0)
    os.waitpid(child, 0)
    return os.read(reader, 10_000).decode()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # this process has threads
async def test_a_client_in_a_forked_child_says_that_it_is_the_parents() -> None:
    def script(bootstrap: str) -> str:
        with BlockingProducer(bootstrap) as producer:
            return in_a_fork(lambda: str(producer.send(Message("orders", b"x"))))

    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        async with Producer(cluster.controller) as producer:
            said = in_a_fork(lambda: str(producer.send(Message("orders", b"x"))))
        blocking = await asyncio.to_thread(script, cluster.controller)

    assert ShuttingDownError.__name__ in said
    assert "made before its process forked" in said
    assert "made before its process forked" in blocking


async def test_work_is_handed_to_a_loop_without_waiting_for_it() -> None:
    def script(bootstrap: str) -> bool:
        thread, done = LoopThread("soon"), threading.Event()
        thread.soon(done.set)
        is_done = done.wait(20)
        thread.stop()
        with pytest.raises(ShuttingDownError):
            thread.soon(done.set)
        return is_done

    assert await in_a_thread(script)
