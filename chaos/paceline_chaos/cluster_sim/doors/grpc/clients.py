"""The job "grpc": clients of RocketMQ's gRPC protocol, at gateways that die."""

from dataclasses import replace

from paceline_chaos.cluster_sim.doors.fifo import FIFO_TOPICS, make_fifo
from paceline_chaos.cluster_sim.doors.gateways import Gateways
from paceline_chaos.cluster_sim.doors.grpc.gateway import GrpcGateway
from paceline_chaos.cluster_sim.doors.grpc.producing import GrpcProducer
from paceline_chaos.cluster_sim.doors.grpc.receiving import FifoMembers, GrpcConsumer
from paceline_chaos.cluster_sim.doors.grpc.transacting import GrpcTransactor
from paceline_chaos.cluster_sim.doors.members import Kind, run_members
from paceline_chaos.cluster_sim.jobs.around import Around


def _to(topic: str) -> Kind[GrpcGateway]:
    """A producer to a topic of its own."""

    def make(around: Around, gateways: Gateways[GrpcGateway], name: str) -> GrpcProducer:
        return GrpcProducer(replace(around, topic=topic), gateways, name)

    return make


_KINDS = (GrpcProducer, GrpcTransactor, GrpcConsumer, GrpcConsumer)
_IN_ORDER = (*map(_to, FIFO_TOPICS), FifoMembers, FifoMembers)


class GrpcClients:
    """A producer, one that transacts, and members of a group of simple consumers; and producers to
    topics whose consumers receive in order, and come and go."""

    def __init__(self, around: Around) -> None:
        self._around = around.apart("grpc")

    async def run(self) -> None:
        """Until it is over."""
        await make_fifo(self._around)
        await run_members(self._around, "grpc", GrpcGateway, (*_KINDS, *_IN_ORDER))
