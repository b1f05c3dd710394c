"""A steady load: clients that send at fixed moments, whether or not they were answered.

Each client is a producer of its own with connections of its own. Open loop: a client that waits for
an outage sends on, so that the first acknowledgement after it does not depend on how long it was.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from paceline.errors import PacelineError
from paceline.message import Message
from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline.producer.producer import Producer
from paceline.producer.results import Sending
from paceline_chaos.cluster_sim.bodies import crc_of, make_body
from paceline_chaos.history.model import Queue, Send
from paceline_chaos.history.recorder import Asking, Recorder

TICK_MS = 5
STALL_MS = 50
BODY_BYTES = 200


class SteadyClients:
    """`count` clients with `rate` messages a second in all; `start`, `stop`."""

    def __init__(
        self, recorder: Recorder, bootstrap: str, topic: str, *, count: int, rate: float
    ) -> None:
        self._recorder = recorder
        self._bootstrap = bootstrap
        self._topic = topic
        self._names = [f"client-{number}" for number in range(1, count + 1)]
        self._interval_s = count / rate
        self._producers: list[Producer] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._waiting: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Connect and begin, evenly spread over the first interval."""
        for number, name in enumerate(self._names):
            producer = Producer(self._bootstrap)
            await producer.start()
            self._producers.append(producer)
            delay_s = self._interval_s * number / len(self._names)
            self._tasks.append(spawn(self._send_all(producer, name, delay_s), name=name))

    async def stop(self) -> None:
        """Send nothing new, wait for all outcomes."""
        await cancel_and_wait(*self._tasks)
        if self._waiting:
            await asyncio.wait(self._waiting)
        for producer in self._producers:
            await producer.close()

    async def _send_all(self, producer: Producer, name: str, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + delay_s
        number = 0
        while True:
            await pause(max(0.0, due - loop.time()) * 1000)
            due += self._interval_s
            number += 1
            self._send(producer, name, f"{name}-{number}")

    def _send(self, producer: Producer, name: str, value: str) -> None:
        body = make_body(value, BODY_BYTES)
        asking = self._recorder.asking(
            Send,
            client=name,
            topic=self._topic,
            key=name,
            value=value,
            crc=crc_of(body),
            session=name,
        )
        try:
            sending = producer.send(Message(self._topic, body, key=name))
        except PacelineError as error:
            asking.raised(error)
            return
        task = spawn(_settle(asking, sending), name=value)
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)


async def _settle(asking: Asking[Send], sending: Sending) -> None:
    try:
        result = await sending
    except PacelineError as error:
        asking.raised(error)
        return
    asking.ok(
        queue=Queue(str(result.topic), str(result.group), int(result.queue_id)),
        offset=int(result.queue_offset),
        epoch=int(result.epoch),
        is_duplicate=result.is_duplicate,
        is_confirmed=result.is_confirmed,
    )


class StallWatch:
    """Notices when the harness itself does not run."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.stalls: list[tuple[int, int]] = []
        """(when, how long), us."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Watch inside the block."""
        task = spawn(self._watch(), name="stall-watch")
        try:
            yield
        finally:
            task.cancel()

    async def _watch(self) -> None:
        seen_us = self._recorder.now_us()
        while True:
            await pause(TICK_MS)
            now_us = self._recorder.now_us()
            if now_us - seen_us > (STALL_MS + TICK_MS) * 1000:
                self.stalls.append((seen_us, now_us - seen_us))
            seen_us = now_us
