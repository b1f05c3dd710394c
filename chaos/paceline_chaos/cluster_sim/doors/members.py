"""Programs of one protocol side by side, at gateways that die."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeAlias

from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline_chaos.cluster_sim.doors.gateways import Gateways, GatewayT
from paceline_chaos.cluster_sim.jobs.around import Around, Close

DELAYS_MS = (300, 1_000, 2_500)
"""Of messages that programs delay."""


class Member(Protocol):
    """One program."""

    async def run(self) -> None: ...
    async def close(self) -> None: ...


Kind: TypeAlias = Callable[[Around, Gateways[GatewayT], str], Member]
"""Makes one: its surroundings, gateways and name."""


async def run_members(
    around: Around,
    label: str,
    gateway: Callable[[Around, int], GatewayT],
    kinds: Sequence[Kind[GatewayT]],
) -> None:
    """Until it is over, and what was delayed has been due. `label`: of the protocol."""
    gateways = Gateways(around, gateway)
    name = f"{around.alias}/{label}"
    members = [
        kind(around.apart(f"{label}-{number}"), gateways, f"{name}-{number}")
        for number, kind in enumerate(kinds)
    ]
    ending = spawn(gateways.run(), name=f"{name}-gateways")
    closes: list[Close] = [partial(cancel_and_wait, ending)]
    closes += [each.close for each in members]
    async with around.session(*closes, gateways.close):
        async with asyncio.TaskGroup() as group:
            for each in members:
                group.create_task(each.run(), name=name)
        await pause(max(DELAYS_MS))
