"""What is read when a run has come to rest: every queue once more, and every replica's log.

The dumps are made from the bytes of the logs with the record format alone, not with the indexes
that the product keeps of them.
"""

from crc32c import crc32c

from paceline.records.decode import BatchView
from paceline.records.header import Kind
from paceline_chaos.history.entering import given_up
from paceline_chaos.history.model import ControllerDump, Phase, ReplicaDump, StoredBatch
from paceline_chaos.protocol_sim.clients import QUEUES, Reader, named
from paceline_chaos.protocol_sim.controllers import GROUP
from paceline_chaos.protocol_sim.judge import content
from paceline_chaos.protocol_sim.node import Node
from paceline_chaos.protocol_sim.walk import Walk
from paceline_controller.state import Machine

DRAIN_BYTES_MAX = 1 << 16
PULLS_MAX = 1000


class Drain(Reader):
    """Reads one queue of the master to its end."""

    def __init__(self, world: Walk, topic_id: int, queue: int) -> None:
        super().__init__(world, f"drain-{queue}", topic_id)
        self.queue = queue
        self.fetch_bytes_max = DRAIN_BYTES_MAX
        self.is_at_end = False

    def choose_node(self) -> Node | None:
        return next(node for node in self.world.nodes if node.mastership is not None)

    def read_on(self) -> None:
        def got(messages: tuple[object, ...]) -> None:
            self.is_at_end = not messages

        if self.connect():
            self.pull(got)


def finish(world: Walk, topic_id: int) -> None:
    """Drain, dumps, end: after this the history is whole."""
    world.recorder.add(Phase, name="drain")
    for queue in range(QUEUES):
        drain = Drain(world, topic_id, queue)
        for _ in range(PULLS_MAX):
            if drain.is_at_end:
                break
            drain.read_on()
            world.deliver_all()
        assert drain.is_at_end, f"queue {queue} has no end"
    _end(world)


def give_up(world: Walk) -> None:
    """Nobody leads, so nothing can be drained; everything else is judged as after any run."""
    _end(world)


def _end(world: Walk) -> None:
    world.recorder.close()
    _dump_replicas(world)
    _dump_controllers(world)
    world.recorder.add(Phase, name="end")


def _dump_replicas(world: Walk) -> None:
    batches_of: dict[tuple[int, bytes], tuple[StoredBatch, ...]] = {}  # mostly all logs are one
    for node in world.nodes:
        log = node.log
        stored = content(log, log.start, log.end)
        if (log.start, stored) not in batches_of:
            batches_of[log.start, stored] = _parse(stored, log.start)
        world.recorder.add(
            ReplicaDump,
            node=node.name,
            group=GROUP,
            replica=node.replica_id,
            start=log.start,
            confirm=log.confirm,
            end=log.end,
            batches=batches_of[log.start, stored],
        )


def _parse(stored: bytes, start: int) -> tuple[StoredBatch, ...]:
    found: list[StoredBatch] = []
    at = 0
    while at < len(stored):
        batch = BatchView(stored, at)
        batch.verify()
        header = batch.header
        is_normal = header.kind == Kind.NORMAL
        bodies = batch.bodies() if is_normal else ()
        messages = tuple((body.partition(b" ")[0].decode(), crc32c(body)) for body in bodies)
        found.append(
            StoredBatch(
                position=start + at,
                size=header.size_bytes,
                epoch=header.master_epoch,
                kind=Kind(header.kind).name,
                crc=crc32c(batch.raw),
                queue=named(header.queue_id) if is_normal else None,
                base_offset=header.base_queue_offset,
                messages=messages if is_normal else (),
                log_start=given_up(batch),
            )
        )
        at += header.size_bytes
    return tuple(found)


def _dump_controllers(world: Walk) -> None:
    machine = world.controllers.machine
    again = Machine()
    again.restore(machine.snapshot())
    world.recorder.add(
        ControllerDump,
        node="c1",
        index=world.controllers.index,
        digest=machine.digest(),
        replayed_digest=again.digest(),
    )
