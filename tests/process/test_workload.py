"""The clients of simulated worlds run against real processes too, and find nothing wrong there."""

import asyncio
from collections import Counter
from pathlib import Path

from tests.process.harness import RunningCluster, running_cluster

from paceline.runtime import SeededRandom, SystemClock, pause
from paceline_chaos.history.model import Deliver, Entry, Lock, Operation, Outcome, Pull, Send
from paceline_chaos.history.recorder import Recorder
from paceline_chaos.world.jobs.around import Around
from paceline_chaos.world.workload import JOBS, TOPIC, create_topic, run_client

LOAD_MS = 3_000


async def history_of(cluster: RunningCluster) -> list[Entry]:
    clock = SystemClock()
    recorder = Recorder(lambda: clock.monotonic_ms() * 1000, {"bed": "processes"})
    end_ms: list[int] = []

    def around(name: str) -> Around:
        return Around(
            client=name,
            bootstrap=cluster.bootstrap,
            recorder=recorder,
            clock=clock,
            random=SeededRandom(name),
            topic=TOPIC,
            body_bytes_max=500,
            think_ms=30,
            is_over=lambda: bool(end_ms) and clock.monotonic_ms() > end_ms[0],
        )

    await create_topic(around("maker"), queues=2)
    end_ms.append(clock.monotonic_ms() + LOAD_MS)
    async with asyncio.TaskGroup() as group:
        for number, job in enumerate(JOBS):
            group.create_task(run_client([job], around(f"c{number}")))
        await pause(LOAD_MS)
    recorder.close()
    return recorder.history.entries


def test_every_job_works_on_real_processes_and_every_message_is_acknowledged(
    tmp_path: Path,
) -> None:
    with running_cluster(tmp_path, "--brokers", "3") as cluster:
        entries = asyncio.run(history_of(cluster))

    operations = [entry for entry in entries if isinstance(entry, Operation)]
    kinds = Counter(type(entry) for entry in operations)
    assert min(kinds[kind] for kind in (Send, Pull, Deliver, Lock)) > 0, kinds
    sends = [entry for entry in operations if isinstance(entry, Send)]
    assert {entry.outcome for entry in sends} == {Outcome.OK}
    known = {(entry.value, entry.crc) for entry in sends}
    shown = {
        (row.value, row.crc) for entry in operations if isinstance(entry, Pull)
        for row in entry.messages
    }  # fmt: skip
    assert shown
    assert shown <= known
