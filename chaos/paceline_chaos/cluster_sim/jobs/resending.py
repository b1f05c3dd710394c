"""Operators of dead letters: they give them to their group again (S29).

A letter may be asked for by both at once, and again long after: it comes once.
"""

import asyncio

from paceline.admin.client import AdminClient
from paceline.admin.dead_letters import TO_GROUP, DeadLetter, name_of
from paceline.errors import PacelineError
from paceline.platform.runtime import pause
from paceline.wire.names import dlq_topic
from paceline_chaos.cluster_sim.jobs.around import CALL_TIMEOUT_MS, Around
from paceline_chaos.cluster_sim.jobs.consuming import PUSH_GROUP
from paceline_chaos.history.model import Queue, Resend

_PAUSE_MS_MIN, _PAUSE_MS_MAX = 500, 2_500
_WORKERS = 2
_LIMIT = 200
_AT_ONCE_MAX = 2
"""Each that dies again is one more to resend."""


class Resender:
    """Two at once, who do not know of each other."""

    def __init__(self, around: Around) -> None:
        self._around = around.apart("resend")

    async def run(self) -> None:
        """Until it is over."""
        await self._around.as_admin(self._resend_all, timeout_ms=CALL_TIMEOUT_MS)

    async def _resend_all(self, admin: AdminClient) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(_WORKERS):
                group.create_task(self._work(admin), name=f"resend-{number}")

    async def _work(self, admin: AdminClient) -> None:
        around = self._around
        while not around.is_over():
            await pause(around.random.uniform(_PAUSE_MS_MIN, _PAUSE_MS_MAX))
            try:
                found = await admin.dead_letters.all(PUSH_GROUP, limit=_LIMIT)
            except PacelineError:
                continue  # there is no such group yet, or nobody answers
            for _ in around.turns(min(_AT_ONCE_MAX, len(found))):
                await self._resend(admin, name_of(around.choice(found)))

    async def _resend(self, admin: AdminClient, letter: DeadLetter) -> None:
        around = self._around
        with around.recorder.asking(
            Resend,
            client=around.client,
            consumer_group=PUSH_GROUP,
            queue=Queue(dlq_topic(PUSH_GROUP), letter.group, letter.queue_id),
            offset=letter.offset,
        ) as asking:
            try:
                [resent] = await admin.dead_letters.resend(PUSH_GROUP, [letter], to=TO_GROUP)
            except PacelineError as error:
                asking.raised(error)
                return
            if resent.code is None:
                asking.ok()
            else:
                asking.fail(resent.code)
