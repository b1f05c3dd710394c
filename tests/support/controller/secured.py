"""Controllers with users, which enforce rights."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.controller.harness import Controllers, controllers
from tests.support.rights import a_security

from paceline.wire.users import PolicyEntry


@asynccontextmanager
async def secured(
    count: int = 1, *, ana: tuple[PolicyEntry, ...] = ()
) -> AsyncIterator[Controllers]:
    async with controllers(count) as cluster:
        secure(cluster, ana=ana)
        yield cluster


def secure(cluster: Controllers, *, ana: tuple[PolicyEntry, ...] = ()) -> None:
    """Give it users, and enforce rights."""
    for node in cluster.nodes.values():
        node.machine._state.security = a_security(ana=ana)
        node.access.apply(node.machine.security)
