"""The clients of simulated worlds run against real processes too, and find nothing wrong there."""

import asyncio
import re
from collections import Counter
from pathlib import Path

import pytest
from tests.support.process.harness import RunningCluster, running_cluster

from paceline.errors import (
    BadRequestError,
    DeadlineError,
    ForbiddenError,
    NoPermissionError,
    NotAuthorizedError,
    OutcomeUnknownError,
    PeerError,
    QueueNotFoundError,
    TopicNotFoundError,
    UnauthenticatedError,
)
from paceline.platform.disk_real import RealDisk
from paceline.platform.runtime import SeededRandom, SystemClock, pause
from paceline_chaos.cluster_sim.dump import dump_log
from paceline_chaos.cluster_sim.jobs.around import Around
from paceline_chaos.cluster_sim.jobs.producing import ONEWAY, REQUEST
from paceline_chaos.cluster_sim.workload import JOBS, TOPIC, create_topic, run_client
from paceline_chaos.history.model import (
    BeginTransaction,
    Deliver,
    Entry,
    Lock,
    Operation,
    Outcome,
    Pull,
    Send,
)
from paceline_chaos.history.recorder import Recorder

LOAD_MS = 3_000
NO_OFFSET_YET = -1
"""Of a message that waits for its time."""


async def history_of(cluster: RunningCluster) -> tuple[int, list[Entry]]:
    """Topic id, and what every kind of client did for some seconds."""
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

    topic = await create_topic(around("maker"), queues=2)
    end_ms.append(clock.monotonic_ms() + LOAD_MS)
    async with asyncio.TaskGroup() as group:
        for number, job in enumerate(JOBS):
            group.create_task(run_client([job], around(f"c{number}")))
        await pause(LOAD_MS)
    recorder.close()
    return topic.topic_id, recorder.history.entries


@pytest.mark.alone  # no request may be answered too late
def test_every_job_works_on_real_processes_and_every_message_is_acknowledged(
    tmp_path: Path,
) -> None:
    with running_cluster(tmp_path, "--brokers", "3") as cluster:
        topic_id, entries = asyncio.run(history_of(cluster))
        folders = [str(cluster.data_dir / node["name"]) for node in cluster.brokers()]

    operations = [entry for entry in entries if isinstance(entry, Operation)]
    kinds = Counter(type(entry) for entry in operations)
    assert min(kinds[kind] for kind in (Send, Pull, Deliver, Lock)) > 0, kinds
    sends = [entry for entry in operations if isinstance(entry, Send)]
    # Of one-way messages and requests nobody says where they are; of all others somebody does.
    untold = [entry for entry in sends if entry.outcome is Outcome.UNKNOWN]
    # When rights change, the streams of those whom they concern end, and of everybody when they are
    # switched on: what is on its way at that moment may be refused when it is sent again, and then
    # nobody knows of the first time (R32).
    cut = [entry for entry in untold if entry.error == OutcomeUnknownError.code]
    # One producer waits no longer than 500 ms in all; the doors' clients lose answers on purpose.
    late = [entry for entry in untold if entry.error == DeadlineError.code]
    assert all(re.search("-(hasty|grpc|remoting)-", entry.value) for entry in late), late
    assert {entry.error for entry in untold if entry not in cut + late} == {ONEWAY, REQUEST}
    assert len(cut) + len(late) < len(sends) / 10
    assert {entry.outcome for entry in sends} >= {Outcome.OK, Outcome.UNKNOWN}
    # One client shrinks the topic while others name its queues, one takes their permission away,
    # one has a hook that refuses, one now and then wants a longer delay than brokers take, and some
    # are users whose rights come and go.
    failed = [entry for entry in sends if entry.outcome is Outcome.FAIL]
    # What the remoting clients say when no route names a broker that takes messages.
    pathless = [entry for entry in failed if entry.error == PeerError.code]
    assert all("-remoting-" in entry.value for entry in pathless), pathless
    assert {entry.error for entry in failed if entry not in pathless} <= {
        QueueNotFoundError.code,
        NoPermissionError.code,
        ForbiddenError.code,
        BadRequestError.code,
        TopicNotFoundError.code,
        NotAuthorizedError.code,
        UnauthenticatedError.code,
    }
    begun = [entry for entry in operations if isinstance(entry, BeginTransaction)]
    known = {(entry.value, entry.crc) for entry in sends}
    known |= {(entry.value, entry.crc) for entry in begun}
    shown = {
        (row.value, row.crc) for entry in operations if isinstance(entry, Pull)
        for row in entry.messages
    }  # fmt: skip
    assert shown
    assert shown <= known
    check_dumps(folders, topic_id, sends)


def check_dumps(folders: list[str], topic_id: int, sends: list[Send]) -> None:
    """Each broker's files, read by the harness's own code, hold what was acknowledged."""
    places = {
        (entry.queue, entry.offset or 0): (entry.value, entry.crc)
        for entry in sends
        if entry.offset != NO_OFFSET_YET
        and entry.queue is not None  # gateways name none
        and entry.outcome is Outcome.OK
        and entry.topic == TOPIC
    }
    for folder in folders:
        dump = dump_log(RealDisk(), folder, group="g1", topics={topic_id: TOPIC})
        stored = {
            (batch.queue, batch.base_offset + index): message
            for batch in dump.batches
            for index, message in enumerate(batch.messages)
        }
        assert dump.damage is None
        assert dump.confirm == dump.end
        assert {place: stored.get(place) for place in places} == places
