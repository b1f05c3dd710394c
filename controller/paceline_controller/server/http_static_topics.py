"""Shell: static topics over HTTP: made and grown by the routes of topics, and moved by one more."""

from aiohttp import web

from paceline.errors import BadRequestError
from paceline.types import GroupName, TopicName
from paceline.wire.fields import Fields
from paceline.wire.names import check_topic_name
from paceline.wire.session_commands import NAME_PATTERN, U32_MAX
from paceline.wire.static_topics import LOGICAL_QUEUES_MAX
from paceline.wire.topics import NORMAL, PERM_BOTH, read_labels, read_message_type, read_perm
from paceline_controller.server.http_answers import json_body
from paceline_controller.server.http_context import HttpContext
from paceline_controller.server.http_once import topic_answer
from paceline_controller.server.not_found import no_broker_group, no_topic
from paceline_controller.state.model import Topic
from paceline_controller.state.topic_commands import (
    CreateStaticTopic,
    GrowStaticTopic,
    RemapQueue,
    read_groups,
)

_NUMBERS = ("queues", "read_queues", "write_queues")


def is_of_static_topic(fields: Fields) -> bool:
    """Whether a body speaks of logical queues. Raises BadRequestError if of others as well."""
    if not fields.has("logical_queues"):
        return False
    for key in _NUMBERS:
        if fields.has(key):
            raise BadRequestError(f"a static topic has logical_queues: leave {key} out", field=key)
    return True


def creation(fields: Fields, topic: TopicName) -> CreateStaticTopic:
    """{logical_queues, groups?, perm?, message_type?, attributes?}"""
    has_type = fields.has("message_type")
    return CreateStaticTopic(
        topic=topic,
        logical_queues=fields.integer("logical_queues", low=1, high=LOGICAL_QUEUES_MAX),
        groups=read_groups(fields, "groups") if fields.has("groups") else (),
        perm=read_perm(fields) if fields.has("perm") else PERM_BOTH,
        message_type=read_message_type(fields) if has_type else NORMAL,
        attributes=read_labels(fields),
    )


def growth(fields: Fields, topic: Topic) -> GrowStaticTopic:
    """{logical_queues, groups?}: nothing else is changed by the same command."""
    command = GrowStaticTopic(
        topic=topic.topic,
        topic_id=topic.topic_id,
        logical_queues=fields.integer("logical_queues", low=1, high=LOGICAL_QUEUES_MAX),
        groups=read_groups(fields, "groups") if fields.has("groups") else (),
    )
    fields.done()
    return command


class StaticTopicRoutes:
    """Handlers."""

    def __init__(self, context: HttpContext) -> None:
        self._context = context

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/topics/{topic}/remap", self._remap)]

    async def _remap(self, request: web.Request) -> web.Response:
        """{logical_queue, group, generation?}: left out, the present one of this controller."""
        fields = Fields(await json_body(request), name="remap")
        name = TopicName(check_topic_name(request.match_info["topic"]))
        result = self._context.earlier(request)
        if result is None:
            machine = self._context.node.machine
            topic = machine.topics.get(name)
            if topic is None:
                raise no_topic(name)
            number = fields.integer("logical_queue", high=LOGICAL_QUEUES_MAX - 1)
            group = GroupName(fields.text("group", pattern=NAME_PATTERN))
            if group not in machine.groups:
                raise no_broker_group(group, machine.groups, field="group")
            if fields.has("generation"):
                generation = fields.integer("generation", high=U32_MAX)
            else:
                queues = topic.logical_queues
                generation = queues[number].last.generation if number < len(queues) else 0
            fields.done()
            command = RemapQueue(
                topic=name,
                topic_id=topic.topic_id,
                logical_queue=number,
                group=group,
                generation=generation,
            )
            result = await self._context.write(request, command)
        return topic_answer(result)
