"""Stores that wait for an operator, and what operators do with them (R18)."""

from typing import Any

from paceline.types import GroupName
from paceline.wire.commands import Once
from paceline.wire.controller_calls import broker_groups as calls
from paceline.wire.session_commands import PresentStore
from paceline_controller.server.call_context import CallContext, Handlers
from paceline_controller.state.operator_commands import ForgetStore, RecoverGroup


class RecoveryCalls:
    """Handlers."""

    def __init__(self, context: CallContext) -> None:
        self._context = context

    def handlers(self) -> Handlers:
        return {
            calls.ListStores: self._stores,
            calls.ForgetStore: self._forget,
            calls.Recover: self._recover,
        }

    async def _stores(self, call: calls.ListStores, _: Once | None) -> dict[str, Any]:
        await self._context.read_point(call)
        stores = sorted(self._context.node.machine.presented.values(), key=_rank)
        return {"stores": [self._describe(store) for store in stores]}

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
            "topics": store.topics_count,
            "is_learner": store.is_learner,
            "is_suspect": store.is_suspect,
            "is_damaged": store.is_damaged,
            "refusals": [{"reason": reason, "detail": detail} for reason, detail in found.refusals],
            "losses": list(found.losses),
        }

    async def _recover(self, call: calls.Recover, once: Once | None) -> dict[str, Any]:
        command = RecoverGroup(
            group=GroupName(call.group),
            store_id=call.store,
            gives_up_missing=call.give_up_missing,
            defaults=self._context.node.config.group_settings(),
        )
        return await self._context.write(command, once)

    async def _forget(self, call: calls.ForgetStore, once: Once | None) -> dict[str, Any]:
        result = await self._context.write(ForgetStore(store_id=call.store), once)
        return {"version": result["version"]}


def _rank(store: PresentStore) -> tuple[str, bool, int, int, int, str]:
    is_out = store.is_damaged or store.is_learner
    return store.group, is_out, -store.last_epoch, -store.end, store.replica_id, store.store_id
