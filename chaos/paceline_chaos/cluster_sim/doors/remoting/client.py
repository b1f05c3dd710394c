"""A client of RocketMQ's remoting protocol: connections to one gateway, requests, heartbeats.

It gives a request up after 3 s and closes the connection, as RocketMQ's clients do, and goes to
another gateway when its own is gone. It says what it is to all broker groups each second (upstream:
30 s, where no gateway dies every few seconds). Some answers are lost.
"""

import asyncio
import base64
import hmac
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from paceline.errors import BY_CODE, DeadlineError, OutcomeUnknownError, PacelineError
from paceline.net.connect import Credentials
from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline_chaos.cluster_sim.doors.gateways import Gateways
from paceline_chaos.cluster_sim.doors.remoting.gateway import (
    NAME_SERVER,
    Connection,
    NotConnectedError,
    RemotingGateway,
)
from paceline_chaos.cluster_sim.doors.remoting.wire import Way
from paceline_chaos.cluster_sim.doors.who import GatewayRefusesError
from paceline_chaos.cluster_sim.jobs.around import Around
from paceline_chaos.history.model import Queue
from paceline_gateway.remoting.codec.codes import FLAG_ONEWAY, RequestCode, ResponseCode
from paceline_gateway.remoting.codec.frames import BINARY, JSON, Command, encode, take_frames
from paceline_gateway.signatures import ACCESS_KEY, SIGNATURE

DEADLINE_MS = 3_000
"""Of a request; RocketMQ's clients have this by default."""
_BEAT_MS = 1_000.0
_LOST_SHARE = 0.005
"""Requests that are carried out, and whose answers do not come."""
_KINDS: Mapping[str, type[PacelineError]] = {
    **BY_CODE,
    GatewayRefusesError.code: GatewayRefusesError,
}


class RefusedError(PacelineError):
    """An answer that is none of our errors, with its code."""

    is_definite = True


class Consuming(NamedTuple):
    """A consumer group that a client says it is a member of."""

    group: str
    topics: Sequence[str]


class _Link:
    """One connection, and what waits for its answers."""

    def __init__(self, client: "RemotingClient", address: str, group: str | None) -> None:
        """NotConnectedError: nobody listens there."""
        self.group = group
        self._client = client
        self._received = b""
        self._opaque = 0
        self._waiting: dict[int, asyncio.Future[Command]] = {}
        around = client.around
        self.connection: Connection = client.gateway().connect(
            address, around.address, self._arrived, self._ended
        )
        self._to_gateway = Way(around, self.connection.take)

    def ask(self, command: Command) -> "asyncio.Future[Command]":
        """Its answer, or OutcomeUnknownError as the connection ends."""
        self._opaque += 1
        command.opaque = self._opaque
        answer: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        if not command.is_oneway:
            self._waiting[self._opaque] = answer
        self._to_gateway.send(b"".join(encode(command)))
        return answer

    def close(self) -> None:
        self._to_gateway.cut()
        self.connection.close()

    def _arrived(self, data: bytes) -> None:
        self._received += data
        taken = take_frames(self._received)
        assert taken.fault is None, taken.fault
        self._received = self._received[taken.size_bytes :]
        for command in taken.commands:
            if not command.is_answer:
                self._client.told(command, self.group)
                continue
            waiter = self._waiting.pop(command.opaque, None)
            if waiter is not None and not waiter.done():
                waiter.set_result(command)

    def _ended(self) -> None:
        for waiter in self._waiting.values():
            if not waiter.done():
                waiter.set_exception(OutcomeUnknownError("the connection has ended"))


class RemotingClient:
    """Used by one program; `close` when done."""

    def __init__(
        self,
        around: Around,
        gateways: Gateways[RemotingGateway],
        name: str,
        *,
        producing: str = "",
        consuming: Consuming | None = None,
        has_json: bool = False,
    ) -> None:
        """`producing`: its group of producers. `has_json`: its headers are JSON; else they are, or
        are binary, where a code has 16 bits."""
        self.around = around
        self.name = name
        self.on_told: dict[int, Callable[[Command, str], None]] = {}
        """By code of what a gateway asks or tells; with the broker group of the connection."""
        self._gateways = gateways
        self._gateway: RemotingGateway | None = None
        self._links: dict[str | None, _Link] = {}
        self._addresses: dict[str, str] = {}
        """Of broker groups, as routes say."""
        self._serialization = JSON if has_json else around.choice((JSON, BINARY))
        self._heartbeat = _heartbeat(name, producing, consuming)
        self._beating = spawn(self._beat(), name=f"{name}-heartbeat")

    async def close(self) -> None:
        """It goes, and tells nobody."""
        await cancel_and_wait(self._beating)
        self._hang_up()

    def gateway(self) -> RemotingGateway:
        """Where it is; another one if that is gone."""
        if self._gateway is None or self._gateway.is_gone:
            self.leave()
        assert self._gateway is not None
        return self._gateway

    def leave(self) -> None:
        """Go to another gateway."""
        self._hang_up()
        self._gateway = self._gateways.other_than(self._gateway)

    def _hang_up(self) -> None:
        links, self._links = self._links, {}
        for link in links.values():
            link.close()

    def told(self, command: Command, group: str | None) -> None:
        """The gateway asks or tells something by itself."""
        act = self.on_told.get(command.code)
        if act is not None and group is not None:
            act(command, group)

    # -- requests ----------------------------------------------------------------------------------

    def begin(
        self,
        group: str | None,
        code: int,
        fields: Mapping[str, object],
        body: bytes = b"",
        *,
        is_oneway: bool = False,
    ) -> "asyncio.Future[Command]":
        """Send a request to the listener of a broker group, or (None) of the name server; its
        answer, which does not come if it is one-way. NotConnectedError: there is no such
        listener; the
        answer may be OutcomeUnknownError."""
        command = Command(
            code,
            {name: str(value) for name, value in fields.items()},
            body,
            flag=FLAG_ONEWAY if is_oneway else 0,
            language="JAVA",
            serialization=self._serialization,
        )
        self._sign(command)
        return self._link(group).ask(command)

    async def ask(
        self,
        group: str | None,
        code: int,
        fields: Mapping[str, object],
        body: bytes = b"",
        *,
        deadline_ms: int = DEADLINE_MS,
    ) -> Command:
        """The answer to one attempt. NotConnectedError; DeadlineError, OutcomeUnknownError."""
        return await self.answer(group, self.begin(group, code, fields, body), deadline_ms)

    async def answer(
        self, group: str | None, asked: "asyncio.Future[Command]", deadline_ms: int = DEADLINE_MS
    ) -> Command:
        """What `begin` has asked for, or as `ask`."""
        link, is_lost = self._links.get(group), self.around.happens(_LOST_SHARE)
        try:
            async with asyncio.timeout(deadline_ms / 1000):
                found = await asked
                if is_lost:
                    await asyncio.get_running_loop().create_future()
                return found
        except TimeoutError:
            if link is not None and self._links.get(group) is link:
                del self._links[group]
                link.close()
            raise DeadlineError(f"no answer in {deadline_ms} ms") from None

    def tell(
        self, group: str | None, code: int, fields: Mapping[str, object], body: bytes = b""
    ) -> bool:
        """A request that is not answered; whether it was sent."""
        try:
            self.begin(group, code, fields, body, is_oneway=True)
        except NotConnectedError:
            return False
        return True

    def connection(self, group: str) -> Connection | None:
        """To the listener of a broker group, if there is one."""
        link = self._links.get(group)
        return None if link is None or not link.connection.is_open else link.connection

    def _link(self, group: str | None) -> _Link:
        gateway = self.gateway()
        link = self._links.get(group)
        if link is None or not link.connection.is_open:
            address = NAME_SERVER if group is None else self._addresses.get(group)
            if address is None:
                raise NotConnectedError(f"no route has named {group} at {gateway.number}")
            link = self._links[group] = _Link(self, address, group)
        return link

    def _sign(self, command: Command) -> None:
        credentials = self.around.credentials
        if isinstance(credentials, Credentials):
            command.fields[ACCESS_KEY] = credentials.access_key
            text = "".join(command.fields[name] for name in sorted(command.fields))
            signed = text.encode() + bytes(command.body)
            key = credentials.secret_key.encode()
            command.fields[SIGNATURE] = base64.b64encode(hmac.digest(key, signed, "sha1")).decode()

    # -- routes and heartbeats ---------------------------------------------------------------------

    async def queues(self, topic: str, *, for_writing: bool = False) -> list[Queue]:
        """Of a topic, in their order; nothing, if nobody says. What it names is reached then."""
        try:
            answer = await self.ask(None, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        except PacelineError:
            return []
        if answer.code != ResponseCode.SUCCESS:
            return []
        route = orjson.loads(bytes(answer.body))
        for broker in route["brokerDatas"]:
            self._addresses[broker["brokerName"]] = broker["brokerAddrs"]["0"]
        kind = "writeQueueNums" if for_writing else "readQueueNums"
        return sorted(
            Queue(topic, row["brokerName"], number)
            for row in route["queueDatas"]
            for number in range(row[kind])
        )

    async def _beat(self) -> None:
        while True:
            if not self._addresses:
                await self.queues(self.around.topic)
            for group in list(self._addresses):
                try:
                    await self.ask(group, RequestCode.HEART_BEAT, {}, self._heartbeat)
                except PacelineError:
                    continue  # the next one is due in a moment
            await pause(self.around.random.uniform(0.5, 1.0) * _BEAT_MS)


def _heartbeat(name: str, producing: str, consuming: Consuming | None) -> bytes:
    document: dict[str, Any] = {"clientID": name, "producerDataSet": [], "consumerDataSet": []}
    if producing:
        document["producerDataSet"].append({"groupName": producing})
    if consuming is not None:
        document["consumerDataSet"].append(
            {
                "groupName": consuming.group,
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                "subscriptionDataSet": [
                    {"topic": topic, "subString": "*", "expressionType": "TAG"}
                    for topic in consuming.topics
                ],
            }
        )
    return orjson.dumps(document)


def error_of(answer: Command) -> PacelineError | None:
    """What an answer says, as the error that it was made of; None: it went well."""
    if answer.code == ResponseCode.SUCCESS:
        return None
    remark = answer.remark or ""
    kind = _KINDS.get(remark.partition(":")[0])
    if kind is None:
        return RefusedError(f"{answer.code}: {remark}")
    assert kind.is_definite != remark.endswith("(it may have been carried out)"), remark
    error = kind(remark)
    return GatewayRefusesError(remark) if "delegation" in remark else error
