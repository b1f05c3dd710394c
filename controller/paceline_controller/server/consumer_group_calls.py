"""Consumer groups and their settings: list, create, alter, delete."""

from typing import Any

from paceline.errors import ConflictError
from paceline.security.access import ASKING
from paceline.types import ConsumerGroupName
from paceline.wire.commands import SEQUENCE_HEADER, Once
from paceline.wire.consumer_groups import ConsumerGroupSettings, SettingsChanges, with_changes
from paceline.wire.controller_calls import consumer_groups as calls
from paceline.wire.names import check_group_name
from paceline_controller.server.call_context import CallContext, Handlers
from paceline_controller.server.not_found import no_consumer_group
from paceline_controller.state.topic_commands import (
    AlterConsumerGroup,
    DeleteConsumerGroup,
    PutConsumerGroup,
)


class ConsumerGroupCalls:
    """Handlers."""

    def __init__(self, context: CallContext) -> None:
        self._context = context

    def handlers(self) -> Handlers:
        return {
            calls.ListConsumerGroups: self._list,
            calls.GetConsumerGroup: self._get,
            calls.CreateConsumerGroup: self._create,
            calls.AlterConsumerGroup: self._alter,
            calls.DeleteConsumerGroup: self._delete,
        }

    async def _list(self, call: calls.ListConsumerGroups, _: Once | None) -> dict[str, Any]:
        await self._context.read_point(call)
        machine = self._context.node.machine
        names = sorted(machine.consumer_groups)
        groups = [machine.consumer_groups[name].to_json() for name in names]
        return {"version": machine.version, "groups": groups}

    async def _get(self, call: calls.GetConsumerGroup, _: Once | None) -> dict[str, Any]:
        await self._context.read_point(call)
        name = _name(call.group)
        group = self._context.node.machine.consumer_groups.get(name)
        if group is None:
            raise no_consumer_group(name)
        return group.to_json()

    async def _create(self, call: calls.CreateConsumerGroup, once: Once | None) -> dict[str, Any]:
        name = _name(call.group)
        result = self._context.earlier(once)
        if result is None:
            settings = with_changes(ConsumerGroupSettings(), call.settings or SettingsChanges())
            by = ASKING.get()
            command = PutConsumerGroup(group=name, settings=settings, is_new=True, by=by)
            result = await self._context.write(command, once)
        return _answer(result)

    async def _alter(self, call: calls.AlterConsumerGroup, once: Once | None) -> dict[str, Any]:
        name = _name(call.group)
        result = self._context.earlier(once)
        if result is None:
            if name not in self._context.node.machine.consumer_groups:
                raise no_consumer_group(name)
            # The changes, not their outcome: another command may come to the log before.
            command = AlterConsumerGroup(group=name, changes=SettingsChanges(**call.values()))
            result = await self._context.write(command, once)
        return _answer(result)

    async def _delete(self, call: calls.DeleteConsumerGroup, once: Once | None) -> dict[str, Any]:
        command = DeleteConsumerGroup(group=_name(call.group))
        return {"version": (await self._context.write(command, once))["version"]}


def _name(name: str) -> ConsumerGroupName:
    return ConsumerGroupName(check_group_name(name))


def _answer(result: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(result.get("group"), dict):
        raise ConflictError("this sequence was another command", field=SEQUENCE_HEADER)
    return {**result["group"], "version": result["version"]}
