"""Tenants who come through gateways, by gRPC and by remoting: they sign, and show no secret.

They send, transact and receive by receipt with a key for a while, from one of several addresses,
while their rights change and their keys are revoked. What comes of it is judged by what nodes knew
(S31): a gateway that has not heard yet lets nobody do more than they do.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline_chaos.cluster_sim.doors.gateways import Gateways
from paceline_chaos.cluster_sim.doors.grpc.gateway import GrpcGateway
from paceline_chaos.cluster_sim.doors.grpc.producing import GrpcProducer
from paceline_chaos.cluster_sim.doors.grpc.receiving import GrpcConsumer
from paceline_chaos.cluster_sim.doors.members import Member
from paceline_chaos.cluster_sim.doors.remoting.gateway import RemotingGateway
from paceline_chaos.cluster_sim.doors.remoting.popping import RemotingPopper
from paceline_chaos.cluster_sim.doors.remoting.producing import RemotingProducer
from paceline_chaos.cluster_sim.doors.remoting.transacting import RemotingTransactor
from paceline_chaos.cluster_sim.jobs.around import Around
from paceline_chaos.cluster_sim.rights.securing import ADDRESSES, TENANTS, group_of
from paceline_chaos.cluster_sim.rights.tenants import somebody
from paceline_chaos.history.recorder import RecorderOf

_OWN_SHARE = 0.85
_SPAN_MS_MAX = 4_000
"""So long somebody works with one key: gateways die about as often."""
_LOOK_MS = 100.0
_Make: TypeAlias = Callable[[Around, str, str], Member]
"""Of surroundings, user and name."""


class DoorTenant:
    """See the module."""

    def __init__(self, around: Around) -> None:
        self._around = around.apart("tenant-doors")

    async def run(self) -> None:
        """All of it side by side, until it is over."""
        around = self._around
        grpc = Gateways(around.apart("grpc"), GrpcGateway)
        remoting = Gateways(around.apart("remoting"), RemotingGateway)
        ending = [spawn(each.run(), name="tenant-gateways") for each in (grpc, remoting)]
        closes = (partial(cancel_and_wait, *ending), grpc.close, remoting.close)
        async with around.session(*closes), asyncio.TaskGroup() as group:
            for name, make in _programs(grpc, remoting).items():
                group.create_task(self._do(name, make), name=f"{around.client}-{name}")

    async def _do(self, name: str, make: _Make) -> None:
        around, turn = self._around.apart(f"tenant-{name}"), 0
        while not around.is_over() and len(around.keys) < len(TENANTS):
            await pause(_LOOK_MS)  # nobody has a key yet
        while not around.is_over():
            turn += 1
            mine, user = somebody(around, span_ms_max=_SPAN_MS_MAX, own_share=_OWN_SHARE)
            address = around.choice(ADDRESSES)
            mine = replace(
                mine, address=address, recorder=RecorderOf(mine.recorder, source=address)
            )
            program = make(mine, user, f"{around.alias}/{name}-{turn}")
            try:
                await program.run()
            finally:
                await program.close()
            await around.think()


def _programs(grpc: Gateways[GrpcGateway], remoting: Gateways[RemotingGateway]) -> dict[str, _Make]:
    def at(gateways: Any, kind: Callable[..., Member], group: str = "") -> _Make:
        def make(around: Around, user: str, name: str) -> Member:
            more = {"group": group_of(user, group)} if group else {}
            return kind(around, gateways, name, **more)

        return make

    return {
        "grpc-sends": at(grpc, GrpcProducer),
        "grpc-receives": at(grpc, GrpcConsumer, "poppers"),
        "remoting-sends": at(remoting, RemotingProducer),
        "remoting-transacts": at(remoting, RemotingTransactor, "payers"),
        "remoting-receives": at(remoting, RemotingPopper, "poppers"),
    }
