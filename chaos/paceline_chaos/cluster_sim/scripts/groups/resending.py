"""A group is reset, and a message that it had sent back is sent back once more (R28, R34).

A record is made into a retry once, but a reset allows it anew: the message is meant to be consumed
again, and may fail again. A checkpoint notes the reset, and all servers die behind it: whoever
restores it must know of the reset, or takes the second failure for a repetition of the first.
"""

from contextlib import suppress
from dataclasses import dataclass

from paceline.consumer.push import PushConsumer, PushSettings
from paceline.consumer.settings.push import ConsumeLater
from paceline.errors import PacelineError
from paceline.message import ReceivedMessage
from paceline.net.group_links import GroupLinks
from paceline.wire import properties as names
from paceline_chaos.cluster_sim.all_ack.questions import fell_silent, unequal_logs, unseen
from paceline_chaos.cluster_sim.jobs.around import Around
from paceline_chaos.cluster_sim.jobs.moving import reset_group
from paceline_chaos.cluster_sim.run import Result
from paceline_chaos.cluster_sim.script import GROUP, Director, Steps
from paceline_chaos.cluster_sim.scripts.cluster.waiting import all_checkpointed
from paceline_chaos.history.model import Queue

FAILERS = "fails-once-a-life"
_DEAD_MS = 300
_SHORTEST_LEVEL = 1


@dataclass(slots=True)
class _Member:
    """One member that fails on message 0 of queue 0, each time that it comes from there."""

    failures: int = 0
    retries: int = 0
    """It came from the retry topic, and was processed."""
    is_reset_wanted: bool = False
    is_reset: bool = False
    may_go_on: bool = False

    async def run(self, around: Around) -> None:
        cluster = around.cluster()
        links = GroupLinks(cluster)
        consumer = PushConsumer(
            cluster,
            group=FAILERS,
            topics=[around.topic],
            listener=self._listen,
            settings=PushSettings(start="first", commit_interval_ms=200),
            client_id=FAILERS,
            disk=around.disk,
        )
        try:
            async with consumer:
                while not around.is_over():
                    if self.is_reset_wanted and not self.is_reset:
                        consumer.pause()
                        with suppress(PacelineError):  # another try follows
                            await reset_group(links, FAILERS, Queue(around.topic, GROUP, 0), 0)
                            self.is_reset = True
                    if self.may_go_on:
                        consumer.resume()
                    await around.think()
        finally:
            await links.close()
            await cluster.close()

    async def _listen(self, message: ReceivedMessage) -> None:
        is_retry = names.REAL_TOPIC in message.properties
        if is_retry:
            self.retries += 1
        elif (message.queue_id, message.queue_offset) == (0, 0):
            self.failures += 1
            raise ConsumeLater(delay_level=_SHORTEST_LEVEL)


def sent_back_again(d: Director) -> Steps:
    """It fails, comes again and is processed; after a reset and restarts the same once more."""
    member = _Member()
    yield d.is_whole
    d.stage.begin_tool(member.run)
    yield lambda: member.retries == 1
    d.saw("retries")
    member.is_reset_wanted = True
    yield lambda: member.is_reset
    d.expect(member.failures == 1, "it came again before the servers died: nothing is proved")
    yield all_checkpointed(d)
    d.kill(*d.running, for_ms=_DEAD_MS)
    yield lambda: d.stage.master(GROUP) is None
    yield d.is_whole
    member.may_go_on = True
    yield lambda: member.failures == 2
    yield lambda: member.retries == 2
    d.saw("retries")
    d.mark("after")
    yield d.pass_ms(500)


def came_twice(result: Result) -> list[str]:
    return [
        *unseen(result, retries=2),
        *fell_silent(result, since="after"),
        *unequal_logs(result),
    ]
