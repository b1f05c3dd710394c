"""The job "remoting": clients of RocketMQ's remoting protocol, at gateways that die."""

import asyncio

from paceline.net.group_links import GroupLinks
from paceline.platform.runtime import pause
from paceline.wire.names import retry_topic
from paceline_chaos.cluster_sim.doors.members import run_members
from paceline_chaos.cluster_sim.doors.remoting import consuming, ordered
from paceline_chaos.cluster_sim.doors.remoting.consuming import RemotingConsumer
from paceline_chaos.cluster_sim.doors.remoting.gateway import RemotingGateway
from paceline_chaos.cluster_sim.doors.remoting.ordered import RemotingOrdered
from paceline_chaos.cluster_sim.doors.remoting.popping import RemotingPopper
from paceline_chaos.cluster_sim.doors.remoting.producing import RemotingProducer
from paceline_chaos.cluster_sim.doors.remoting.transacting import RemotingTransactor
from paceline_chaos.cluster_sim.jobs.around import Around
from paceline_chaos.cluster_sim.jobs.consuming import look_at_offsets

_KINDS = (
    RemotingProducer,
    RemotingTransactor,
    RemotingConsumer,
    RemotingConsumer,
    RemotingOrdered,
    RemotingOrdered,
    RemotingPopper,
)
_LOOK_MS = 500.0
_LOOKED_AT = (
    (consuming.GROUP, True),
    (ordered.GROUP, False),
)
"""Groups, and whether they have a topic of retries."""


class RemotingClients:
    """A producer, one that transacts, and members of three groups: concurrent, in order, by
    receipt; and somebody who asks brokers where these groups stand."""

    def __init__(self, around: Around) -> None:
        self._around = around.apart("remoting")

    async def run(self) -> None:
        """Until it is over."""
        around = self._around
        async with asyncio.TaskGroup() as group:
            group.create_task(run_members(around, "remoting", RemotingGateway, _KINDS))
            group.create_task(self._look())

    async def _look(self) -> None:
        """What clients have committed is judged by what brokers say: gateways answer a commit also
        where it was passed over."""
        around = self._around.apart("looks")
        cluster = around.cluster()
        links = GroupLinks(cluster)
        async with around.session(links.close, cluster.close):
            cluster.start()
            while not around.is_over():
                await pause(_LOOK_MS)
                group, has_retries = around.choice(_LOOKED_AT)
                topics = (around.topic, *((retry_topic(group),) if has_retries else ()))
                await look_at_offsets(around, cluster, links, group, *topics, share=1.0)
