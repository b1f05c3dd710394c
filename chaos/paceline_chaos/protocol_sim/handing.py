"""Graceful transfers in the bed (R20): the product's own hand-over, with the leader's word late.

An operator's order reaches a master, which drains and asks to be replaced. What it asks waits until
the leader hears it, what the leader says until the master hears that: a master that has asked takes
nothing before.
"""

import asyncio
from typing import cast

from paceline.types import ReplicaId
from paceline.wire.session import TransferOrder
from paceline_broker.role.controller_requests import ControllerRequests
from paceline_broker.role.handover import MasterHandover
from paceline_broker.role.mastership import Mastership
from paceline_chaos.protocol_sim.process import Process, StepDown


class _Requests:
    """What of `ControllerRequests` a hand-over needs."""

    def __init__(self, node: Process) -> None:
        self._node = node

    async def step_down(
        self, mastership: Mastership, *, preferred: ReplicaId | None = None
    ) -> str | None:
        node = self._node
        answer: asyncio.Future[str | None] = node.world.loop.create_future()
        request = StepDown(node, node.generation, mastership.epoch, preferred, answer)
        node.world.step_downs.append(request)
        return await answer


class Handing:
    """The hand-overs of one process; implements `LeadingRole`."""

    def __init__(self, node: Process) -> None:
        self._node = node
        self._hand_overs = MasterHandover(self)
        self._requests = cast(ControllerRequests, _Requests(node))

    @property
    def mastership(self) -> Mastership | None:
        return self._node.mastership

    @property
    def requests(self) -> ControllerRequests:
        return self._requests

    def order(self, preferred: ReplicaId | None) -> None:
        """An operator's order has come."""
        mastership = self._node.mastership
        if mastership is not None:
            order = TransferOrder(master_epoch=mastership.epoch, preferred=preferred)
            self._hand_overs.ordered(order, self._refused)

    def _refused(self, text: str) -> None:
        self._node.world.coverage.saw("transfers_refused")
        self._node.world.note(f"{self._node.name} goes on: {text}")
