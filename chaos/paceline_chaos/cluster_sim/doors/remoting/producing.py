"""Producers of the remoting protocol: single messages, batches, bursts, one-way, delayed ones.

What has a key goes to the queue that the client makes of it, once, as RocketMQ's clients send in
order; bursts of it are pipelined over one connection. All else is sent again to any queue, up to
three times, when it was refused or nobody knows. A gateway does not know a message again by
remoting, as brokers upstream: what was sent again after an attempt of which nobody knows may be
stored twice, and only that (S5).
"""

import asyncio
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.errors import PacelineError
from paceline.platform.runtime import pause
from paceline_chaos.cluster_sim.bodies import crc_of, make_body
from paceline_chaos.cluster_sim.doors.attempts import ATTEMPTS, Attempted, recall_group, value_for
from paceline_chaos.cluster_sim.doors.gateways import Gateways
from paceline_chaos.cluster_sim.doors.members import DELAYS_MS
from paceline_chaos.cluster_sim.doors.remoting.client import RemotingClient, error_of
from paceline_chaos.cluster_sim.doors.remoting.gateway import NotConnectedError, RemotingGateway
from paceline_chaos.cluster_sim.jobs.around import Around
from paceline_chaos.cluster_sim.jobs.sending import asking_to_send
from paceline_chaos.history.model import Queue, Recall
from paceline_gateway.remoting.codec.codes import RequestCode
from paceline_gateway.remoting.codec.frames import Command
from paceline_gateway.remoting.codec.properties import properties_text

PRODUCERS = "remoting-producers"
WORKERS = 2
_BATCH_MAX = 4
_KEY_SHARE, _BURST_SHARE, _BATCH_SHARE, _DELAY_SHARE, _ONEWAY_SHARE = 0.25, 0.15, 0.15, 0.15, 0.1
_ELSEWHERE_SHARE = 0.3
_ROUTE_SHARE = 0.1
"""How often it asks for queues that it knows."""
_RECALLED = 0.3
ONEWAY = "ONEWAY"
"""Error of what nobody is told about."""
_BATCH_HEAD = struct.Struct(">iiiii")


@dataclass(slots=True, eq=False, kw_only=True)
class _Sending(Attempted):
    """One message on its way."""

    body: bytes
    properties: dict[str, str]

    def again(self) -> None:
        """It is about to be sent: once more, if an attempt may have stored it."""
        if self.is_maybe:
            self.asking.knows(is_idempotent=False)


class RemotingProducer:
    """One producer client."""

    def __init__(self, around: Around, gateways: Gateways[RemotingGateway], name: str) -> None:
        self._around = around
        self._name = name
        self._client = RemotingClient(around, gateways, name, producing=PRODUCERS)
        self._numbers = 0

    async def run(self) -> None:
        """Send until it is over."""
        async with asyncio.TaskGroup() as group:
            for number in range(WORKERS):
                group.create_task(self._work(number), name=f"{self._name}-{number}")

    async def close(self) -> None:
        await self._client.close()

    async def _work(self, number: int) -> None:
        around = self._around
        key = f"{around.client}-remoting-{number}"
        queues: list[Queue] = []
        while not around.is_over():
            if not queues or around.happens(_ROUTE_SHARE):
                queues = await self._client.queues(around.topic, for_writing=True)
            drawn = around.random.uniform(0, 1)
            if not queues:
                pass
            elif (drawn := drawn - _KEY_SHARE) < 0:
                await self._burst(queues, [self._next(key=key)])
            elif (drawn := drawn - _BURST_SHARE) < 0:
                count = around.whole(2, _BATCH_MAX)
                await self._burst(queues, [self._next(key=key) for _ in range(count)])
            elif (drawn := drawn - _BATCH_SHARE) < 0:
                count = around.whole(2, _BATCH_MAX)
                await self._send(queues, [self._next() for _ in range(count)])
            elif (drawn := drawn - _DELAY_SHARE) < 0:
                await self._send(queues, [self._next(delay_ms=around.choice(DELAYS_MS))])
            elif drawn < _ONEWAY_SHARE:
                self._send_oneway(around.choice(queues), self._next())
            else:
                await self._send(queues, [self._next()])
            await around.think()

    def _next(self, *, key: str | None = None, delay_ms: int = 0) -> _Sending:
        around = self._around
        self._numbers += 1
        value = value_for(self._name, self._numbers)
        body = make_body(value, around.whole(8, around.body_bytes_max))
        asking = asking_to_send(around, value, body, self._name, key=key, delay_ms=delay_ms)
        properties = {"UNIQ_KEY": value, "WAIT": "true"}
        if key is not None:
            properties["KEYS"] = key
        if delay_ms:
            properties["TIMER_DELAY_MS"] = str(delay_ms)
        return _Sending(
            asking=asking, value=value, delay_ms=delay_ms, body=body, properties=properties
        )

    # -- requests ----------------------------------------------------------------------------------

    def _begin(
        self, queue: Queue, asked: Sequence[_Sending], *, is_oneway: bool = False
    ) -> "asyncio.Future[Command]":
        """One request: code 10 or 310, or 320 of several. NotConnectedError."""
        if len(asked) > 1:
            code, body, text = RequestCode.SEND_BATCH_MESSAGE, _batch(asked), ""
        else:
            code = self._around.choice((RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2))
            [one] = asked
            body, text = one.body, properties_text(one.properties).decode()
        fields = send_fields(
            queue, text, producer_group=PRODUCERS, is_short=code != RequestCode.SEND_MESSAGE
        )
        if len(asked) > 1:
            fields["m"] = "true"
        return self._client.begin(queue.group, code, fields, body, is_oneway=is_oneway)

    def _send_oneway(self, queue: Queue, sending: _Sending) -> None:
        try:
            self._begin(queue, [sending], is_oneway=True)
        except NotConnectedError as error:
            sending.asking.raised(error)
        else:
            sending.asking.unknown(ONEWAY)

    async def _burst(self, queues: Sequence[Queue], burst: list[_Sending]) -> None:
        """Requests one after the other without waiting, to the queue of their key, each once."""
        key = burst[0].properties["KEYS"]
        queue = queues[crc_of(key.encode()) % len(queues)]
        begun = [(each, self._try_begin(queue, each)) for each in burst]
        for sending, answer in begun:
            failure = answer
            if not isinstance(answer, PacelineError):
                found = await self._answered(queue, answer)
                if isinstance(found, Command):
                    await self._sent(queue, [sending], found)
                    continue
                failure = found
            assert isinstance(failure, PacelineError)
            sending.failed(failure)

    def _try_begin(
        self, queue: Queue, sending: _Sending
    ) -> "asyncio.Future[Command] | PacelineError":
        try:
            return self._begin(queue, [sending])
        except NotConnectedError as error:
            return error

    async def _answered(
        self, queue: Queue, asked: "asyncio.Future[Command]"
    ) -> Command | PacelineError:
        try:
            answer = await self._client.answer(queue.group, asked)
        except PacelineError as error:
            return error
        return error_of(answer) or answer

    async def _send(self, queues: Sequence[Queue], asked: list[_Sending]) -> None:
        """Messages of one request, which is sent again as long as it has failed."""
        around, client = self._around, self._client
        found: Command | PacelineError
        for attempt in range(ATTEMPTS):
            if attempt:
                await pause(around.random.uniform(10, 300))
                if around.happens(_ELSEWHERE_SHARE):
                    client.leave()
            queue = around.choice(queues)
            for sending in asked:
                sending.again()
            try:
                found = await self._answered(queue, self._begin(queue, asked))
            except NotConnectedError as error:
                found = error
            if isinstance(found, Command):
                await self._sent(queue, asked, found)
                return
            for sending in asked:
                sending.is_maybe |= not found.is_definite
        assert not isinstance(found, Command)
        for sending in asked:
            sending.failed(found)

    async def _sent(self, queue: Queue, asked: Sequence[_Sending], answer: Command) -> None:
        """They were acknowledged, those of a batch in a row. What waits has no place yet; of others
        0 is also what a gateway says of a place that it does not know."""
        assert int(answer.fields["queueId"]) == queue.queue, answer.fields
        first, handle = int(answer.fields["queueOffset"]), answer.fields.get("recallHandle")
        for number, sending in enumerate(asked):
            if sending.delay_ms:
                group = queue.group if handle is None else recall_group(handle)
                sending.asking.ok(queue=Queue(queue.topic, group, -1), offset=-1)
            else:
                offset = first + number if first else -1
                sending.asking.ok(wanted=queue, queue=queue, offset=offset)
        if handle is not None and not asked[0].is_maybe and self._around.happens(_RECALLED):
            await self._recall(queue, asked[0], handle)

    async def _recall(self, queue: Queue, sending: _Sending, handle: str) -> None:
        around = self._around
        fields = {"producerGroup": PRODUCERS, "topic": queue.topic, "recallHandle": handle}
        with around.recorder.asking(
            Recall, client=around.client, topic=around.topic, value=sending.value
        ) as asking:
            try:
                answer = await self._client.ask(queue.group, RequestCode.RECALL_MESSAGE, fields)
            except PacelineError as error:
                asking.raised(error)
                return
            failure = error_of(answer)
            if failure is None:
                asking.ok()
            else:
                asking.raised(failure)


def send_fields(
    queue: Queue, properties: str, *, producer_group: str, is_short: bool, sys_flag: int = 0
) -> dict[str, object]:
    """SendMessageRequestHeader; `is_short`: of version 2, with letters for names."""
    long = {
        "producerGroup": producer_group,
        "topic": queue.topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4,
        "queueId": queue.queue,
        "sysFlag": sys_flag,
        "bornTimestamp": 0,
        "flag": 0,
        "properties": properties,
        "reconsumeTimes": 0,
        "unitMode": "false",
    }
    return dict(zip("abcdefghijk", long.values(), strict=True)) if is_short else dict(long)


def _batch(messages: Sequence[_Sending]) -> bytes:
    """The body of a request of code 320."""
    found = []
    for message in messages:
        text = properties_text(message.properties)
        size = _BATCH_HEAD.size + len(message.body) + 2 + len(text)
        head = _BATCH_HEAD.pack(size, 0, 0, 0, len(message.body))
        found.append(b"".join((head, message.body, len(text).to_bytes(2, "big"), text)))
    return b"".join(found)
