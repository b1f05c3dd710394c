"""Broker groups: view, settings, elections, transfers, history, cleaning.

Whether a replica is dead is the leader's judgement at this edge: the state machine never knows
(R15).
"""

from typing import Any

import msgspec

from paceline.errors import BadRequestError, CommandRefusedError, NotFoundError
from paceline.types import GroupName, MasterEpoch, ReplicaId
from paceline.wire.commands import Once
from paceline.wire.controller_calls import broker_groups as calls
from paceline_controller.leader.inquirer import heard_document
from paceline_controller.leader.transfers import Basis
from paceline_controller.server.call_context import CallContext, Handlers
from paceline_controller.server.http_answers import checked
from paceline_controller.server.http_once import refuse_once, settled
from paceline_controller.state.commands import SetGroupSettings
from paceline_controller.state.group_settings import read_settings
from paceline_controller.state.model import Group
from paceline_controller.state.operator_commands import (
    RemoveGroup,
    RemoveReplica,
    SetWritePermission,
)


class GroupCalls:
    """Handlers."""

    def __init__(self, context: CallContext) -> None:
        self._context = context

    def handlers(self) -> Handlers:
        return {
            calls.ListGroups: self._list,
            calls.GetGroup: self._get,
            calls.GetGroupSettings: self._settings,
            calls.SetGroupSettings: self._set_settings,
            calls.SetWritePermission: self._set_write_permission,
            calls.GetHistory: self._history,
            calls.Elect: self._elect,
            calls.Transfer: self._transfer,
            calls.RemoveReplica: self._remove_replica,
            calls.RemoveGroup: self._remove_group,
            calls.GetHeard: self._heard,
        }

    # -- what there is ------------------------------------------------------------------------

    async def _list(self, call: calls.ListGroups, _: Once | None) -> dict[str, Any]:
        await self._context.read_point(call)
        machine = self._context.node.machine
        groups = [self._describe(machine.groups[name]) for name in sorted(machine.groups)]
        return {"version": machine.version, "groups": groups}

    async def _get(self, call: calls.GetGroup, _: Once | None) -> dict[str, Any]:
        await self._context.read_point(call)
        return self._describe(self._context.find_group(call.group))

    def _describe(self, group: Group) -> dict[str, Any]:
        """The group's view and what only the controllers know of it."""
        now_ms = self._context.clock.monotonic_ms()
        liveness = self._context.node.supervisor.liveness
        standings = {}
        for replica_id in sorted(group.replicas):
            report = liveness.report(group.group, replica_id)
            standings[str(replica_id)] = {
                "standing": liveness.belief(group, replica_id, now_ms).standing.value,
                "role": None if report is None else report.role.value,
                "election_priority": group.replicas[replica_id].election_priority,
                "last_epoch": None if report is None else report.last_epoch,
                "end": None if report is None else report.end,
                "flushed": None if report is None else report.flushed,
                "confirm": None if report is None else report.confirm,
            }
        following = group.next_settings
        return {
            **group.view().to_json(),
            "confirm_floor": group.confirm_floor,
            "is_open": group.is_open,
            "is_lossy": group.unclean_elections_count > 0,
            "is_claimed": group.is_claimed,
            "next_settings": None if following is None else following.to_json(),
            "standings": standings,
            "history": group.history,
        }

    async def _history(self, call: calls.GetHistory, _: Once | None) -> dict[str, Any]:
        await self._context.read_point(call)
        group = self._context.find_group(call.group)
        return {
            "group": group.group,
            "is_lossy": group.unclean_elections_count > 0,
            "history": group.history[-call.limit :],
        }

    async def _heard(self, call: calls.GetHeard, _: Once | None) -> dict[str, Any]:
        liveness = self._context.node.supervisor.liveness
        now_ms = self._context.clock.monotonic_ms()
        group, replica = GroupName(call.group), ReplicaId(call.replica)
        return heard_document(liveness.last_heard(group, replica, now_ms))

    # -- settings -----------------------------------------------------------------------------

    async def _settings(self, call: calls.GetGroupSettings, _: Once | None) -> dict[str, Any]:
        await self._context.read_point(call)
        group = self._context.find_group(call.group)
        following = group.next_settings
        return {
            "settings": group.settings.to_json(),
            "next_settings": None if following is None else following.to_json(),
        }

    async def _set_settings(
        self, call: calls.SetGroupSettings, once: Once | None
    ) -> dict[str, Any]:
        earlier = self._context.earlier(once)
        group = self._context.find_group(call.group)
        given = {
            name: each for name, each in msgspec.structs.asdict(call).items() if each is not None
        }
        del given["group"]
        present = (group.next_settings or group.settings).to_json()
        settings = read_settings({**present, **given})
        command = SetGroupSettings(group=group.group, settings=settings)
        result = earlier or await self._context.write(command, once)
        return {"settings": settings.to_json(), "version": result["version"]}

    async def _set_write_permission(
        self, call: calls.SetWritePermission, once: Once | None
    ) -> dict[str, Any]:
        earlier = self._context.earlier(once)
        group = self._context.find_group(call.group)
        command = SetWritePermission(group=group.group, is_writable=call.writable)
        result = earlier or await self._context.write(command, once)
        return {"writable": call.writable, "version": result["version"]}

    # -- another master -----------------------------------------------------------------------

    async def _elect(self, call: calls.Elect, once: Once | None) -> dict[str, Any]:
        earlier = self._context.earlier(once)
        if earlier is not None:
            return earlier
        group = self._context.find_group(call.group, field="group")
        if call.unclean and call.preferred is None:
            raise BadRequestError("an unclean election names its winner", field="preferred")
        result = await self._context.leaders_word(
            self._context.node.supervisor.order_election(
                group,
                preferred=None if call.preferred is None else ReplicaId(call.preferred),
                is_unclean=call.unclean,
                once=once,
            )
        )
        # One that was refused before it came to the log settles nothing.
        return settled(result, once if "version" in result else None)

    async def _transfer(self, call: calls.Transfer, once: Once | None) -> dict[str, Any]:
        """A transfer is an order, reports and an election, not one command (R17, R20)."""
        preferred = None if call.to is None else ReplicaId(call.to)
        basis = None
        if call.from_ is not None or call.master_epoch is not None:
            if call.from_ is None or call.master_epoch is None:
                missing = "from" if call.from_ is None else "master_epoch"
                raise BadRequestError(
                    f"from and master_epoch are given together: {missing} is missing",
                    field=missing,
                )
            basis = Basis(ReplicaId(call.from_), MasterEpoch(call.master_epoch))
        refuse_once(call, once)
        self._context.ensure_leading()
        group = self._context.find_group(call.group, field="group")
        outcome = None if basis is None else basis.outcome(group, preferred)
        if outcome is None:
            order = self._context.node.supervisor.order_transfer(group, preferred=preferred)
            outcome = await self._context.leaders_word(order)
        return checked(outcome)

    # -- cleaning -----------------------------------------------------------------------------

    async def _remove_replica(self, call: calls.RemoveReplica, once: Once | None) -> dict[str, Any]:
        earlier = self._context.earlier(once)
        if earlier is not None:
            return {"version": earlier["version"]}
        group = self._context.find_group(call.group)
        replica_id = ReplicaId(call.replica)
        if replica_id not in group.replicas:
            raise NotFoundError(f"group {group.group} has no replica {replica_id}")
        if self._context.is_alive(group.group, replica_id):
            is_needed = replica_id in (group.master, group.acting)
            if is_needed or not call.force:
                raise CommandRefusedError(
                    f"replica {replica_id} of group {group.group} is alive: stop it first"
                    + ("" if is_needed else ", or force it, and it must start empty again"),
                    reason="IS_ALIVE",
                )
        command = RemoveReplica(group=group.group, replica_id=replica_id, is_forced=call.force)
        return {"version": (await self._context.write(command, once))["version"]}

    async def _remove_group(self, call: calls.RemoveGroup, once: Once | None) -> dict[str, Any]:
        earlier = self._context.earlier(once)
        if earlier is not None:
            return {"version": earlier["version"]}
        group = self._context.find_group(call.group)
        alive = [
            replica
            for replica in sorted(group.replicas)
            if self._context.is_alive(group.group, replica)
        ]
        if alive:
            raise CommandRefusedError(
                f"replicas {', '.join(map(str, alive))} of group {group.group} are alive: "
                "stop them first",
                reason="IS_ALIVE",
            )
        command = RemoveGroup(group=group.group, is_forced=call.force)
        return {"version": (await self._context.write(command, once))["version"]}
