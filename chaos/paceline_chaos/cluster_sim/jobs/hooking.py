"""A sender and members with hooks, which enter all that they are told; some is refused (S41).

What is marked so is refused by a hook of the sender, or by one of the brokers, where the world has
them (`world.refusing`); it takes with it whatever is in its batch. The members push, poll and
receive, in groups of their own.
"""

import asyncio
from functools import partial
from typing import Any

from paceline.consumer.hooks import ConsumeContext
from paceline.consumer.lite_pull import LitePullConsumer, LitePullSettings
from paceline.consumer.pop.popped_message import PoppedMessage
from paceline.consumer.push import PushConsumer, PushSettings
from paceline.consumer.settings.simple import SimpleSettings
from paceline.consumer.simple import SimpleConsumer
from paceline.errors import ForbiddenError, PacelineError
from paceline.message import Message, ReceivedMessage
from paceline.net.group_links import GroupLinks
from paceline.platform.runtime import pause
from paceline.producer.hooks import SendContext
from paceline.producer.producer import Producer
from paceline.producer.settings import ProducerSettings
from paceline_chaos.cluster_sim.bodies import make_body, value_of
from paceline_chaos.cluster_sim.jobs.around import Around
from paceline_chaos.cluster_sim.jobs.consuming import look_at_offsets
from paceline_chaos.cluster_sim.jobs.popping import INVISIBLE_MS
from paceline_chaos.cluster_sim.jobs.reading import asking_to_process, seen
from paceline_chaos.cluster_sim.jobs.sending import asking_to_send, enter_outcome
from paceline_chaos.cluster_sim.refusing import BROKER
from paceline_chaos.history.hooked import (
    AFTER_CONSUME,
    AFTER_SEND,
    BEFORE_CONSUME,
    BEFORE_SEND,
    BEGIN,
    END,
    REFUSED,
    HookCall,
)
from paceline_chaos.history.model import Ack, Pop, Queue, Send
from paceline_chaos.history.recorder import Asking

PUSH_GROUP, LITE_GROUP, SIMPLE_GROUP = "hooked-push-1", "hooked-lite-1", "hooked-simple-1"
SENDER = "sender"
"""Value of the property: the sender's own hook refuses it."""
_BURST_MAX = 5
_REFUSED_SHARE = 0.1
_SESSION_TURNS = 60
_LOOK_MS = 150
_POLL_MS = 500
_MESSAGES_MAX = 20


class _Hooks:
    """All hooks of one producer or member."""

    def __init__(self, around: Around, name: str) -> None:
        self._around = around
        self._name = name
        self._calls = 0
        self._enter(BEGIN)

    def _enter(self, what: str, **members: Any) -> None:
        around = self._around
        around.recorder.add(HookCall, client=around.client, name=self._name, what=what, **members)

    async def close(self) -> None:
        """It has closed: whatever began has ended."""
        self._enter(END)

    def check_forbidden(self, message: Message) -> None:
        if (message.properties or {}).get(REFUSED) == SENDER:
            raise ForbiddenError("not sent: it is marked to be refused")

    def before_send(self, context: SendContext) -> None:
        context.state["call"] = self._calls = self._calls + 1
        self._enter(BEFORE_SEND, call=self._calls, values=_values(context))

    def after_send(self, context: SendContext) -> None:
        error = context.error
        place = Queue(context.topic, str(context.broker_group), int(context.queue_id))
        self._enter(
            AFTER_SEND,
            call=context.state["call"],
            values=_values(context),
            queue=place,
            offset=context.queue_offset,
            error=None if error is None else error.code,
        )

    def before_consume(self, context: ConsumeContext) -> None:
        context.state["call"] = self._calls = self._calls + 1
        first = context.messages[0]
        self._enter(
            BEFORE_CONSUME,
            call=self._calls,
            queue=Queue(first.topic, first.group, first.queue_id),
            messages=tuple(seen(one.queue_offset, one.body) for one in context.messages),
        )

    def after_consume(self, context: ConsumeContext) -> None:
        error = context.error
        name = None if error is None else type(error).__name__
        self._enter(AFTER_CONSUME, call=context.state["call"], error=name)


def _values(context: SendContext) -> tuple[str, ...]:
    return tuple(value_of(body) for body in context.bodies)


class Hooker:
    """See the module."""

    def __init__(self, around: Around) -> None:
        self._around = around.apart("hook")
        self._numbers = 0
        self._sessions = 0

    async def run(self) -> None:
        """Everything at the same time, until it is over."""
        async with asyncio.TaskGroup() as group:
            for work in (self._send_all, self._push_all, self._poll_all, self._receive_all):
                group.create_task(work(), name=f"{self._around.client}-hooked")

    def _next_name(self, what: str) -> str:
        self._sessions += 1
        return f"{self._around.alias}/hooked-{what}-{self._sessions}"

    # -- sending -----------------------------------------------------------------------------------

    async def _send_all(self) -> None:
        around = self._around
        while not around.is_over():
            name = self._next_name("send")
            hooks = _Hooks(around, name)
            cluster = around.cluster()
            settings = ProducerSettings(
                delivery_timeout_ms=12_000,
                request_timeout_ms=3_500,
                send_hooks=(hooks,),
                forbidden_hooks=(hooks,),
            )
            producer = Producer(cluster, settings=settings)
            close = partial(producer.close, timeout_ms=0)
            async with around.session(close, hooks.close, cluster.close):
                await producer.start()
                for _ in around.turns(_SESSION_TURNS):
                    await self._burst(producer, name)
                    await around.think()

    async def _burst(self, producer: Producer, name: str) -> None:
        asked = []
        for _ in range(self._around.whole(1, _BURST_MAX)):
            message, asking = self._message(name)
            try:
                asked.append((asking, producer.send(message)))
            except PacelineError as error:
                asking.raised(error)
        for asking, sending in asked:
            await enter_outcome(asking, sending)

    def _message(self, name: str) -> tuple[Message, Asking[Send]]:
        around = self._around
        self._numbers += 1
        value = f"{around.alias}-hooked-{self._numbers}"
        body = make_body(value, around.whole(8, around.body_bytes_max))
        properties = None
        if around.happens(_REFUSED_SHARE):
            properties = {REFUSED: around.choice((SENDER, BROKER))}
        asking = asking_to_send(around, value, body, name, properties=properties)
        return Message(around.topic, body, properties=properties), asking

    # -- consuming ---------------------------------------------------------------------------------

    async def _push_all(self) -> None:
        around = self._around
        while not around.is_over():
            member = self._next_name("push")
            hooks = _Hooks(around, member)
            cluster = around.cluster()
            links = GroupLinks(cluster)
            consumer = PushConsumer(
                cluster,
                group=PUSH_GROUP,
                topics=[around.topic],
                listener=self._listener(member),
                settings=PushSettings(
                    start="first",
                    concurrency=4,
                    commit_interval_ms=300,
                    send_back=False,
                    consume_hooks=(hooks,),
                ),
                client_id=member,
            )
            async with around.session(links.close, consumer.close, hooks.close, cluster.close):
                await consumer.start()
                for _ in around.turns(_SESSION_TURNS):
                    await pause(_LOOK_MS)
                    await look_at_offsets(around, cluster, links, PUSH_GROUP, around.topic)

    def _listener(self, member: str) -> Any:
        around = self._around

        async def listen(message: ReceivedMessage) -> None:
            with asking_to_process(around, PUSH_GROUP, member, message) as asking:
                if around.happens(0.05):
                    await pause(around.random.uniform(0, 100))
                asking.ok()

        return listen

    async def _poll_all(self) -> None:
        around = self._around
        while not around.is_over():
            member = self._next_name("lite")
            hooks = _Hooks(around, member)
            cluster = around.cluster()
            consumer = LitePullConsumer(
                cluster,
                group=LITE_GROUP,
                topics=[around.topic],
                settings=LitePullSettings(
                    start="first", auto_commit_interval_ms=1_000, consume_hooks=(hooks,)
                ),
                client_id=member,
            )
            async with around.session(consumer.close, hooks.close, cluster.close):
                await consumer.start()
                for _ in around.turns(_SESSION_TURNS):
                    polled = await consumer.poll(max_messages=_MESSAGES_MAX, timeout_ms=_POLL_MS)
                    for message in polled:  # the next poll, or the close, says so
                        asking_to_process(around, LITE_GROUP, member, message).ok()
                    await around.think()

    async def _receive_all(self) -> None:
        around = self._around
        while not around.is_over():
            member = self._next_name("simple")
            hooks = _Hooks(around, member)
            cluster = around.cluster()
            consumer = SimpleConsumer(
                cluster,
                group=SIMPLE_GROUP,
                topics=[around.topic],
                settings=SimpleSettings(
                    invisible_ms=INVISIBLE_MS, wait_ms=1_000, consume_hooks=(hooks,)
                ),
                client_id=member,
            )
            async with around.session(consumer.close, hooks.close, cluster.close):
                await consumer.start()
                for _ in around.turns(_SESSION_TURNS):
                    await self._receive(consumer, member)
                    await around.think()

    async def _receive(self, consumer: SimpleConsumer, member: str) -> None:
        """As `popping` does it: of what was asked for before, the time is not known."""
        around = self._around
        is_known, asked_us = consumer.is_quiet, around.recorder.now_us()
        messages = await consumer.receive(around.whole(1, 16), wait_ms=1_000 if is_known else 0)
        for message in messages if is_known else ():
            around.recorder.asking(
                Pop,
                client=around.client,
                consumer_group=SIMPLE_GROUP,
                member=member,
                queue=_queue(message),
                message=seen(message.queue_offset, message.body),
                attempt=message.attempt,
                invisible_ms=INVISIBLE_MS,
                asked_us=asked_us,
            ).ok()
        for message in messages:
            if around.is_over():
                return
            with around.recorder.asking(
                Ack,
                client=around.client,
                consumer_group=SIMPLE_GROUP,
                member=member,
                queue=_queue(message),
                offset=message.queue_offset,
            ) as asking:
                try:
                    await consumer.ack(message)
                except PacelineError as error:
                    asking.raised(error)
                else:
                    asking.ok()


def _queue(message: PoppedMessage) -> Queue:
    return Queue(message.topic, message.group, message.queue_id)
