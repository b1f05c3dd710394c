"""The job "grpc": clients of RocketMQ's gRPC protocol, at gateways that die."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline_chaos.cluster_sim.doors.gateways import Gateways
from paceline_chaos.cluster_sim.doors.producing import DELAYS_MS, GrpcProducer
from paceline_chaos.cluster_sim.doors.receiving import GrpcConsumer
from paceline_chaos.cluster_sim.doors.transacting import GrpcTransactor
from paceline_chaos.cluster_sim.jobs.around import Around, Close


class _Member(Protocol):
    async def run(self) -> None: ...
    async def close(self) -> None: ...


_KINDS: Sequence[Callable[[Around, Gateways, str], _Member]] = (
    GrpcProducer,
    GrpcTransactor,
    GrpcConsumer,
    GrpcConsumer,
)


class GrpcClients:
    """A producer, one that transacts, and members of a group of simple consumers."""

    def __init__(self, around: Around) -> None:
        self._around = around.apart("grpc")

    async def run(self) -> None:
        """Until it is over, and what was delayed has been due."""
        around = self._around
        gateways = Gateways(around)
        name = f"{around.alias}/grpc"
        members = [
            kind(around.apart(f"grpc-{number}"), gateways, f"{name}-{number}")
            for number, kind in enumerate(_KINDS)
        ]
        ending = spawn(gateways.run(), name=f"{name}-gateways")
        closes: list[Close] = [partial(cancel_and_wait, ending)]
        closes += [each.close for each in members]
        async with around.session(*closes, gateways.close):
            async with asyncio.TaskGroup() as group:
                for each in members:
                    group.create_task(each.run(), name=name)
            await pause(max(DELAYS_MS))
