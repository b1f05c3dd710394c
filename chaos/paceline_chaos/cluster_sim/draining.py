"""When everything is level: all messages are read from all brokers, and where each group stands.

What comes of it is in the history; nothing is judged here.
"""

from collections.abc import Sequence

from paceline.errors import CorruptLogError, OffsetOutOfRangeError, PacelineError
from paceline.net.cluster import Cluster
from paceline.net.group_links import GroupLinks
from paceline_chaos.cluster_sim.jobs.altering import restore
from paceline_chaos.cluster_sim.jobs.around import Around
from paceline_chaos.cluster_sim.jobs.consuming import ask_committed
from paceline_chaos.cluster_sim.jobs.permitting import PERMIT_TOPIC, permit
from paceline_chaos.cluster_sim.jobs.querying import ask_for_all
from paceline_chaos.cluster_sim.jobs.reading import first_of, pull_http
from paceline_chaos.cluster_sim.nodes import BrokerNode
from paceline_chaos.cluster_sim.workload import TOPIC
from paceline_chaos.history.model import AlterTopic, Commit, History, Outcome, Pop, Queue, Send

_TRIES = 5


async def drain(
    around: Around, nodes: Sequence[BrokerNode], *, queues: int, history: History
) -> None:
    """Read every queue from every broker, from its first message to its last, and ask what each
    group has committed."""
    cluster = around.cluster()
    links = GroupLinks(cluster)
    cluster.start()
    try:
        if any(isinstance(entry, AlterTopic) for entry in history.entries):
            await restore(cluster, around, queues=queues)
        is_permitted = any(
            isinstance(entry, Send) and entry.topic == PERMIT_TOPIC for entry in history.entries
        )
        if is_permitted:
            await permit(cluster, around)
        for node in nodes:
            for number in range(queues):
                await _drain_queue(around, cluster, node, Queue(TOPIC, node.group, number))
            if is_permitted:
                await _drain_queue(around, cluster, node, Queue(PERMIT_TOPIC, node.group, 0))
        for group, queue in sorted(_committed_lanes(history)):
            for _ in range(_TRIES):
                if await ask_committed(around, links, group, queue) is not None:
                    break
        await ask_for_all(cluster, around, history)
    finally:
        await links.close()
        await cluster.close()


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
