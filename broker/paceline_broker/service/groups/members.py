"""Group coordination: who consumes in a group, as soft state of one master (DESIGN 6, blueprint).

The master of one broker group coordinates a consumer group: entry crc32c(name) mod n of the broker
groups in order of name. Members send heartbeats with what they want and what they own; everybody
computes the same allocation from the same list, and starts a new queue only once no other live
member still names it as owned. Nothing here is logged: a new master learns it again from the
heartbeats, and answers nobody before it has listened for one interval.

A member leaves when it says so, when it has been silent for `member_expiry_ms`, or when the stream
that its last heartbeat came over has closed and it has not come back within `member_lost_ms`: so a
killed one is replaced at once, and one whose connection was cut keeps its queues.

`MemberTable` is pure (time comes in); `Coordinator` waits, expires and answers.
"""

import asyncio
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from crc32c import crc32c

from paceline.errors import NotMasterError, OverloadedError
from paceline.platform.ports import Clock
from paceline.types import GroupName, MasterEpoch
from paceline.wire.clients import inconsistent_topics
from paceline_broker.ports import Role, RoleState
from paceline_broker.service.groups.clients import text_of
from paceline_broker.service.routes import Routes
from paceline_broker.service.settings import ServiceSettings

Owned = tuple[tuple[int, str, int], ...]
"""Queues a member still works on: (topic id, broker group, queue id)."""

TEXT_MAX = 16 * 1024 * 1024
"""Characters that all members have told: some 700,000 queues. What a group's members are told of
each other is at most this, too."""
OWNED_TEXT = 24
"""A queue in a heartbeat counts as so many."""

LOOK_MS = 100
"""However many are refused: to look for silent ones is to go through all members."""

GENERATION_BITS = 32
"""A generation is (epoch << 32) + count, so it rises over coordinators too."""


def told_by(topics: Iterable[str], owned: Owned, about: Mapping[str, Any]) -> int:
    """What a heartbeat says, in characters; some for each queue."""
    return text_of(topics, about) + OWNED_TEXT * len(owned)


@dataclass(slots=True)
class Member:
    """One live member of a group."""

    topics: tuple[str, ...]
    owned: Owned
    heard_ms: int
    via: Hashable = None
    """The connection of its last heartbeat; None if that was a single request."""
    lost_ms: int | None = None
    """When that connection closed."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What it tells of itself for people to read: how it consumes, what it subscribes to."""
    text: int = 0
    """`told_by` all of this."""


@dataclass(slots=True)
class MemberTable:
    """The members of all groups. Pure: `now_ms` is the monotonic clock."""

    expiry_ms: int
    generation_first: int
    lost_after_ms: int = 0
    """How long a member may be without a connection that it had."""
    groups: dict[str, dict[str, Member]] = field(default_factory=dict)
    generations: dict[str, int] = field(default_factory=dict)
    members_count: int = 0
    text: int = 0
    """What all members have told (`told_by`)."""
    _by_via: dict[Hashable, set[tuple[str, str]]] = field(default_factory=dict)

    def hear(
        self,
        group: str,
        client_id: str,
        topics: tuple[str, ...],
        owned: Owned,
        *,
        now_ms: int,
        via: Hashable = None,
        about: Mapping[str, Any] | None = None,
    ) -> bool:
        """Take a heartbeat; whether it changed what the others must know."""
        members = self.groups.setdefault(group, {})
        member = members.get(client_id)
        is_new = member is None
        if member is None:
            member = members[client_id] = Member(topics, owned, now_ms)
            self.members_count += 1
        if member.via != via:
            self._forget_via(group, client_id, member)
            member.via = via
            if via is not None:
                self._by_via.setdefault(via, set()).add((group, client_id))
        member.heard_ms, member.lost_ms = now_ms, None
        member.about = about or {}
        self.text -= member.text
        member.text = told_by(topics, owned, member.about)
        self.text += member.text
        if not is_new and member.topics == topics and member.owned == owned:
            return False
        member.topics, member.owned = topics, owned
        self._change(group)
        return True

    def has_room_for(self, group: str, client_id: str, text: int, *, members_max: int) -> bool:
        """Whether there may be such a member, or one may tell so much instead of what it did."""
        member = self.groups.get(group, {}).get(client_id)
        if member is None:
            return self.members_count < members_max and self.text + text <= TEXT_MAX
        return text <= member.text or self.text + text - member.text <= TEXT_MAX

    def connection_lost(self, via: Hashable, *, now_ms: int) -> bool:
        """A connection has closed; whether members came over it."""
        lost = self._by_via.pop(via, set())
        for group, client_id in lost:
            member = self.groups[group][client_id]
            member.via, member.lost_ms = None, now_ms
        return bool(lost)

    def leave(self, group: str, client_id: str) -> bool:
        """Drop a member; False if it was none."""
        members = self.groups.get(group, {})
        member = members.pop(client_id, None)
        if member is None:
            return False
        self._forget_via(group, client_id, member)
        self.members_count -= 1
        self.text -= member.text
        self._change(group)
        if not members:
            del self.groups[group]
            # Names that nobody uses any more cost nothing; whoever takes one up again begins above.
            self.generation_first = max(self.generation_first, self.generations.pop(group))
        return True

    def expire(self, now_ms: int) -> list[str]:
        """Drop members silent for `expiry_ms`, or lost; the groups that changed."""
        silent = [
            (group, client_id)
            for group, members in self.groups.items()
            for client_id, member in members.items()
            if now_ms - member.heard_ms >= self.expiry_ms
            or (member.lost_ms is not None and now_ms - member.lost_ms >= self.lost_after_ms)
        ]
        for group, client_id in silent:
            self.leave(group, client_id)
        return sorted({group for group, _ in silent})

    def generation(self, group: str) -> int:
        return self.generations.get(group, self.generation_first)

    def members(self, group: str) -> list[dict[str, Any]]:
        """The members in order of client id, as JSON."""
        return [
            {
                "client_id": client_id,
                "topics": list(member.topics),
                "owned": [list(queue) for queue in member.owned],
                **member.about,
            }
            for client_id, member in sorted(self.groups.get(group, {}).items())
        ]

    def inconsistent_topics(self, group: str) -> list[str]:
        """Topics that not all members subscribe to, or not with the same filter."""
        members = self.groups.get(group, {}).values()
        return inconsistent_topics(
            (member.topics, member.about.get("filters", {})) for member in members
        )

    def _forget_via(self, group: str, client_id: str, member: Member) -> None:
        of_via = self._by_via.get(member.via)
        if of_via is not None:
            of_via.discard((group, client_id))
            if not of_via:
                del self._by_via[member.via]

    def _change(self, group: str) -> None:
        self.generations[group] = self.generation(group) + 1


def coordinating_group(group: str, broker_groups: Sequence[GroupName]) -> GroupName:
    """The broker group whose master coordinates a consumer group."""
    ordered = sorted(broker_groups)
    return ordered[crc32c(group.encode()) % len(ordered)]


class Coordinator:
    """The coordinator part of a master, or of an acting one: it keeps nothing but who is there.

    State lives as long as the mastership (`role_changed`).
    """

    def __init__(self, role: Role, routes: Routes, clock: Clock, settings: ServiceSettings) -> None:
        self._role = role
        self._routes = routes
        self._clock = clock
        self._settings = settings
        self._epoch: MasterEpoch | None = None
        self._ready_ms = 0
        self._table = MemberTable(settings.member_expiry_ms, 0, settings.member_lost_ms)
        self._waiters: dict[str, set[asyncio.Future[None]]] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._looked_ms = -LOOK_MS
        """When the silent ones were looked for last."""

    def role_changed(self) -> None:
        """A new mastership begins with an empty table; otherwise there is none."""
        serves = self._role.state in (RoleState.MASTER, RoleState.ACTING_MASTER)
        epoch = self._role.epoch if serves else None
        if epoch == self._epoch:
            return
        self._epoch = epoch
        first = (epoch or 0) << GENERATION_BITS
        settings = self._settings
        self._table = MemberTable(settings.member_expiry_ms, first, settings.member_lost_ms)
        self._ready_ms = self._clock.monotonic_ms() + self._settings.member_interval_ms
        for group in list(self._waiters):
            self._wake(group)

    def close(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for group in list(self._waiters):
            self._wake(group)

    async def heartbeat(
        self,
        group: str,
        client_id: str,
        topics: tuple[str, ...],
        owned: Owned,
        *,
        generation: int,
        wait_ms: int,
        via: Hashable = None,
        about: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Take a member's heartbeat; its answer is the list of members and their generation.

        With the present `generation` it waits up to `wait_ms` for a change. `via` is the
        connection that it came over, if its end is told to `connection_lost`. Raises NotMasterError
        (details: `master`) when this broker does not coordinate the group, OverloadedError.
        """
        self._check_mine(group)
        now_ms = self._clock.monotonic_ms()
        table = self._table
        self._make_room(group, client_id, told_by(topics, owned, about or {}))
        heard = table.hear(group, client_id, topics, owned, now_ms=now_ms, via=via, about=about)
        if heard:
            self._changed(group)
        self._schedule_sweep()
        if self._ready_ms > now_ms:
            await self._wait(group, self._ready_ms - now_ms, until_ready=True)
        elif generation == table.generation(group) and wait_ms > 0:
            await self._wait(group, min(wait_ms, self._settings.member_interval_ms))
        self._check_mine(group)  # the mastership may have gone meanwhile
        return self.describe(group)

    def connection_lost(self, via: Hashable) -> None:
        """A stream has closed: its members are gone if they do not come back soon."""
        if self._table.connection_lost(via, now_ms=self._clock.monotonic_ms()):
            loop = asyncio.get_running_loop()
            loop.call_later((self._settings.member_lost_ms + 1) / 1000, self._drop_silent)

    def leave(self, group: str, client_id: str) -> dict[str, Any]:
        """A member goes; its queues are free at once."""
        self._check_mine(group)
        if self._table.leave(group, client_id):
            self._changed(group)
        return {"generation": self._table.generation(group)}

    def describe(self, group: str) -> dict[str, Any]:
        """Generation and members; NotMasterError elsewhere."""
        self._check_mine(group)
        return {
            "generation": self._table.generation(group),
            "interval_ms": self._settings.member_interval_ms,
            "members": self._table.members(group),
            "inconsistent_topics": self._table.inconsistent_topics(group),
        }

    def group_names(self) -> list[str]:
        """Groups with a live member here."""
        return sorted(self._table.groups)

    def _make_room(self, group: str, client_id: str, text: int) -> None:
        """OverloadedError if it is too many, or too much, also without those that are silent."""
        limit = self._settings.members_max
        if self._table.has_room_for(group, client_id, text, members_max=limit):
            return
        if self._clock.monotonic_ms() - self._looked_ms >= LOOK_MS:
            self._drop_silent()
        if not self._table.has_room_for(group, client_id, text, members_max=limit):
            raise OverloadedError(
                f"{self._table.members_count} members of consumer groups are coordinated here, and"
                f" there is no room for more of them (at most {limit}), or for more topics, filters"
                " and queues that they name",
                retry_after_ms=1000,
            )

    def _check_mine(self, group: str) -> None:
        if self._role.acting is None:
            self._role.writer()  # raises NotMasterError with the master of this broker's group
        view = self._routes.view
        if view is None:
            raise NotMasterError("no cluster view yet", master=None)
        mine = coordinating_group(group, tuple(view.groups))
        if mine == self._routes.group:
            return
        master = view.groups[mine].serving_view()
        raise NotMasterError(
            f"group {group!r} is coordinated by the master of {mine}",
            master=None if master is None else master.client_address,
            group=mine,
        )

    async def _wait(self, group: str, wait_ms: int, *, until_ready: bool = False) -> None:
        """Until the group changes (or, with `until_ready`, the time is over in any case)."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        while True:
            waiter: asyncio.Future[None] = loop.create_future()
            waiters = self._waiters.setdefault(group, set())
            waiters.add(waiter)
            try:
                async with asyncio.timeout_at(deadline):
                    await waiter
            except TimeoutError:
                return
            finally:
                waiters.discard(waiter)
                if not waiters and self._waiters.get(group) is waiters:  # not those that came since
                    del self._waiters[group]
            if not until_ready or self._epoch is None:
                return

    def _changed(self, group: str) -> None:
        """Tell the members at once, unless the group wants them to hear with their next beat."""
        if self._routes.settings_of(group).notify_consumer_ids_changed_enable:
            self._wake(group)

    def _wake(self, group: str) -> None:
        for waiter in self._waiters.pop(group, ()):
            if not waiter.done():
                waiter.set_result(None)

    def _schedule_sweep(self) -> None:
        if self._sweep is None and self._table.members_count > 0:
            interval = self._settings.member_interval_ms / 1000
            self._sweep = asyncio.get_running_loop().call_later(interval, self._expire)

    def _expire(self) -> None:
        self._sweep = None
        self._drop_silent()
        self._schedule_sweep()

    def _drop_silent(self) -> None:
        self._looked_ms = self._clock.monotonic_ms()
        for group in self._table.expire(self._looked_ms):
            self._changed(group)
