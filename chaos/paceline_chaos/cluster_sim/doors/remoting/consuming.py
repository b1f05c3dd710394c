"""Members of a group that consume concurrently (34, 38, 40, 36): each shares out the queues itself.

A member asks who else is there, gives all queues to the members in their order, and pulls those
that are its own: as RocketMQ's client library does (its strategy AVG). What it fails on it sends
back; where that fails it tries the message again, and the queue's offset waits.
"""

import asyncio
from collections.abc import Sequence

import orjson

from paceline.errors import PacelineError
from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline.wire.names import retry_topic
from paceline_chaos.cluster_sim.bodies import crc_of
from paceline_chaos.cluster_sim.doors.gateways import Gateways
from paceline_chaos.cluster_sim.doors.remoting.client import (
    Consuming,
    RemotingClient,
    error_of,
)
from paceline_chaos.cluster_sim.doors.remoting.gateway import RemotingGateway
from paceline_chaos.cluster_sim.doors.remoting.pulling import Puller
from paceline_chaos.cluster_sim.jobs.around import Around
from paceline_chaos.cluster_sim.jobs.consuming import RETRIES_MAX
from paceline_chaos.cluster_sim.jobs.reading import seen
from paceline_chaos.history.model import Deliver, Queue
from paceline_gateway.remoting.codec.codes import RequestCode, ResponseCode
from paceline_gateway.remoting.codec.frames import Command
from paceline_gateway.remoting.codec.store_format import Stored

GROUP = "remoting-1"
_REBALANCE_S = 0.5
_COMMIT_MS = 300
_POISON_ONE_IN = 61
_FAIL_SHARE, _SLOW_SHARE = 0.01, 0.2
_PROCESS_MS_MAX = 20.0
_LEVEL = 1
_AGAIN_MS = 300.0


class RemotingConsumer:
    """One member."""

    def __init__(
        self,
        around: Around,
        gateways: Gateways[RemotingGateway],
        name: str,
        *,
        group: str = GROUP,
    ) -> None:
        self._around = around
        self._name = name
        self._group = group
        self._topics = (around.topic, retry_topic(group))
        about = Consuming(group, self._topics)
        self._client = RemotingClient(around, gateways, name, consuming=about)
        self._client.on_told[RequestCode.NOTIFY_CONSUMER_IDS_CHANGED] = self._told
        self._has_news = asyncio.Event()
        self._owned: dict[Queue, asyncio.Task[None]] = {}
        self._assignments = 0

    async def close(self) -> None:
        await cancel_and_wait(*self._owned.values())
        await self._client.close()

    async def run(self) -> None:
        """Look whose the queues are, until it is over."""
        while not self._around.is_over():
            await self._rebalance()
            self._has_news.clear()
            try:
                async with asyncio.timeout(_REBALANCE_S):
                    await self._has_news.wait()
            except TimeoutError:
                pass  # time to look all the same
        await asyncio.gather(*self._owned.values())

    def _told(self, command: Command, group: str) -> None:
        """40."""
        self._has_news.set()

    # -- whose a queue is --------------------------------------------------------------------------

    async def _rebalance(self) -> None:
        for topic in self._topics:
            queues = await self._client.queues(topic)
            members = await self._members(queues)
            if self._name not in members:
                continue  # nobody says, or has heard of this one: it goes on with what it has
            mine = share(queues, members, self._name)
            for queue in [each for each in self._owned if each.topic == topic]:
                if queue not in mine:
                    await cancel_and_wait(self._owned.pop(queue))
            for queue in mine:
                if queue not in self._owned or self._owned[queue].done():
                    self._owned[queue] = spawn(self._consume(queue), name=f"{self._name}-consumes")

    async def _members(self, queues: Sequence[Queue]) -> list[str]:
        if not queues:
            return []
        group = self._around.choice(queues).group
        fields = {"consumerGroup": self._group}
        try:
            answer = await self._client.ask(group, RequestCode.GET_CONSUMER_LIST_BY_GROUP, fields)
        except PacelineError:
            return []
        if answer.code != ResponseCode.SUCCESS:
            return []
        found: list[str] = orjson.loads(bytes(answer.body))["consumerIdList"]
        return found

    # -- one queue ---------------------------------------------------------------------------------

    async def _consume(self, queue: Queue) -> None:
        """Pull and process until it is over; where nobody answers, it is begun again later."""
        around = self._around
        self._assignments += 1
        puller = Puller(self._client, self._group, queue, f"{self._name}/{self._assignments}")
        offset = await puller.committed()
        done = committed = offset or 0
        last_ms = around.clock.monotonic_ms()
        try:
            while offset is not None and not around.is_over():
                pulled = await puller.pull(offset, done=done)
                if pulled is None:
                    return
                for message in pulled.messages:
                    if not await self._process(queue, message):
                        return
                    done = message.queue_offset + 1
                done = max(done, pulled.next_offset)
                offset = pulled.next_offset
                if pulled.has_moved:
                    return
                now_ms = around.clock.monotonic_ms()
                if now_ms - last_ms >= _COMMIT_MS and done > committed:
                    puller.commit(done)
                    last_ms, committed = now_ms, done
        finally:
            if done > committed:
                puller.commit(done)

    async def _process(self, queue: Queue, message: Stored) -> bool:
        """Until it has worked, or is sent back; False: it is over before."""
        around = self._around
        while not around.is_over():
            with around.recorder.asking(
                Deliver,
                client=around.client,
                consumer_group=self._group,
                member=self._name,
                queue=queue,
                message=seen(message.queue_offset, message.body),
            ) as asking:
                if around.happens(_SLOW_SHARE):
                    await pause(around.random.uniform(0, _PROCESS_MS_MAX))
                is_poison = crc_of(message.body) % _POISON_ONE_IN == 0
                if not is_poison and not around.happens(_FAIL_SHARE):
                    asking.ok()
                    return True
                asking.unknown("LISTENER_FAILED")
            if await self._send_back(queue, message):
                return True
            await pause(_AGAIN_MS)
        return False

    async def _send_back(self, queue: Queue, message: Stored) -> bool:
        """36; whether nothing is left to do. What retention has deleted meanwhile comes no more."""
        fields = {
            "group": self._group,
            "offset": message.physical_offset,
            "delayLevel": _LEVEL,
            "originMsgId": message.properties["UNIQ_KEY"],
            "originTopic": queue.topic,
            "unitMode": "false",
            "maxReconsumeTimes": RETRIES_MAX,
        }
        try:
            answer = await self._client.ask(queue.group, RequestCode.CONSUMER_SEND_MSG_BACK, fields)
        except PacelineError:
            return False
        return answer.code == ResponseCode.QUERY_NOT_FOUND or error_of(answer) is None


def share(queues: Sequence[Queue], members: Sequence[str], mine: str) -> list[Queue]:
    """Those of one member: the queues in order, in runs of about equal length."""
    at = sorted(members).index(mine)
    size, rest = divmod(len(queues), len(members))
    first = at * size + min(at, rest)
    return list(queues[first : first + size + (at < rest)])
