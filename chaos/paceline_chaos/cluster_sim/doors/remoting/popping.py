"""Consumers of the remoting protocol by receipt: POP (200050), 200051, 200053.

Codes so high are only for headers in JSON, upstream too.
"""

from paceline.errors import PacelineError
from paceline.wire.receipts import parse_handle
from paceline_chaos.cluster_sim.doors.gateways import Gateways
from paceline_chaos.cluster_sim.doors.receipts import BATCH_MAX, INVISIBLE_MS, Received, Receiver
from paceline_chaos.cluster_sim.doors.remoting.client import (
    DEADLINE_MS,
    Consuming,
    RemotingClient,
    error_of,
)
from paceline_chaos.cluster_sim.doors.remoting.gateway import RemotingGateway
from paceline_chaos.cluster_sim.jobs.around import Around
from paceline_chaos.cluster_sim.jobs.reading import seen
from paceline_chaos.history.model import Queue
from paceline_gateway.remoting.codec.codes import RequestCode, ResponseCode
from paceline_gateway.remoting.codec.frames import Command
from paceline_gateway.remoting.codec.store_format import decode_messages

GROUP = "remoting-pop-1"
_WAIT_MS = 1_000
_HANDLE = 8
"""Which word of POP_CK is ours."""


class RemotingPopper(Receiver):
    """One member."""

    def __init__(
        self,
        around: Around,
        gateways: Gateways[RemotingGateway],
        name: str,
        *,
        group: str = GROUP,
    ) -> None:
        super().__init__(around, name, group)
        about = Consuming(group, (around.topic,))
        self._client = RemotingClient(around, gateways, name, consuming=about, has_json=True)

    async def close(self) -> None:
        await self._client.close()

    async def _receive(self) -> list[Received]:
        around = self._around
        queues = await self._client.queues(around.topic)
        if not queues:
            return []
        group = around.choice(queues).group
        fields = {
            "consumerGroup": self.group,
            "topic": around.topic,
            "queueId": -1,
            "maxMsgNums": around.whole(1, BATCH_MAX),
            "invisibleTime": INVISIBLE_MS,
            "pollTime": _WAIT_MS,
            "initMode": 0,
            "expType": "TAG",
            "exp": "*",
        }
        asked_us = around.recorder.now_us()
        try:
            answer = await self._client.ask(
                group, RequestCode.POP_MESSAGE, fields, deadline_ms=_WAIT_MS + DEADLINE_MS
            )
        except PacelineError:
            return []  # what was given comes again in its time
        if answer.code != ResponseCode.SUCCESS:
            return []
        return [
            self._given(message.properties["POP_CK"], message.body, asked_us)
            for message, _ in decode_messages(bytes(answer.body))
        ]

    def _given(self, shown: str, body: bytes, asked_us: int) -> Received:
        receipt = parse_handle(shown.split(" ")[_HANDLE], self.group)
        queue = Queue(self._around.topic, receipt.broker_group, receipt.queue_id)
        message = seen(receipt.offset, body)
        received = Received(message.value, shown, queue, message)
        return self._enter(received, asked_us=asked_us, attempt=receipt.attempt)

    async def _done(self, received: Received) -> PacelineError | None:
        answer = await self._ask(RequestCode.ACK_MESSAGE, received, {})
        return answer if isinstance(answer, PacelineError) else None

    async def _change(self, received: Received, invisible_ms: int) -> str | PacelineError:
        """The new handle, which a client makes of the answer's words and its own."""
        answer = await self._ask(
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME, received, {"invisibleTime": invisible_ms}
        )
        if isinstance(answer, PacelineError):
            return answer
        words = received.handle.split(" ")[:_HANDLE]
        words[1:4] = (answer.fields[name] for name in ("popTime", "invisibleTime", "reviveQid"))
        return " ".join(words)

    async def _ask(
        self, code: int, received: Received, more: dict[str, object]
    ) -> Command | PacelineError:
        queue = received.queue
        fields = {
            "consumerGroup": self.group,
            "topic": queue.topic,
            "queueId": queue.queue,
            "extraInfo": received.handle,
            "offset": received.seen.offset,
            **more,
        }
        try:
            answer = await self._client.ask(queue.group, code, fields)
        except PacelineError as error:
            return error
        return error_of(answer) or answer
