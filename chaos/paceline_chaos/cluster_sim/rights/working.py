"""What users do over some time: transactions, receipts, locks, and the library's consumers.

The same jobs as of everybody else (`jobs`), with consumer groups and groups of producers of the
user's own, and with an access key for a while (`tenants.somebody`). Rights go in the middle of
them: a half is stored and its end is refused, a message is received and cannot be acknowledged, a
lock is held and cannot be renewed. What is left behind so must not hold up who may go on (L13).
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from paceline_chaos.cluster_sim.jobs.around import Around
from paceline_chaos.cluster_sim.jobs.consuming import OrderedConsumer, Pusher
from paceline_chaos.cluster_sim.jobs.inorder import InOrder
from paceline_chaos.cluster_sim.jobs.popping import OwnPopper
from paceline_chaos.cluster_sim.jobs.transacting import Transactor
from paceline_chaos.cluster_sim.rights.securing import group_of
from paceline_chaos.cluster_sim.rights.tenants import SETTINGS, WORK_MS_MAX, somebody

_OWN_SHARE = 0.95
_DECIDE_MS_MAX = 800.0
"""Of a transaction: time enough that its user loses his rights in the middle."""
Work = Callable[[Around, str, str], Awaitable[None]]


def _transact(around: Around, user: str, label: str) -> Awaitable[None]:
    group = group_of(user, "payers")
    return Transactor(
        around, group=group, label=label, decide_ms_max=_DECIDE_MS_MAX, settings=SETTINGS
    ).run()


def _receive(around: Around, user: str, label: str) -> Awaitable[None]:
    return OwnPopper(around, group=group_of(user, "poppers"), label=label).run()


def _lock(around: Around, user: str, label: str) -> Awaitable[None]:
    return OrderedConsumer(around, group=group_of(user, "lockers"), label=label).run()


def _push(around: Around, user: str, label: str) -> Awaitable[None]:
    return Pusher(around, group=group_of(user, "pushed"), label=label).run()


def _in_order(around: Around, user: str, label: str) -> Awaitable[None]:
    return InOrder(around, group=group_of(user, "inorder"), label=label).run()


_WORKS: Mapping[str, Work] = {
    "transact": _transact,
    "receive": _receive,
    "receive-too": _receive,
    "lock": _lock,
    "lock-too": _lock,
    "push": _push,
    "inorder": _in_order,
}


class WorkingTenant:
    """See the module."""

    def __init__(self, around: Around) -> None:
        self._around = around.apart("tenant-work")

    async def run(self) -> None:
        """All of it side by side, until it is over."""
        async with asyncio.TaskGroup() as group:
            for name, work in _WORKS.items():
                group.create_task(self._do(name, work), name=f"{self._around.client}-{name}")

    async def _do(self, name: str, work: Work) -> None:
        around, turn = self._around.apart(f"tenant-{name}"), 0
        while not around.is_over():
            turn += 1
            mine, user = somebody(around, span_ms_max=WORK_MS_MAX, own_share=_OWN_SHARE)
            await work(mine, user, f"{name}-{turn}-")
            await around.think()
