"""Topics: list, create, alter, delete (`paceline.wire.controller_calls.topics`)."""

from typing import Any

from msgspec import structs

from paceline.errors import BadRequestError, NotYetAvailableError
from paceline.security.access import ASKING
from paceline.types import GroupName, TopicName
from paceline.wire.commands import Once
from paceline.wire.controller_calls import topics as calls
from paceline.wire.names import check_readable_topic_name, check_topic_name
from paceline.wire.topics import check_labels
from paceline_controller.leader.unread import check_drained
from paceline_controller.server.call_context import CallContext, Handlers
from paceline_controller.server.http_once import topic_answer
from paceline_controller.server.not_found import no_broker_group, no_topic
from paceline_controller.server.static_topic_calls import creation, growth, is_of_static_topic
from paceline_controller.state.model import Topic
from paceline_controller.state.topic_commands import (
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    RemapQueue,
)

QUEUES_DEFAULT = 8


class TopicCalls:
    """Handlers."""

    def __init__(self, context: CallContext) -> None:
        self._context = context

    def handlers(self) -> Handlers:
        return {
            calls.ListTopics: self._list,
            calls.GetTopic: self._get,
            calls.CreateTopic: self._create,
            calls.AlterTopic: self._alter,
            calls.DeleteTopic: self._delete,
            calls.RemapQueue: self._remap,
        }

    async def _list(self, call: calls.ListTopics, _: Once | None) -> dict[str, Any]:
        await self._context.read_point(call)
        machine = self._context.node.machine
        topics = [
            machine.topics[name].view().to_json()
            for name in sorted(machine.topics)
            if call.system or not machine.topics[name].is_system
        ]
        return {"version": machine.version, "topics": topics}

    async def _get(self, call: calls.GetTopic, _: Once | None) -> dict[str, Any]:
        await self._context.read_point(call)
        return self._find(check_readable_topic_name(call.topic)).view().to_json()

    async def _create(self, call: calls.CreateTopic, once: Once | None) -> dict[str, Any]:
        topic = TopicName(check_topic_name(call.topic))
        result = self._context.earlier(once)
        if result is None and is_of_static_topic(call):
            result = await self._context.write(creation(call, topic, ASKING.get()), once)
        elif result is None:
            queues = QUEUES_DEFAULT if call.queues is None else call.queues
            reads = call.read_queues
            command = CreateTopic(
                topic=topic,
                queues=self._queues("queues", queues),
                read_queues=None if reads is None else self._queues("read_queues", reads),
                perm=call.perm,
                message_type=call.message_type,
                attributes=check_labels(call.attributes),
                by=ASKING.get(),
            )
            result = await self._context.write(command, once)
        return topic_answer(result)

    def _queues(self, field: str, queues: calls.QueuesLeft) -> dict[GroupName, int]:
        """The number of each broker group that is named, or the same one for all."""
        groups = self._context.node.machine.groups
        if isinstance(queues, dict):
            for group in queues:
                if group not in groups:
                    raise no_broker_group(group, groups, field=field)
            return {GroupName(group): count for group, count in queues.items()}
        if not groups:
            raise NotYetAvailableError("no broker group has registered yet: start brokers first")
        return {group: queues for group in sorted(groups)}

    async def _alter(self, call: calls.AlterTopic, once: Once | None) -> dict[str, Any]:
        name = check_topic_name(call.topic)
        result = self._context.earlier(once)
        if result is None:
            topic = self._find(name)
            if is_of_static_topic(call):
                return topic_answer(await self._context.write(growth(call, topic), once))
            tables = {"read_queues": call.read_queues, "write_queues": call.write_queues}
            if call.queues is not None:
                if any(tables.values()):
                    raise BadRequestError(
                        "queues is both numbers: leave read_queues and write_queues out",
                        field="queues",
                    )
                tables = dict.fromkeys(tables, call.queues)
            counts = {
                field: None if queues is None else self._queues(field, queues)
                for field, queues in tables.items()
            }
            command = AlterTopic(
                topic=topic.topic,
                topic_id=topic.topic_id,
                read_queues=counts["read_queues"],
                write_queues=counts["write_queues"],
                perm=call.perm,
                message_type=call.message_type,
                attributes=check_labels(call.attributes),
                is_forced=call.force,
            )
            if not command.is_forced:
                command = await self._checked(topic, command)
            result = await self._context.write(command, once)
        return topic_answer(result)

    async def _checked(self, topic: Topic, command: AlterTopic) -> AlterTopic:
        """Queues that consumers are to read no more, and nobody writes, have been read.

        So they have while nobody alters the topic: the command that comes back says as of when.
        """
        node = self._context.node
        alterations = topic.alterations
        is_checked = False
        for group, queues in (command.read_queues or {}).items():
            written = {**topic.write_queues, **(command.write_queues or {})}.get(group, 0)
            is_less = queues < topic.read_queues.get(group, 0)
            if is_less and written <= queues >= topic.write_queues.get(group, 0):
                # It may have been removed while another one's master was asked.
                await check_drained(
                    topic,
                    self._context.find_group(group),
                    queues=queues,
                    version=node.machine.version,
                    source_host=node.config.source_host,
                    proofs=node.proofs,
                    dial=node.dial,
                )
                is_checked = True
        return structs.replace(command, alterations=alterations) if is_checked else command

    async def _delete(self, call: calls.DeleteTopic, once: Once | None) -> dict[str, Any]:
        command = DeleteTopic(topic=TopicName(check_topic_name(call.topic)))
        return {"version": (await self._context.write(command, once))["version"]}

    async def _remap(self, call: calls.RemapQueue, once: Once | None) -> dict[str, Any]:
        name = check_topic_name(call.topic)
        result = self._context.earlier(once)
        if result is None:
            topic = self._find(name)
            group = self._context.find_group(call.group, field="group").group
            generation = call.generation
            if generation is None:
                queues, number = topic.logical_queues, call.logical_queue
                generation = queues[number].last.generation if number < len(queues) else 0
            command = RemapQueue(
                topic=topic.topic,
                topic_id=topic.topic_id,
                logical_queue=call.logical_queue,
                group=group,
                generation=generation,
            )
            result = await self._context.write(command, once)
        return topic_answer(result)

    def _find(self, name: str) -> Topic:
        topic = self._context.node.machine.topics.get(TopicName(name))
        if topic is None:
            raise no_topic(name)
        return topic
