"""How commands ask the cluster through the admin client; imports it when they do."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from paceline.cli.options import Connect, open_cluster, run_async

if TYPE_CHECKING:
    from paceline.admin.client import AdminClient

Result = TypeVar("Result")


def ask(connect: Connect, work: "Callable[[AdminClient], Awaitable[Result]]") -> Result:
    """What `work` gets from the cluster; its errors are shown in one place."""

    async def run() -> Result:
        from paceline.admin.client import AdminClient

        async with open_cluster(connect) as cluster, AdminClient(cluster) as admin:
            return await work(admin)

    return run_async(run())
