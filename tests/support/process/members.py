"""A member of a consumer group in a process of its own, that can be killed; and steady messages."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from tests.support.process.harness import RunningCluster, end_with_parent

from paceline.message import Message
from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline.producer.producer import Producer

PROGRAM = """
import asyncio, sys
from paceline import PushConsumer, PushSettings

async def main():
    async def listen(message):
        print(message.queue_id, message.body.decode(), flush=True)

    bootstrap, topic, group, model, folder = sys.argv[1:]
    settings = PushSettings(
        start="first", message_model=model, offsets_folder=folder, persist_interval_ms=500
    )
    consumer = PushConsumer(
        bootstrap, group=group, topics=[topic], listener=listen, settings=settings
    )
    async with consumer:
        await asyncio.Event().wait()

asyncio.run(main())
"""


@contextlib.contextmanager
def member(
    cluster: RunningCluster,
    folder: Path,
    *,
    topic: str,
    group: str,
    is_broadcasting: bool = False,
) -> Iterator["MemberProcess"]:
    """The process; killed on exit if it still runs. `folder` is its machine."""
    path = folder / f"member-{group}.txt"
    model = "broadcasting" if is_broadcasting else "clustering"
    arguments = [",".join(cluster.bootstrap), topic, group, model, str(folder / "offsets")]
    with path.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=end_with_parent,
        )
    try:
        yield MemberProcess(process, path)
    finally:
        process.kill()
        process.wait()


class MemberProcess:
    """What it has printed, and its end."""

    def __init__(self, process: "subprocess.Popen[bytes]", path: Path) -> None:
        self._process = process
        self._path = path

    def seen(self) -> list[tuple[int, int]]:
        """(queue, number) of each message that its listener got."""
        lines = self._path.read_text().splitlines(keepends=True)
        whole = [line.split() for line in lines if line.endswith("\n")]
        return [(int(queue), int(number)) for queue, number in whole]

    def kill(self) -> None:
        """SIGKILL: nothing is said to anybody."""
        self._process.kill()
        self._process.wait()


class Stream:
    """Numbered messages, every few milliseconds, round robin over the queues."""

    def __init__(self) -> None:
        self.count = 0


@contextlib.asynccontextmanager
async def steady_messages(
    cluster: RunningCluster, topic: str, *, every_ms: float = 4
) -> AsyncIterator[Stream]:
    """Messages that hold their number, sent until the block ends; then all are acknowledged."""
    stream = Stream()
    is_over = asyncio.Event()

    async def send(producer: Producer) -> None:
        while not is_over.is_set():
            await producer.send(Message(topic, b"%d" % stream.count))
            stream.count += 1
            await pause(every_ms)

    async with Producer(cluster.bootstrap) as producer:
        task = spawn(send(producer), name="steady-messages")
        try:
            yield stream
            is_over.set()
            await task
        finally:
            await cancel_and_wait(task)
