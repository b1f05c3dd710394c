"""Other ways to send: chosen queues, units, one-way messages; and requests that are answered.

A unit is stored as one batch, so its messages have neighbouring offsets in one queue, which this
client checks itself. A one-way message has one attempt: nobody knows whether it is stored, but it
is never stored twice (S5). A reply is a message like any other, to the reply topic, and is judged
as such; that it reaches the one who asked, and nobody else, the requester sees at once.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from paceline.consumer.push import PushConsumer, PushSettings
from paceline.errors import PacelineError, RequestTimeoutError
from paceline.message import Message, ReceivedMessage
from paceline.net.cluster import Cluster
from paceline.platform.runtime import pause
from paceline.producer.producer import Producer
from paceline.producer.selectors import select_by_hash
from paceline.producer.settings import ProducerSettings
from paceline.queues import QueueName
from paceline.wire.names import REPLY_TOPIC
from paceline.wire.properties import CORRELATION_ID
from paceline_chaos.cluster_sim.bodies import crc_of, make_body, value_of
from paceline_chaos.cluster_sim.jobs.around import Around, queues_in
from paceline_chaos.cluster_sim.jobs.sending import asking_to_send, enter_sent
from paceline_chaos.history.model import Send
from paceline_chaos.history.recorder import Asking

REPLIER_GROUP = "repliers-1"
_UNIT_MAX = 5
_SESSION_SENDS = 60
_SETTINGS = ProducerSettings(
    delivery_timeout_ms=12_000,
    request_timeout_ms=3_500,
    send_latency_enable=True,
    compress_msg_body_over_howmuch=300,
)
_REQUEST_MS = 6_000
_REPLY_MARK = "reply-to-"
ONEWAY, REQUEST = "ONEWAY", "REQUEST"
"""Why the outcome of such a message stays unknown."""


class OtherSender:
    """A client that sends in every way but the plain one."""

    def __init__(self, around: Around) -> None:
        self._around = around
        self._numbers = 0
        self._sessions = 0

    async def run(self) -> None:
        """One producer after another until it is over."""
        around = self._around
        while not around.is_over():
            self._sessions += 1
            cluster = around.cluster()
            producer = Producer(cluster, settings=_SETTINGS)
            async with around.session(partial(producer.close, timeout_ms=0), cluster.close):
                await producer.start()
                for _ in around.turns(_SESSION_SENDS):
                    await self._send(cluster, producer)
                    await around.think()

    async def _send(self, cluster: Cluster, producer: Producer) -> None:
        match self._around.whole(0, 3):
            case 0:
                await self._unit(producer)
            case 1:
                await self._chosen(cluster, producer)
            case 2:
                await self._selected(producer)
            case _:
                self._oneway(producer)

    def _next(self, *, key: str | None = None) -> tuple[bytes, Asking[Send]]:
        around = self._around
        self._numbers += 1
        value = f"{around.alias}-ways-{self._numbers}"
        body = make_body(value, around.whole(8, around.body_bytes_max))
        session = f"{around.alias}/ways-{self._sessions}"
        return body, asking_to_send(around, value, body, session, key=key)

    async def _unit(self, producer: Producer) -> None:
        """Several messages as one: all are stored side by side, or none."""
        made = [self._next() for _ in range(self._around.whole(2, _UNIT_MAX))]
        askings = [asking for _, asking in made]
        try:
            results = await producer.send_batch(
                [Message(self._around.topic, body) for body, _ in made]
            )
        except PacelineError as error:
            for asking in askings:
                asking.raised(error)
            return
        first = results[0]
        for number, (asking, result) in enumerate(zip(askings, results, strict=True)):
            enter_sent(asking, result)
            assert (result.group, result.queue_id) == (first.group, first.queue_id), results
            if first.queue_offset >= 0:
                assert result.queue_offset == first.queue_offset + number, results

    async def _chosen(self, cluster: Cluster, producer: Producer) -> None:
        """A message for exactly one queue."""
        queues = queues_in(cluster, self._around.topic)
        if not queues:
            return
        chosen = self._around.choice(queues)
        name = QueueName(chosen.topic, chosen.group, chosen.queue)  # type: ignore[arg-type]
        body, asking = self._next()
        try:
            result = await producer.send(Message(chosen.topic, body, queue=name))
            enter_sent(asking, result, wanted=name)
        except PacelineError as error:
            asking.raised(error)

    async def _selected(self, producer: Producer) -> None:
        """A message whose queue a selector chooses."""
        chosen: list[QueueName] = []

        def select(queues: Sequence[QueueName], message: Message, arg: Any) -> QueueName:
            chosen.append(select_by_hash(queues, message, arg))
            return chosen[-1]

        body, asking = self._next()
        message = Message(self._around.topic, body)
        try:
            result = await producer.send(message, selector=select, arg=self._numbers % 7)
            enter_sent(asking, result, wanted=chosen[-1])
        except PacelineError as error:
            asking.raised(error)

    def _oneway(self, producer: Producer) -> None:
        """A message that nobody knows the fate of."""
        body, asking = self._next()
        try:
            producer.send_oneway(Message(self._around.topic, body))
        except PacelineError as error:
            asking.raised(error)
        else:
            asking.unknown(ONEWAY)


class Requester:
    """A client that asks and one that answers, in one."""

    def __init__(self, around: Around) -> None:
        self._around = around
        self._numbers = 0
        self._replies = 0
        self._sessions = 0

    async def run(self) -> None:
        """One session after another until it is over."""
        around = self._around
        while not around.is_over():
            self._sessions += 1
            cluster = around.cluster()
            asking, answering = (Producer(cluster, settings=_SETTINGS) for _ in range(2))
            consumer = PushConsumer(
                cluster,
                group=REPLIER_GROUP,
                topics=[around.topic],
                listener=self._listener(answering),
                settings=PushSettings(
                    start="first", concurrency=4, commit_interval_ms=500, send_back=False
                ),
                client_id=f"{around.alias}/replier-{self._sessions}",
            )
            producers = [partial(one.close, timeout_ms=0) for one in (asking, answering)]
            async with around.session(consumer.close, *producers, cluster.close):
                await asking.start()
                await consumer.start()
                for _ in around.turns(_SESSION_SENDS):
                    await self._request(asking)
                    await pause(around.random.uniform(100, 600))

    async def _request(self, producer: Producer) -> None:
        """Ask; the reply, if one comes, is the one to this request."""
        around = self._around
        self._numbers += 1
        value = f"{around.alias}-request-{self._numbers}"
        body = make_body(value, around.whole(8, around.body_bytes_max))
        session = f"{around.alias}/request-{self._sessions}"
        asked = asking_to_send(around, value, body, session)
        try:
            reply = await producer.request(Message(around.topic, body), timeout_ms=_REQUEST_MS)
        except RequestTimeoutError as error:
            asked.unknown(error.code)
        except PacelineError as error:
            asked.raised(error)
        else:
            asked.unknown(REQUEST)  # stored for certain, but nobody has said where
            assert value_of(reply.body).startswith(f"{_REPLY_MARK}{value}/"), (value, reply)

    def _listener(self, producer: Producer) -> Any:
        around = self._around

        async def listen(message: ReceivedMessage) -> None:
            if CORRELATION_ID not in message.properties:
                return
            self._replies += 1
            value = f"{_REPLY_MARK}{value_of(message.body)}/{around.alias}-{self._replies}"
            body = make_body(value, around.whole(8, around.body_bytes_max))
            asking = around.recorder.asking(
                Send,
                client=around.client,
                topic=REPLY_TOPIC,
                key=None,
                value=value,
                crc=crc_of(body),
                session=f"{around.alias}/replies-{self._sessions}",
            )
            try:
                result = await producer.reply(message, body)
            except PacelineError as error:
                asking.raised(error)
                raise  # the request comes again, and is answered then
            else:
                enter_sent(asking, result)

        return listen
