"""When everything is level: all messages are read from all brokers, and where each group stands.

What comes of it is in the history; nothing is judged here.
"""

from collections.abc import Sequence
from dataclasses import replace

from paceline.errors import CorruptLogError, OffsetOutOfRangeError, PacelineError
from paceline.net.cluster import Cluster
from paceline.net.group_links import GroupLinks
from paceline_chaos.cluster_sim.doors.fifo import FIFO_TOPICS
from paceline_chaos.cluster_sim.jobs.altering import restore
from paceline_chaos.cluster_sim.jobs.around import Around
from paceline_chaos.cluster_sim.jobs.consuming import ask_committed
from paceline_chaos.cluster_sim.jobs.permitting import PERMIT_TOPIC, permit
from paceline_chaos.cluster_sim.jobs.querying import ask_for_all
from paceline_chaos.cluster_sim.jobs.reading import first_of, pull_http
from paceline_chaos.cluster_sim.nodes import BrokerNode
from paceline_chaos.cluster_sim.rights.securing import ROOT_KEY, TENANT_TOPICS, credentials_of
from paceline_chaos.cluster_sim.workload import TOPIC
from paceline_chaos.history.model import AlterTopic, Commit, History, Outcome, Pop, Queue, Send
from paceline_chaos.history.recorder import RecorderOf
from paceline_chaos.history.secured import SecurityApplied

_TRIES = 5


async def drain(
    around: Around, nodes: Sequence[BrokerNode], *, queues: int, history: History
) -> None:
    """Read every queue from every broker, from its first message to its last, and ask what each
    group has committed."""
    if any(isinstance(entry, SecurityApplied) for entry in history.entries):
        around = _as_super_user(around)
    cluster = around.cluster()
    links = GroupLinks(cluster)
    cluster.start()
    try:
        if any(isinstance(entry, AlterTopic) for entry in history.entries):
            await restore(cluster, around, queues=queues)
        sent_to = {entry.topic for entry in history.entries if isinstance(entry, Send)}
        others = sorted(sent_to & {PERMIT_TOPIC, *TENANT_TOPICS, *FIFO_TOPICS})
        if PERMIT_TOPIC in others:
            await permit(cluster, around)
        for node in nodes:
            for number in range(queues):
                await _drain_queue(around, cluster, node, Queue(TOPIC, node.group, number))
            for topic in others:
                await _drain_queue(around, cluster, node, Queue(topic, node.group, 0))
        for group, queue in sorted(_committed_lanes(history)):
            for _ in range(_TRIES):
                if await ask_committed(around, links, group, queue) is not None:
                    break
        await ask_for_all(cluster, around, history)
    finally:
        await links.close()
        await cluster.close()


def _as_super_user(around: Around) -> Around:
    """Whoever reads everything in the end; nobody else may read what tenants have."""
    return replace(
        around,
        credentials=credentials_of(ROOT_KEY),
        recorder=RecorderOf(around.recorder, access_key=ROOT_KEY),
    )


def _committed_lanes(history: History) -> set[tuple[str, Queue]]:
    """Of receipts a group's offset is what its acknowledgements make of it."""
    return {
        (entry.consumer_group, entry.queue)
        for entry in history.entries
        if isinstance(entry, Commit | Pop) and entry.outcome is Outcome.OK
    }


async def _drain_queue(around: Around, cluster: Cluster, node: BrokerNode, queue: Queue) -> None:
    offset = 0
    while True:
        rows = await pull_http(cluster, around, node.address, queue, offset, f"drain/{node.name}")
        if isinstance(rows, CorruptLogError) and node.is_damaged:
            return  # found and told: nothing wrong is served, and repair is another matter
        if isinstance(rows, OffsetOutOfRangeError):
            offset = first_of(rows, offset)
        elif isinstance(rows, PacelineError):
            await around.think()
        elif not rows:
            return
        else:
            offset = rows[-1].offset + 1
