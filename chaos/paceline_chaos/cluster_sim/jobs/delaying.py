"""The sender of delayed messages: some in bursts, some recalled, all due while the world lasts.

Their values are read by whoever reads the topic. What is due when the clients are to end is waited
for, so that a history knows what became of it (S25).
"""

from functools import partial

from paceline.errors import PacelineError
from paceline.message import Message
from paceline.platform.runtime import pause
from paceline.producer.producer import Producer
from paceline.producer.results import SendResult
from paceline.producer.settings import ProducerSettings
from paceline_chaos.checkers.messages.delays import DELAY_MS_MAX
from paceline_chaos.cluster_sim.bodies import make_body
from paceline_chaos.cluster_sim.jobs.around import CALL_TIMEOUT_MS, Around
from paceline_chaos.cluster_sim.jobs.sending import asking_to_send
from paceline_chaos.history.model import Queue, Recall, Send
from paceline_chaos.history.recorder import Asking

_BURST_MAX = 4
_DELAYS_MS = (1, 40, 300, 1000, 1000, 2500, 6000)
_PAST_MS = (-60_000, -1)
"""Times that are over when the message is sent: it is delivered at once."""
_PAST_SHARE, _FAR_SHARE = 0.1, 0.05
_FAR_MS = (DELAY_MS_MAX - 60_000, DELAY_MS_MAX, DELAY_MS_MAX + 600_000)
"""A minute less than the longest delay that brokers take, that one, and one that they refuse."""
_LEVEL_MS = 1000
"""Of level 1, by which every other message of that delay is sent."""
_RECALLED = 0.3
_SETTINGS = ProducerSettings(
    delivery_timeout_ms=12_000,
    request_timeout_ms=3_500,
    timer_max_delay_sec=DELAY_MS_MAX // 100,  # brokers refuse what is too long
)
_SESSION_MESSAGES = 200


class Delayer:
    """One client that sends messages for later."""

    def __init__(self, around: Around) -> None:
        self._around = around
        self._numbers = 0
        self._sessions = 0

    async def run(self) -> None:
        """Send until it is over, and then until what was sent last has been due."""
        while not self._around.is_over():
            await self._session()
        await pause(max(_DELAYS_MS))

    async def _session(self) -> None:
        around = self._around
        self._sessions += 1
        cluster = around.cluster()
        producer = Producer(cluster, settings=_SETTINGS)
        end = self._numbers + _SESSION_MESSAGES
        async with around.session(partial(producer.close, timeout_ms=0), cluster.close):
            await producer.start()
            while not around.is_over() and self._numbers < end:
                await self._burst(producer)
                await around.think()

    async def _burst(self, producer: Producer) -> None:
        """Some messages in one turn, their outcomes, and perhaps a recall."""
        around = self._around
        asked = [self._begin(producer) for _ in range(around.whole(1, _BURST_MAX))]
        for asking, value, message in asked:
            try:
                result = await producer.send(message)
            except PacelineError as error:
                asking.raised(error)
                continue
            enter_delayed(asking, result)
            if result.recall_handle is not None and around.happens(_RECALLED):
                await pause(around.random.uniform(0, 500))
                await recall(around, producer, value, result.recall_handle)

    def _begin(self, producer: Producer) -> tuple[Asking[Send], str, Message]:
        around = self._around
        self._numbers += 1
        value = f"{around.alias}-later-{self._numbers}"
        body = make_body(value, around.whole(8, around.body_bytes_max))
        delay_ms = around.choice(_DELAYS_MS)
        message = Message(around.topic, body)
        if around.happens(_PAST_SHARE):
            delay_ms = around.choice(_PAST_MS)
            message.delivery_unix_ms = around.clock.unix_ms() + delay_ms
        elif around.happens(_FAR_SHARE):
            delay_ms = message.delay_ms = around.choice(_FAR_MS)
        elif delay_ms == _LEVEL_MS and around.happens(0.5):
            message.delay_level = 1
        else:
            message.delay_ms = delay_ms
        session = f"{around.alias}/later-{self._sessions}"
        asking = asking_to_send(around, value, body, session, delay_ms=delay_ms)
        return asking, value, message


def enter_delayed(asking: Asking[Send], result: SendResult) -> None:
    """A delayed message was taken: it has no offset yet."""
    asking.ok(
        queue=Queue(str(result.topic), str(result.group), int(result.queue_id)),
        offset=-1,
        epoch=int(result.epoch),
        is_duplicate=result.is_duplicate,
        is_confirmed=result.is_confirmed,
    )


async def recall(around: Around, producer: Producer, value: str, handle: str) -> None:
    """Take a message back; the outcome is recorded."""
    with around.recorder.asking(
        Recall, client=around.client, topic=around.topic, value=value
    ) as asking:
        try:
            await producer.recall(around.topic, handle, timeout_ms=CALL_TIMEOUT_MS)
        except PacelineError as error:
            asking.raised(error)
        else:
            asking.ok()
