"""Transactions of the remoting protocol: halves (10, 310), their ends (37), and questions (39).

Clients end by the place of the half that they were told, and most times hear nothing of it: as
RocketMQ's, they end one-way. So that there is something to judge, some ask for the answer.
"""

import asyncio

from paceline.errors import PacelineError
from paceline.platform.runtime import cancel_and_wait, spawn
from paceline_chaos.cluster_sim.bodies import make_body
from paceline_chaos.cluster_sim.doors.attempts import (
    asked_about,
    beginning,
    end,
    is_committed,
    value_for,
)
from paceline_chaos.cluster_sim.doors.gateways import Gateways
from paceline_chaos.cluster_sim.doors.remoting.client import RemotingClient, error_of
from paceline_chaos.cluster_sim.doors.remoting.gateway import RemotingGateway
from paceline_chaos.cluster_sim.doors.remoting.producing import ONEWAY, send_fields
from paceline_chaos.cluster_sim.jobs.around import Around
from paceline_chaos.history.model import EndTransaction, Queue
from paceline_gateway.remoting.codec.codes import (
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    RequestCode,
)
from paceline_gateway.remoting.codec.frames import Command
from paceline_gateway.remoting.codec.properties import properties_text
from paceline_gateway.remoting.codec.store_format import decode_messages

PAYERS = "remoting-payers"
_LEFT_SHARE = 0.3
"""Transactions that nobody ends before a question."""
_AGAIN_SHARE, _ONEWAY_SHARE = 0.2, 0.4


class RemotingTransactor:
    """One producer client that transacts, one transaction after the other."""

    def __init__(
        self,
        around: Around,
        gateways: Gateways[RemotingGateway],
        name: str,
        *,
        group: str = PAYERS,
    ) -> None:
        """`group`: of producers."""
        self._around = around
        self._name = name
        self._group = group
        self._client = RemotingClient(around, gateways, name, producing=group)
        self._client.on_told[RequestCode.CHECK_TRANSACTION_STATE] = self._asked_about
        self._answering: dict[asyncio.Task[None], None] = {}
        self._numbers = 0

    async def close(self) -> None:
        await self._client.close()
        await cancel_and_wait(*self._answering)

    async def run(self) -> None:
        """Transact until it is over."""
        around = self._around
        while not around.is_over():
            queues = await self._client.queues(around.topic, for_writing=True)
            if queues:
                await self._transact(around.choice(queues))
            await around.think()

    async def _transact(self, queue: Queue) -> None:
        around = self._around
        self._numbers += 1
        value = value_for(self._name, self._numbers)
        place = await self._begin(value, queue)
        if place is None or around.happens(_LEFT_SHARE):
            return
        await self._end(value, queue.group, place)
        if around.happens(_AGAIN_SHARE):
            await self._end(value, queue.group, place)

    async def _begin(self, value: str, queue: Queue) -> int | None:
        """Send the half, once: clients do not repeat it. Its place; None: not begun."""
        around = self._around
        body = make_body(value, around.whole(8, around.body_bytes_max))
        properties = {
            "UNIQ_KEY": value,
            "TRAN_MSG": "true",
            "PGROUP": self._group,
            "CHECK_IMMUNITY_TIME_IN_SECONDS": str(around.choice((0, 1))),
        }
        fields = send_fields(
            queue,
            properties_text(properties).decode(),
            producer_group=self._group,
            is_short=True,
            sys_flag=TRANSACTION_PREPARED,
        )
        with beginning(around, value, body, producer_group=self._group) as asking:
            try:
                answer = await self._client.ask(
                    queue.group, RequestCode.SEND_MESSAGE_V2, fields, body
                )
            except PacelineError as error:
                asking.raised(error)
                return None
            failure = error_of(answer)
            if failure is not None:
                asking.raised(failure)
                return None
            asking.ok(group=queue.group)
            assert answer.fields["transactionId"] == value, answer.fields
            return int(answer.fields["msgId"][-16:], 16)

    async def _end(self, value: str, group: str, place: int, *, is_check: bool = False) -> None:
        """Commit or roll back."""
        around = self._around
        is_commit = is_committed(value)
        fields = {
            "producerGroup": self._group,
            "tranStateTableOffset": 0,
            "commitLogOffset": place,
            "commitOrRollback": TRANSACTION_COMMIT if is_commit else TRANSACTION_ROLLBACK,
            "fromTransactionCheck": str(is_check).lower(),
            "msgId": value,
            "transactionId": value,
        }
        if around.happens(_ONEWAY_SHARE):
            with around.recorder.asking(
                EndTransaction, client=around.client, value=value, is_commit=is_commit
            ) as asking:
                self._client.tell(group, RequestCode.END_TRANSACTION, fields)
                asking.unknown(ONEWAY)
            return

        async def ask() -> PacelineError | None:
            try:
                answer = await self._client.ask(group, RequestCode.END_TRANSACTION, fields)
            except PacelineError as error:
                return error
            return error_of(answer)

        await end(around, value, ask)

    def _asked_about(self, command: Command, group: str) -> None:
        """39: the half is in the body, and its place in the header."""
        [(half, _)] = decode_messages(bytes(command.body))
        value = asked_about(self._around, half.body)
        place = int(command.fields["commitLogOffset"])
        ending = spawn(
            self._end(value, group, place, is_check=True), name=f"{self._client.name}-end"
        )
        self._answering[ending] = None
        ending.add_done_callback(lambda done: self._answering.pop(done, None))
