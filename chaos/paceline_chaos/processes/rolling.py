"""A rolling restart, as an operator does it: one node after the other, each when all is well again.

"Well" is what `paceline cluster status` would have to show first: every node answers, every group
has an open master, and all its replicas are in the sync state set.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

from paceline.platform.runtime import pause
from paceline_chaos.faults.plan import Fault
from paceline_chaos.processes.cluster import Node
from paceline_chaos.processes.watch import Watch

WHOLE_TIMEOUT_MS = 20_000
SETTLE_MS = 300
"""Between two restarts, so that what is seen between them belongs to one of them."""
_POLL_MS = 20

Stop = Callable[[Fault], AbstractAsyncContextManager[None]]
"""Stops the target of a fault gracefully; it starts again at the end of the block."""


async def roll(fault: Fault, nodes: Sequence[Node], watch: Watch, stop: Stop) -> list[str]:
    """Restart the nodes; what did not become whole in time is named in the answer."""
    for node in nodes:
        one = Fault(at_ms=fault.at_ms, kind="stop", target=node.name, for_ms=fault.for_ms)
        async with stop(one):
            await pause(fault.for_ms)
        if not await _is_whole_again(watch, node):
            return [f"the rolling restart: not whole {WHOLE_TIMEOUT_MS} ms after {node.name}"]
        await pause(SETTLE_MS)
    return []


async def _is_whole_again(watch: Watch, node: Node) -> bool:
    """Called when the node has just started: what was seen of it before is no sign."""
    before = watch.answers[node.name]
    loop = asyncio.get_running_loop()
    deadline = loop.time() + WHOLE_TIMEOUT_MS / 1000
    while loop.time() < deadline:
        if watch.answers[node.name] > before + 1 and watch.is_whole():
            return True
        await pause(_POLL_MS)
    return False
