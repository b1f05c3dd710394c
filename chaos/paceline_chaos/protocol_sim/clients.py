"""Clients of the bed: producers with the real outboxes, members of consumer groups, plain readers.

Each has at most one connection (a `Door`), tries brokers by what it believes of the cluster, gives
up what is not answered in time, and enters everything it asked into the history.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from crc32c import crc32c

from paceline.errors import (
    InSyncReplicasNotEnoughError,
    NotMasterError,
    OutcomeUnknownError,
    OverloadedError,
    PacelineError,
)
from paceline.net.backoff import Backoff, Verdict
from paceline.producer.batch import Batch
from paceline.producer.queue_buffer import QueueBuffer
from paceline.queues import QueueKey
from paceline.records.decode import BatchView
from paceline.types import QueueId, ReplicaId
from paceline.wire.stream import (
    PRODUCE_FLAG_DUPLICATE,
    PRODUCE_FLAG_OFFSET_UNKNOWN,
    PRODUCE_FLAG_UNCONFIRMED,
    FetchCode,
    FetchQueue,
    ProduceAnswer,
)
from paceline_chaos.history.model import Outcome, Pull, Queue, Seen, Send
from paceline_chaos.history.recorder import Asking
from paceline_chaos.protocol_sim.clock import UNIX_MS
from paceline_chaos.protocol_sim.controllers import GROUP
from paceline_chaos.protocol_sim.doors import Answer, Door, Fetch, FetchAnswer, Produce, Request
from paceline_chaos.protocol_sim.node import Node

if TYPE_CHECKING:
    from paceline_chaos.protocol_sim.scene import Scene

TOPIC = "orders"
QUEUES = 2
BATCH_BYTES_MAX = 600
FETCH_BYTES_MAX = 2000

Heard = Callable[[Answer | None, str], None]
"""Called with the answer and who gave it; None = the connection was lost, or the time is over."""


def named(queue: int) -> Queue:
    """A queue of the bed's one topic, as histories name it."""
    return Queue(TOPIC, GROUP, queue)


class Client:
    """One connection, requests under way, and whom to ask."""

    def __init__(self, world: "Scene", name: str) -> None:
        self.world = world
        self.name = name
        self.door: Door | None = None
        self.waiting: dict[int, tuple[int, Heard]] = {}
        self.not_before_us = 0
        self._epoch_seen = 0
        self._master: ReplicaId | None = None
        """As the newest view says that has reached this client."""
        self.timeout_us = world.dice.one_of([500_000, 1_500_000, 4_000_000])
        self._backoff = Backoff(world.dice.random)

    def act(self) -> None:
        """One step of its own accord."""
        raise NotImplementedError

    def step(self) -> None:
        """Give up what takes too long, then act unless it is backing off."""
        now_us = self.world.clock.now_us
        if self.waiting and now_us > next(iter(self.waiting.values()))[0] + self.timeout_us:
            assert self.door is not None
            self.door.leave()
            self.lost()
        elif now_us >= self.not_before_us:
            self.act()

    def connect(self) -> bool:
        """Whether a connection stands, or could be opened to the broker chosen now."""
        if self.door is not None:
            return True
        node = self.choose_node()
        if node is None or not node.is_up or self.world.is_out_of_reach(self.name, node):
            self.back_off()
            return False
        self.door = Door(self, node)
        self.world.doors.append(self.door)
        return True

    def ask(self, request: Request, heard: Heard) -> None:
        """Send a request over the connection that stands."""
        assert self.door is not None, self.name
        number = self.door.ask(request)
        self.waiting[number] = (self.world.clock.now_us, heard)

    def choose_node(self) -> Node | None:
        """Mostly the master of the newest view, sometimes what an older one said."""
        world = self.world
        group = world.controllers.group
        if world.dice.happens(0.1):
            return world.dice.one_of(world.nodes)
        if group is not None and self.name not in world.cut_clients:
            self._master = group.master
        return None if self._master is None else world.node_of(self._master)

    def back_off(self) -> None:
        wait_us = int(self._backoff.next_ms() * 1000)
        self.not_before_us = self.world.clock.now_us + wait_us

    def turn_away(self) -> None:
        """This broker is the wrong one; only once nothing is under way to it."""
        if self.door is not None and not self.waiting:
            self.door.leave()
            self.door = None

    # -- Asker

    def answered(self, number: int, answer: Answer, node: str) -> None:
        _, heard = self.waiting.pop(number)
        if self._is_old(answer):
            heard(None, node)
            return
        if not isinstance(answer, PacelineError):
            self._backoff.reset()
        heard(answer, node)
        if isinstance(answer, NotMasterError):
            self.back_off()
            self.turn_away()

    def _is_old(self, answer: Answer) -> bool:
        """Of an epoch below one that this client has heard of: it may not be true any more."""
        if isinstance(answer, ProduceAnswer):
            epoch = answer.master_epoch
        elif isinstance(answer, dict):
            epoch = answer["epoch"]
        else:
            return False
        self._epoch_seen = max(self._epoch_seen, epoch)
        return epoch < self._epoch_seen

    def lost(self) -> None:
        waiting, self.waiting = self.waiting, {}
        self.door = None
        for _, heard in waiting.values():
            heard(None, "")
        self.back_off()


class ProducerClient(Client):
    """One producer object: an outbox for each queue, batches in flight, retries."""

    def __init__(self, world: "Scene", name: str, topic_id: int) -> None:
        super().__init__(world, name)
        dice = world.dice
        self._in_flight_max = dice.one_of([1, 2, 5])
        self._delivery_s = dice.one_of([2.0, 6.0, 20.0])
        self._boxes = [
            QueueBuffer(
                QueueKey(topic_id, GROUP, QueueId(queue)),  # type: ignore[arg-type]
                lambda: int.from_bytes(dice.random.token(8), "little") | 1,
            )
            for queue in range(QUEUES)
        ]
        self._count = 0

    def act(self) -> None:
        dice = self.world.dice
        now_s = self.world.clock.now_us / 1_000_000
        box = dice.one_of(self._boxes)
        if len(box.unsent) + len(box.pending) < 4 and not self.world.is_over:
            for _ in range(1 + dice.below(3)):
                self._create(box, now_s)
        for each in self._boxes:
            epoch = each.producer_epoch
            each.expire(now_s)
            self._settle(each, epoch)
            self._send(each)

    @property
    def is_idle(self) -> bool:
        return all(box.is_idle for box in self._boxes)

    def _create(self, box: QueueBuffer, now_s: float) -> None:
        self._count += 1
        value = f"{self.name}-{self._count}"
        body = f"{value} ".encode() + bytes(self.world.dice.below(150))
        key = f"k{box.queue.queue_id}"
        asking = self.world.recorder.asking(
            Send,
            client=self.name,
            topic=TOPIC,
            key=key,
            value=value,
            crc=crc32c(body),
            session=self.name,
        )
        born = UNIX_MS + self.world.clock.now_ms
        batch = box.open_batch(
            len(body) + 64,
            BATCH_BYTES_MAX,
            deadline=now_s + self._delivery_s,
            born_unix_ms=born,
        )
        batch.add(body, key, None, None, born)
        batch.waiters.append(asking)

    def _send(self, box: QueueBuffer) -> None:
        while box.can_take(self._in_flight_max):
            if not self.connect():
                return
            batch = box.take(self._in_flight_max)
            if batch is None:
                return
            assert batch.encoded is not None
            self.ask(Produce(batch.encoded), self._heard_of(box, batch))

    def _heard_of(self, box: QueueBuffer, batch: Batch) -> Heard:
        attempt = batch.attempt

        def heard(answer: Answer | None, node: str) -> None:
            if not batch.is_in_flight or batch.attempt != attempt:
                return  # it was given up meanwhile
            epoch = box.producer_epoch
            if isinstance(answer, ProduceAnswer):
                box.acknowledged(batch, answer)
            else:
                assert answer is None or isinstance(answer, PacelineError), answer
                error = OutcomeUnknownError("the connection was lost") if answer is None else answer
                self._refused(box, batch, error)
            self._settle(box, epoch, node)

        return heard

    def _refused(self, box: QueueBuffer, batch: Batch, error: PacelineError) -> None:
        saw = self.world.coverage.saw
        if isinstance(error, InSyncReplicasNotEnoughError):
            saw("sends_refused_set")
        elif isinstance(error, OverloadedError):
            saw("sends_refused_overload")
        if box.refused(batch, error) is Verdict.UNKNOWN:
            saw("attempts_unknown")
        self.back_off()

    def _settle(self, box: QueueBuffer, epoch_before: int, node: str = "") -> None:
        if box.producer_epoch != epoch_before:
            self.world.coverage.saw("producer_epochs_raised")
        for batch in box.drain_settled():
            if batch.answer is not None:
                self._stored(box, batch.waiters, batch.answer, node)
                continue
            assert batch.error is not None
            for asking in batch.waiters:
                entry = asking.raised(batch.error)
                is_fail = entry.outcome is Outcome.FAIL
                self.world.coverage.saw("sends_failed" if is_fail else "sends_unknown")

    def _stored(
        self, box: QueueBuffer, askings: list[Asking[Send]], answer: ProduceAnswer, node: str
    ) -> None:
        saw = self.world.coverage.saw
        is_duplicate = bool(answer.flags & PRODUCE_FLAG_DUPLICATE)
        is_offset_known = not answer.flags & PRODUCE_FLAG_OFFSET_UNKNOWN
        saw("sends_acknowledged", len(askings))
        if is_duplicate:
            saw("batches_deduplicated")
        if answer.flags & PRODUCE_FLAG_UNCONFIRMED:
            saw("unconfirmed_answers", len(askings))
        for index, asking in enumerate(askings):
            asking.ok(
                queue=named(box.queue.queue_id),
                offset=answer.base_queue_offset + index if is_offset_known else -1,
                epoch=answer.master_epoch,
                is_duplicate=is_duplicate,
                is_confirmed=not answer.flags & PRODUCE_FLAG_UNCONFIRMED,
                node=node,
            )


class Reader(Client):
    """Reads queues from any broker, one assignment after another."""

    def __init__(self, world: "Scene", name: str, topic_id: int) -> None:
        super().__init__(world, name)
        self.topic_id = topic_id
        self.fetch_bytes_max = FETCH_BYTES_MAX
        self._begin()

    def _begin(self) -> None:
        self.queue = self.world.dice.below(QUEUES)
        self.offset = 0
        self.assignment = f"{self.name}-{self.world.clock.now_us}"

    def choose_node(self) -> Node | None:
        return self.world.dice.one_of(self.world.nodes)

    def act(self) -> None:
        if self.waiting:
            return
        dice = self.world.dice
        if dice.happens(0.02):
            self._begin()
        if dice.happens(0.1):
            self.turn_away()
        if self.connect():
            self.pull(lambda messages: None)

    def pull(self, got: Callable[[tuple[Seen, ...]], None]) -> None:
        """Read on from `offset`; `got` hears of what came, if it was an answer."""
        offset = self.offset
        asked = self.world.recorder.asking(
            Pull,
            client=self.name,
            queue=named(self.queue),
            offset=offset,
            assignment=self.assignment,
        )

        def heard(answer: Answer | None, node: str) -> None:
            messages = self._pulled(asked, offset, answer, node)
            if messages is not None:
                if messages:
                    self.offset = messages[-1].offset + 1
                got(messages)

        fetch = FetchQueue(self.topic_id, self.queue, offset, self.fetch_bytes_max)
        self.ask(Fetch(fetch), heard)

    def _pulled(
        self, asked: Asking[Pull], offset: int, answer: Answer | None, node: str
    ) -> tuple[Seen, ...] | None:
        if not isinstance(answer, FetchAnswer):
            if isinstance(answer, PacelineError):
                asked.raised(answer, node=node)
            else:
                asked.unknown("LOST")
            return None
        part, content = answer
        if part.code != FetchCode.OK:
            is_waiting = part.code == FetchCode.NOT_YET_AVAILABLE
            if is_waiting:
                self.world.coverage.saw("fetches_waiting")
            if part.code == FetchCode.OFFSET_OUT_OF_RANGE and part.start > offset:
                self.offset = part.start  # deleted
            asked.fail(FetchCode(part.code).name, node=node)
            self.back_off()
            self.turn_away()
            return None
        is_master = self.world.node_named(node).mastership is not None
        self.world.coverage.saw("fetches_master" if is_master else "fetches_replica")
        messages = tuple(seen for seen in read_batches(content) if seen.offset >= offset)
        asked.ok(messages=messages, start=part.start, end=part.end, node=node)
        if not messages:
            self.back_off()
        return messages


def read_batches(content: bytes) -> list[Seen]:
    """The messages of whole batches, as a client sees them. Raises CorruptLogError."""
    found: list[Seen] = []
    at = 0
    while at < len(content):
        batch = BatchView(content, at)
        batch.verify()
        offset = batch.header.base_queue_offset
        for body in batch.bodies():
            found.append(Seen(offset, body.partition(b" ")[0].decode(), crc32c(body)))
            offset += 1
        at += batch.header.size_bytes
    return found
