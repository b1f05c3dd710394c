"""Shell: what operators do with broker groups, over HTTP: transfers, history, cleaning.

Beside the routes of `http.py`; docs/protocol/controller.md lists all. Whether a replica is dead is
the leader's judgement at this edge: the state machine never knows (R15).
"""

from aiohttp import web

from paceline.errors import CommandRefusedError, NotFoundError
from paceline.types import GroupName, MasterEpoch, ReplicaId
from paceline.wire.fields import Fields
from paceline.wire.session_commands import U32_MAX
from paceline_controller.leader.transfers import Basis
from paceline_controller.server.http_answers import checked, json_answer, json_body, replica_of
from paceline_controller.server.http_context import HttpContext
from paceline_controller.server.http_errors import query_flag, query_integer
from paceline_controller.server.http_once import refuse_once
from paceline_controller.server.not_found import no_broker_group
from paceline_controller.state.model import HISTORY_ENTRIES_MAX, Group
from paceline_controller.state.operator_commands import (
    RemoveGroup,
    RemoveReplica,
    SetWritePermission,
)


class GroupRoutes:
    """Handlers."""

    def __init__(self, context: HttpContext) -> None:
        self._context = context

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/transfers", self._transfer),
            web.get("/v1/groups/{group}/history", self._history),
            web.put("/v1/groups/{group}/write-permission", self._set_write_permission),
            web.delete("/v1/groups/{group}", self._remove_group),
            web.delete("/v1/groups/{group}/replicas/{replica}", self._remove_replica),
        ]

    async def _history(self, request: web.Request) -> web.Response:
        """Elections, vacancies and set changes with their reasons, oldest first."""
        limit = query_integer(
            request, "limit", default=HISTORY_ENTRIES_MAX, low=1, high=HISTORY_ENTRIES_MAX
        )
        await self._context.read_point(request)
        group = self._context.find_group(request)
        return json_answer(
            {
                "group": group.group,
                "is_lossy": group.unclean_elections_count > 0,
                "history": group.history[-limit:],
            }
        )

    async def _set_write_permission(self, request: web.Request) -> web.Response:
        """{writable}: whether clients may send to the group; false before its maintenance."""
        fields = Fields(await json_body(request), name="write permission")
        is_writable = fields.flag("writable")
        fields.done()
        earlier = self._context.earlier(request)
        group = self._context.find_group(request)
        command = SetWritePermission(group=group.group, is_writable=is_writable)
        result = earlier or await self._context.write(request, command)
        return json_answer({"writable": is_writable, "version": result["version"]})

    async def _transfer(self, request: web.Request) -> web.Response:
        """{group, to?, from?, master_epoch?}: the master hands over, to that member or to the best
        one (R17, R20).

        With `from` and `master_epoch`, who led in which epoch, it may be asked for again: once
        another one leads, that is the answer, and mastership does not move a second time.
        """
        fields = Fields(await json_body(request), name="transfer")
        name = GroupName(fields.text("group", length_max=127))
        preferred = ReplicaId(fields.integer("to", low=1)) if fields.has("to") else None
        basis = None
        if fields.has("from") or fields.has("master_epoch"):
            epoch = fields.integer("master_epoch", low=1, high=U32_MAX)
            basis = Basis(ReplicaId(fields.integer("from", low=1)), MasterEpoch(epoch))
        fields.done()
        refuse_once(request)
        self._context.ensure_leading()
        node = self._context.node
        group = node.machine.groups.get(name)
        if group is None:
            raise no_broker_group(name, node.machine.groups, field="group")
        outcome = None if basis is None else basis.outcome(group, preferred)
        if outcome is None:
            order = node.supervisor.order_transfer(group, preferred=preferred)
            outcome = await self._context.leaders_word(order)
        return json_answer(checked(outcome))

    async def _remove_replica(self, request: web.Request) -> web.Response:
        """Forget a dead replica; one that lives or is a member only with `force=true`."""
        earlier = self._context.earlier(request)
        if earlier is not None:
            return json_answer({"version": earlier["version"]})
        group = self._context.find_group(request)
        replica_id = replica_of(request)
        is_forced = query_flag(request, "force")
        if replica_id not in group.replicas:
            raise NotFoundError(f"group {group.group} has no replica {replica_id}")
        if self._context.is_alive(group.group, replica_id):
            is_needed = replica_id in (group.master, group.acting)
            if is_needed or not is_forced:
                raise CommandRefusedError(
                    f"replica {replica_id} of group {group.group} is alive: stop it first"
                    + ("" if is_needed else ", or force it, and it must start empty again"),
                    reason="IS_ALIVE",
                )
        command = RemoveReplica(group=group.group, replica_id=replica_id, is_forced=is_forced)
        result = await self._context.write(request, command)
        return json_answer({"version": result["version"]})

    async def _remove_group(self, request: web.Request) -> web.Response:
        """Forget a group of which no replica lives; with queues of topics only if forced."""
        earlier = self._context.earlier(request)
        if earlier is not None:
            return json_answer({"version": earlier["version"]})
        group = self._context.find_group(request)
        is_forced = query_flag(request, "force")
        alive = self._alive(group)
        if alive:
            raise CommandRefusedError(
                f"replicas {', '.join(map(str, alive))} of group {group.group} are alive: "
                "stop them first",
                reason="IS_ALIVE",
            )
        command = RemoveGroup(group=group.group, is_forced=is_forced)
        result = await self._context.write(request, command)
        return json_answer({"version": result["version"]})

    def _alive(self, group: Group) -> list[int]:
        return [
            replica
            for replica in sorted(group.replicas)
            if self._context.is_alive(group.group, replica)
        ]
