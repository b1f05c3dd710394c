"""Shell: graceful transfers: the leader orders the master to hand over, and waits for what comes.

The master stops intake, lets everything be confirmed and asks for its replacement (`StepDown`), so
that no send fails. A refusal of its own ends the transfer; one that says nothing within
WORD_MS_MAX is replaced without it. Every epoch that begins ends the waiting.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

from paceline.types import GroupName, MasterEpoch, ReplicaId
from paceline.wire.session import HandOverRefused, TransferOrder, encode
from paceline_controller.sessions.hub import Hub
from paceline_controller.state import Machine
from paceline_controller.state.model import Group
from paceline_controller.state.outcome import numbers

log = logging.getLogger("paceline.controller")

WORD_MS_MAX = 1000
"""A master drains within a few fsyncs; who ignores the order costs no more than this."""

Outcome = dict[str, Any]


class Transfers:
    """Orders under way on the leader, one for each group. Owned by the event loop."""

    def __init__(self, machine: Machine, hub: Hub) -> None:
        self._machine = machine
        self._hub = hub
        self._waiting: dict[GroupName, tuple[MasterEpoch, asyncio.Future[Outcome]]] = {}

    async def order(self, group: Group, *, preferred: ReplicaId | None) -> Outcome | None:
        """The definite outcome; None: the master said nothing, or cannot be told, or there is none
        any more, since it went while members were asked how they are."""
        if group.master is None:
            return None
        if group.group in self._waiting:
            return _refused(group, "TRANSFER_UNDER_WAY", "a transfer of this group is under way")
        session = self._hub.session_of(group.group, group.replicas[group.master].store_id)
        if session is None:
            return None
        done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting[group.group] = (group.master_epoch, done)
        session.send(encode(TransferOrder(master_epoch=group.master_epoch, preferred=preferred)))
        try:
            async with asyncio.timeout(WORD_MS_MAX / 1000):
                return await done
        except TimeoutError:
            log.warning("hand_over_ignored", extra={"group": group.group, "master": group.master})
            return None
        finally:
            del self._waiting[group.group]

    def refused(self, name: GroupName, message: HandOverRefused) -> None:
        """The master goes on."""
        waiting, group = self._waiting.get(name), self._machine.groups.get(name)
        if waiting is None or group is None or waiting[0] != message.master_epoch:
            return
        if not waiting[1].done():
            waiting[1].set_result(_refused(group, "HAND_OVER_REFUSED", message.reason))

    def look(self) -> None:
        """The machine has applied something."""
        for name, (epoch, done) in self._waiting.items():
            group = self._machine.groups.get(name)
            is_over = group is not None and group.master_epoch > epoch and group.master is not None
            if is_over and not done.done():
                assert group is not None
                done.set_result(moved(group))


@dataclass(frozen=True, slots=True)
class Basis:
    """What a transfer was decided on: it moves mastership away from there, or not at all (R38)."""

    leaving: ReplicaId
    master_epoch: MasterEpoch

    def outcome(self, group: Group, preferred: ReplicaId | None) -> Outcome | None:
        """Of an earlier try of the same transfer, or of why there can be none; None: begin."""
        if group.master_epoch == self.master_epoch and group.master in (self.leaving, None):
            return None
        is_later = group.master_epoch > self.master_epoch
        has_left = group.master not in (self.leaving, None)
        if is_later and has_left and preferred in (None, group.master):
            return moved(group)
        master = "nobody" if group.master is None else f"replica {group.master}"
        return _refused(
            group,
            "STALE_MASTER_EPOCH",
            f"{master} is the master in epoch {group.master_epoch}, not replica {self.leaving} in "
            f"epoch {self.master_epoch}: ask again if you still want to",
        )


def moved(group: Group) -> Outcome:
    """Another master is on record."""
    # Another reason may have won the race: the master died, or fell silent, before it answered.
    reasons = [entry.get("reason") for entry in group.history]
    is_graceful = reasons[-1:] == ["transfer"]
    return {"ok": True, "master": group.master, "is_graceful": is_graceful, **numbers(group)}


def _refused(group: Group, reason: str, detail: str) -> Outcome:
    refusal = {"ok": False, "reason": reason, "detail": detail, "is_graceful": False}
    return {**refusal, **numbers(group)}
