"""Shell: topics and consumer groups over HTTP: list, create, alter, delete.

Beside the routes of `http.py`; docs/protocol/controller.md lists all.
"""

from dataclasses import replace
from typing import Any

from aiohttp import web

from paceline.errors import (
    BadRequestError,
    ConflictError,
    NotYetAvailableError,
)
from paceline.types import ConsumerGroupName, GroupName, TopicName
from paceline.wire.consumer_groups import ConsumerGroupSettings
from paceline.wire.fields import Fields
from paceline.wire.names import (
    check_group_name,
    check_readable_topic_name,
    check_topic_name,
)
from paceline.wire.once import SEQUENCE_HEADER
from paceline.wire.topic_commands import QUEUES_MAX
from paceline.wire.topics import NORMAL, PERM_BOTH, read_labels, read_message_type, read_perm
from paceline_controller.leader.unread import check_drained
from paceline_controller.server.http_answers import json_answer, json_body
from paceline_controller.server.http_context import HttpContext
from paceline_controller.server.http_errors import query_flag
from paceline_controller.server.http_once import topic_answer
from paceline_controller.server.http_static_topics import creation, growth, is_of_static_topic
from paceline_controller.server.not_found import no_broker_group, no_consumer_group, no_topic
from paceline_controller.state.model import Topic
from paceline_controller.state.topic_commands import (
    AlterConsumerGroup,
    AlterTopic,
    CreateTopic,
    DeleteConsumerGroup,
    DeleteTopic,
    PutConsumerGroup,
)

QUEUES_DEFAULT = 8


class TopicRoutes:
    """Handlers."""

    def __init__(self, context: HttpContext) -> None:
        self._context = context

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/topics", self._topics),
            web.post("/v1/topics", self._create),
            web.get("/v1/topics/{topic}", self._topic),
            web.put("/v1/topics/{topic}", self._alter),
            web.delete("/v1/topics/{topic}", self._delete),
            web.get("/v1/consumer-groups", self._groups),
            web.post("/v1/consumer-groups", self._create_group),
            web.get("/v1/consumer-groups/{group}", self._group),
            web.put("/v1/consumer-groups/{group}", self._alter_group),
            web.delete("/v1/consumer-groups/{group}", self._delete_group),
        ]

    # -- topics -------------------------------------------------------------------------------

    async def _topics(self, request: web.Request) -> web.Response:
        """All topics by name; the system's only with `system=true`."""
        with_system = query_flag(request, "system")
        await self._context.read_point(request)
        machine = self._context.node.machine
        topics = [
            machine.topics[name].view().to_json()
            for name in sorted(machine.topics)
            if with_system or not machine.topics[name].is_system
        ]
        return json_answer({"version": machine.version, "topics": topics})

    async def _topic(self, request: web.Request) -> web.Response:
        await self._context.read_point(request)
        name = check_readable_topic_name(request.match_info["topic"])
        topic = self._context.node.machine.topics.get(TopicName(name))
        if topic is None:
            raise no_topic(name)
        return json_answer(topic.view().to_json())

    async def _create(self, request: web.Request) -> web.Response:
        fields = Fields(await json_body(request), name="topic")
        topic = TopicName(check_topic_name(fields.any("topic")))
        result = self._context.earlier(request)
        if result is None and is_of_static_topic(fields):
            static = creation(fields, topic)
            fields.done()
            result = await self._context.write(request, static)
        elif result is None:
            has_reads, has_type = fields.has("read_queues"), fields.has("message_type")
            command = CreateTopic(
                topic=topic,
                queues=self._queues(fields, "queues", default=QUEUES_DEFAULT),
                read_queues=self._queues(fields, "read_queues") if has_reads else None,
                perm=read_perm(fields) if fields.has("perm") else PERM_BOTH,
                message_type=read_message_type(fields) if has_type else NORMAL,
                attributes=read_labels(fields),
            )
            fields.done()
            result = await self._context.write(request, command)
        return topic_answer(result, status=201)

    def _queues(
        self, fields: Fields, key: str, *, default: int | None = None, low: int = 1
    ) -> dict[GroupName, int]:
        """A number for every broker group (as RocketMQ counts), or a table of groups."""
        groups = self._context.node.machine.groups
        value = default if default is not None and not fields.has(key) else fields.any(key)
        if isinstance(value, dict):
            table = Fields(value, name=key)
            queues = {
                GroupName(group): table.integer(group, low=low, high=QUEUES_MAX) for group in value
            }
            if not queues:
                raise fields.wrong(key, "a number or a table of broker groups", value)
            for group in queues:
                if group not in groups:
                    raise no_broker_group(group, groups, field=key)
            return queues
        if type(value) is not int or not 1 <= value <= QUEUES_MAX:
            raise fields.wrong(key, f"an integer from 1 to {QUEUES_MAX}", value)
        if not groups:
            raise NotYetAvailableError("no broker group has registered yet: start brokers first")
        return {group: value for group in sorted(groups)}

    async def _alter(self, request: web.Request) -> web.Response:
        """Members that are left out keep their value."""
        fields = Fields(await json_body(request), name="topic")
        name = TopicName(check_topic_name(request.match_info["topic"]))
        result = self._context.earlier(request)
        if result is None:
            topic = self._context.node.machine.topics.get(name)
            if topic is None:
                raise no_topic(name)
            if is_of_static_topic(fields):
                return topic_answer(await self._context.write(request, growth(fields, topic)))
            tables = {
                key: self._queues(fields, key, low=0) if fields.has(key) else None
                for key in ("read_queues", "write_queues")
            }
            if fields.has("queues"):
                if any(tables.values()):
                    raise BadRequestError(
                        "queues is both numbers: leave read_queues and write_queues out",
                        field="queues",
                    )
                tables = dict.fromkeys(tables, self._queues(fields, "queues", low=0))
            command = AlterTopic(
                topic=name,
                topic_id=topic.topic_id,
                read_queues=tables["read_queues"],
                write_queues=tables["write_queues"],
                perm=read_perm(fields) if fields.has("perm") else None,
                message_type=read_message_type(fields) if fields.has("message_type") else None,
                attributes=read_labels(fields),
                is_forced=fields.flag("force") if fields.has("force") else False,
            )
            fields.done()
            if not command.is_forced:
                command = await self._checked(topic, command)
            result = await self._context.write(request, command)
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
                found = node.machine.groups.get(group)
                if found is None:  # removed while another one's master was asked
                    raise no_broker_group(group, node.machine.groups)
                await check_drained(
                    topic,
                    found,
                    queues=queues,
                    version=node.machine.version,
                    source_host=node.config.source_host,
                )
                is_checked = True
        return replace(command, alterations=alterations) if is_checked else command

    async def _delete(self, request: web.Request) -> web.Response:
        name = check_topic_name(request.match_info["topic"])
        result = await self._context.write(request, DeleteTopic(topic=TopicName(name)))
        return json_answer({"version": result["version"]})

    # -- consumer groups ----------------------------------------------------------------------

    async def _groups(self, request: web.Request) -> web.Response:
        await self._context.read_point(request)
        machine = self._context.node.machine
        groups = [
            machine.consumer_groups[name].to_json() for name in sorted(machine.consumer_groups)
        ]
        return json_answer({"version": machine.version, "groups": groups})

    async def _group(self, request: web.Request) -> web.Response:
        await self._context.read_point(request)
        name = _group_name(request.match_info["group"])
        group = self._context.node.machine.consumer_groups.get(name)
        if group is None:
            raise no_consumer_group(name)
        return json_answer(group.to_json())

    async def _create_group(self, request: web.Request) -> web.Response:
        """{group, settings?}"""
        fields = Fields(await json_body(request), name="group")
        name = _group_name(fields.any("group"))
        result = self._context.earlier(request)
        if result is None:
            document = fields.any("settings") if fields.has("settings") else {}
            fields.done()
            settings = ConsumerGroupSettings.read(document)
            command = PutConsumerGroup(group=name, settings=settings, is_new=True)
            result = await self._context.write(request, command)
        return _group_answer(result, status=201)

    async def _alter_group(self, request: web.Request) -> web.Response:
        """Settings that are left out keep their value."""
        body = await json_body(request)
        name = _group_name(request.match_info["group"])
        result = self._context.earlier(request)
        if result is None:
            if name not in self._context.node.machine.consumer_groups:
                raise no_consumer_group(name)
            ConsumerGroupSettings.read(body)
            command = AlterConsumerGroup(group=name, changes=body)
            result = await self._context.write(request, command)
        return _group_answer(result)

    async def _delete_group(self, request: web.Request) -> web.Response:
        """With its retry and dead letter topics and what they hold."""
        name = _group_name(request.match_info["group"])
        result = await self._context.write(request, DeleteConsumerGroup(group=name))
        return json_answer({"version": result["version"]})


def _group_name(name: object) -> ConsumerGroupName:
    return ConsumerGroupName(check_group_name(name))


def _group_answer(result: dict[str, Any], *, status: int = 200) -> web.Response:
    if not isinstance(result.get("group"), dict):
        raise ConflictError("this sequence was another command", field=SEQUENCE_HEADER)
    return json_answer({**result["group"], "version": result["version"]}, status=status)
