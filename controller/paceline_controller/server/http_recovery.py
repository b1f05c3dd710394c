"""Shell: stores that wait for an operator, and what operators do with them, over HTTP (R18).

docs/protocol/controller.md lists the routes; the judgement is the state machine's.
"""

from typing import Any

from aiohttp import web

from paceline.types import GroupName
from paceline.wire.fields import Fields
from paceline.wire.session_commands import NAME_PATTERN, TOKEN_PATTERN, PresentStore
from paceline_controller.server.http_answers import json_answer, json_body
from paceline_controller.server.http_context import HttpContext
from paceline_controller.state.operator_commands import ForgetStore, RecoverGroup


class RecoveryRoutes:
    """Handlers."""

    def __init__(self, context: HttpContext) -> None:
        self._context = context

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/stores", self._stores),
            web.delete("/v1/stores/{store}", self._forget),
            web.post("/v1/recoveries", self._recover),
        ]

    async def _stores(self, request: web.Request) -> web.Response:
        """Stores that presented themselves, the best of each group first."""
        await self._context.read_point(request)
        stores = sorted(self._context.node.machine.presented.values(), key=_rank)
        return json_answer({"stores": [self._describe(store) for store in stores]})

    def _describe(self, store: PresentStore) -> dict[str, Any]:
        machine = self._context.node.machine
        group = machine.groups.get(store.group)
        settings = self._context.node.config.group_settings() if group is None else group.settings
        found = machine.assess(store, settings=settings)
        return {
            "group": store.group,
            "store_id": store.store_id,
            "from_cluster": store.cluster_id,
            "replica_id": store.replica_id,
            "incarnation": store.incarnation,
            "address": store.client_address,
            "epoch": store.epoch,
            "last_epoch": store.last_epoch,
            "start": store.start,
            "end": store.end,
            "confirm": store.confirm,
            "topics": len(store.topics),
            "is_learner": store.is_learner,
            "is_suspect": store.is_suspect,
            "is_damaged": store.is_damaged,
            "refusals": [{"reason": reason, "detail": detail} for reason, detail in found.refusals],
            "losses": list(found.losses),
        }

    async def _recover(self, request: web.Request) -> web.Response:
        """{group, store, give_up_missing?}: that store's log is the group's."""
        fields = Fields(await json_body(request), name="recovery")
        group = GroupName(fields.text("group", pattern=NAME_PATTERN))
        store = fields.text("store", pattern=TOKEN_PATTERN)
        gives_up = fields.flag("give_up_missing") if fields.has("give_up_missing") else False
        fields.done()
        command = RecoverGroup(
            group=group,
            store_id=store,
            gives_up_missing=gives_up,
            defaults=self._context.node.config.group_settings(),
        )
        return json_answer(await self._context.write(request, command))

    async def _forget(self, request: web.Request) -> web.Response:
        """A store that will not be recovered; it must not run any more, or it is back at once."""
        store = Fields(dict(request.match_info), name="path").text("store", pattern=TOKEN_PATTERN)
        result = await self._context.write(request, ForgetStore(store_id=store))
        return json_answer({"version": result["version"]})


def _rank(store: PresentStore) -> tuple[str, bool, int, int, int, str]:
    is_out = store.is_damaged or store.is_learner
    return store.group, is_out, -store.last_epoch, -store.end, store.replica_id, store.store_id
