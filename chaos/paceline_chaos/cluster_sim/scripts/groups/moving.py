"""Logical queues leave a broker group while a sender cannot reach it: what it has under way there
is unknown, and nothing that came later may be stored at the new place before that is known (R32).
"""

from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from paceline.admin.client import AdminClient
from paceline.errors import PacelineError
from paceline_chaos.cluster_sim.jobs.around import CALL_TIMEOUT_MS, Around
from paceline_chaos.cluster_sim.jobs.remapping import LOGICAL_QUEUES, STATIC_TOPIC
from paceline_chaos.cluster_sim.run import Result
from paceline_chaos.cluster_sim.script import GROUP, Director, Steps
from paceline_chaos.history.model import LogicalQueueDump

SENDER = "client-2"
OTHER = "g2"
ROUNDS = 3
CUT_MS = 2_500
"""Within a request's time: the batch is under way all the while, and arrives behind the seal."""
_SEGMENTS_MIN = 2 * ROUNDS


def moving(d: Director) -> Steps:
    """There, while the sender is cut off, and back; several times."""
    yield d.is_whole
    yield lambda: d.topic(STATIC_TOPIC) is not None
    yield d.pass_ms(1_500)
    for _ in range(ROUNDS):
        for node in d.stage.group(GROUP):
            d.begin("cut", SENDER, other=node.name, for_ms=CUT_MS)
        yield d.pass_ms(200)
        d.stage.begin_tool(_all_to(OTHER))
        yield d.pass_ms(CUT_MS + 1_500)
        d.stage.begin_tool(_all_to(GROUP))
        yield d.pass_ms(2_000)
    d.saw("moves")


def moved(result: Result) -> list[str]:
    """That order was kept is S37."""
    segments = [
        len(entry.queues) for entry in result.history.entries if isinstance(entry, LogicalQueueDump)
    ]
    if sum(segments) < _SEGMENTS_MIN + LOGICAL_QUEUES:
        return [f"the logical queues have {segments} segments: they have hardly moved"]
    return []


def _all_to(group: str) -> Callable[[Around], Coroutine[Any, Any, None]]:
    async def remap_all(admin: AdminClient) -> None:
        for number in range(LOGICAL_QUEUES):
            with suppress(PacelineError):  # it is on its way already
                await admin.topics.remap_queue(STATIC_TOPIC, number, group)

    return lambda around: around.as_admin(remap_all, timeout_ms=CALL_TIMEOUT_MS)
