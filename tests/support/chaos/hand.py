"""Histories written by hand: terse calls, one for each entry, with times where they matter."""

from collections.abc import Sequence
from typing import Any

from paceline_chaos.history.basis import Found
from paceline_chaos.history.model import (
    Ack,
    AlterTopic,
    Commit,
    ControllerDump,
    CreateTopic,
    Decision,
    Deliver,
    DescribeTopic,
    Event,
    FaultEvent,
    Find,
    History,
    Lock,
    LogicalQueueDump,
    OrderElection,
    Outcome,
    Phase,
    Pop,
    Probe,
    Pull,
    QueryOffset,
    QueryRange,
    Queue,
    Recall,
    ReplicaDump,
    Resend,
    Seen,
    Send,
    StoredBatch,
    Unlock,
)

Q = Queue("t", "g", 0)
Q2 = Queue("t", "g", 1)
SIZE = 100
"""Bytes of each batch; there is one message in each."""
SECOND = 1_000_000
TICK = 10


def crc_of(value: str) -> int:
    return sum(value.encode())


class Hand:
    """Collects entries. Without `at` an operation takes one tick and follows the one before it."""

    def __init__(self, **world: Any) -> None:
        self.history = History(world={"min_in_sync_replicas": 2, **world})
        self._now_us = 0

    def add(self, kind: type[Event], /, **members: Any) -> None:
        entry = kind(number=len(self.history.entries), **members)
        self.history.entries.append(entry)  # type: ignore[arg-type]  # the kinds are Entry

    def _ask(self, kind: type[Event], client: str, at: Any, /, **members: Any) -> None:
        if at is None:
            self._now_us += 2 * TICK
            at = (self._now_us - TICK, self._now_us)
        self._now_us = max(self._now_us, at[1])
        members.setdefault("outcome", Outcome.OK)
        self.add(kind, client=client, asked_us=at[0], answered_us=at[1], **members)

    def _moment(self, at: int | None) -> int:
        self._now_us = self._now_us + TICK if at is None else max(self._now_us, at)
        return self._now_us if at is None else at

    # -- operations -------------------------------------------------------------------------------

    def send(self, value: str, offset: int | None = None, at: Any = None, **members: Any) -> None:
        """Acknowledged at `offset`, in epoch 1; None: not acknowledged."""
        found: dict[str, Any] = {"topic": "t", "key": None, "crc": crc_of(value)}
        if offset is not None:
            found |= {"queue": Q, "offset": offset, "epoch": 1}
        self._ask(Send, members.pop("client", "c"), at, value=value, **found | members)

    def unknown(self, value: str, at: Any = None, **members: Any) -> None:
        self.send(value, at=at, outcome=Outcome.UNKNOWN, error="OUTCOME_UNKNOWN", **members)

    def failed(self, value: str, at: Any = None) -> None:
        self.send(value, at=at, outcome=Outcome.FAIL, error="NOT_MASTER")

    def delayed(self, value: str, delay_ms: int, at: Any = None, **members: Any) -> None:
        """Acknowledged, to be in its queue later."""
        self.send(value, -1, at, delay_ms=delay_ms, **members)

    def recalled(self, value: str, at: Any = None, **members: Any) -> None:
        self._ask(Recall, "c", at, topic="t", value=value, **members)

    def pull(self, offset: int, values: Sequence[str], at: Any = None, **members: Any) -> None:
        rows = tuple(Seen(offset + i, value, crc_of(value)) for i, value in enumerate(values))
        found: dict[str, Any] = {"queue": Q, "offset": offset, "messages": rows}
        self._ask(Pull, "r", at, **found | members)

    def deliver(self, offset: int, value: str, at: Any = None, **members: Any) -> None:
        found: dict[str, Any] = {"consumer_group": "G", "member": "m", "queue": Q}
        message = Seen(offset, value, crc_of(value))
        self._ask(Deliver, "p", at, message=message, **found | members)

    def commit(self, offset: int, at: Any = None, **members: Any) -> None:
        found: dict[str, Any] = {"consumer_group": "G", "member": "m", "queue": Q}
        self._ask(Commit, "p", at, offset=offset, **found | members)

    def committed(self, offset: int | None, at: Any = None, **members: Any) -> None:
        found: dict[str, Any] = {"consumer_group": "G", "queue": Q}
        self._ask(QueryOffset, "q", at, offset=offset, **found | members)

    def range(self, start: int, end: int, at: Any = None, **members: Any) -> None:
        self._ask(QueryRange, "q", at, queue=Q, start=start, end=end, **members)

    def find(self, by: str, wanted: str, *rows: Found, at: Any = None, **members: Any) -> None:
        """All messages of t that were found so."""
        self._ask(Find, "f", at, topic="t", by=by, wanted=wanted, found=rows, **members)

    def pop(self, member: str, at: Any = None, invisible_ms: int = 10, **members: Any) -> None:
        """Message 0, received."""
        found: dict[str, Any] = {"consumer_group": "G", "member": member, "queue": Q}
        found |= {"message": Seen(0, "a", crc_of("a")), "attempt": 1, "invisible_ms": invisible_ms}
        self._ask(Pop, member, at, **found | members)

    def ack(self, member: str, at: Any = None, **members: Any) -> None:
        """Message 0, acknowledged."""
        found: dict[str, Any] = {"consumer_group": "G", "member": member, "queue": Q, "offset": 0}
        self._ask(Ack, member, at, **found | members)

    def resend(self, at: Any = None, **members: Any) -> None:
        """Dead letter 0 of G."""
        found: dict[str, Any] = {"consumer_group": "G", "queue": Queue("%DLQ%G", "g", 0)}
        self._ask(Resend, "o", at, offset=0, **found | members)

    def lock(self, member: str, token: int, at: Any = None, lease_ms: int = 1_000) -> None:
        found: dict[str, Any] = {"consumer_group": "G", "member": member, "queue": Q}
        entries = self.history.entries
        found["is_renewal"] = any(isinstance(one, Lock) and one.token == token for one in entries)
        self._ask(Lock, member, at, token=token, lease_ms=lease_ms, **found)

    def unlock(self, member: str, token: int, at: Any = None, **members: Any) -> None:
        found = {"consumer_group": "G", "member": member, "queue": Q, "token": token}
        self._ask(Unlock, member, at, **found, **members)

    def create(self, topic: str, topic_id: int | None, at: Any = None, **members: Any) -> None:
        self._ask(CreateTopic, "a", at, topic=topic, queues={"g": 1}, topic_id=topic_id, **members)

    def alter(self, read_queues: int, at: Any = None) -> None:
        self._ask(AlterTopic, "a", at, topic="t", read_queues={"g": read_queues})

    def logical_queue(self, *ends: int, number: int = 0, starts: Sequence[int] = (0, 1)) -> None:
        """Segments `Q`, sealed after so many messages, and `Q2`."""
        queues = (Q, Q2)[: len(ends) + 1]
        found = {"queues": queues, "starts": tuple(starts[: len(queues)]), "ends": ends}
        self.add(LogicalQueueDump, node="c1", logical_queue=number, **found)

    def describe(self, topic: str, topic_id: int | None, at: Any = None) -> None:
        self._ask(DescribeTopic, "d", at, topic=topic, topic_id=topic_id)

    # -- nodes ------------------------------------------------------------------------------------

    def probe(self, replica: int, end: int, at: int | None = None, **members: Any) -> None:
        """Node "b<replica>", a replica of epoch 1 that has flushed and confirmed all it has."""
        found: dict[str, Any] = {
            "node": f"b{replica}",
            "group": "g",
            "replica": replica,
            "incarnation": 1,
            "role": "replica",
            "epoch": 1,
            "is_open": False,
            "start": 0,
            "end": end,
            "flushed": end,
            "confirm": end,
        }
        self.add(Probe, at_us=self._moment(at), **found | members)

    def master(self, replica: int, end: int, at: int | None = None, **members: Any) -> None:
        """A probe of the open master."""
        self.probe(replica, end, at, **{"role": "master", "is_open": True} | members)

    def decide(self, kind: str, at: int | None = None, /, **members: Any) -> None:
        index = members.pop("index", len(self.history.entries))
        node = members.pop("controller", "c1")
        event = {"group": "g", **members}
        moment = self._moment(at)
        self.add(Decision, at_us=moment, node=node, index=index, kind=kind, members=event)

    def elect(self, master: int, epoch: int, members: Sequence[int], **more: Any) -> None:
        found: dict[str, Any] = {"master": master, "incarnation": 1, "master_epoch": epoch}
        at = more.pop("at", None)
        self.decide("master_elected", at, sync_state_set=list(members), **found | more)

    def order(self, winner: int, at: tuple[int, int] | None = None, **members: Any) -> None:
        """The operator orders an unclean election."""
        found = {"group": "g", "replica": winner, "is_unclean": True}
        self._ask(OrderElection, "operator", at, **found | members)

    def change(self, members: Sequence[int], at: int | None = None) -> None:
        self.decide("set_changed", at, sync_state_set=list(members))

    def fault(self, kind: str, target: str, start: int, end: int | None = None) -> None:
        self.add(FaultEvent, at_us=start, kind=kind, target=target, is_begin=True)
        if end is not None:
            self.add(FaultEvent, at_us=end, kind=kind, target=target, is_begin=False)

    def phase(self, name: str, at: int, *broken: str) -> None:
        self.add(Phase, at_us=at, name=name, broken=broken)

    def dump(self, replica: int, values: Sequence[str], **members: Any) -> None:
        """A log of one message in each batch, in `Q`, epoch 1, all confirmed."""
        batches = tuple(
            StoredBatch(
                position=SIZE * index,
                size=SIZE,
                epoch=1,
                kind="NORMAL",
                crc=crc_of(value),
                queue=Q,
                base_offset=index,
                messages=((value, crc_of(value)),),
            )
            for index, value in enumerate(values)
        )
        self.log(replica, batches, **members)

    def log(
        self,
        replica: int,
        batches: Sequence[StoredBatch],
        *,
        is_known: bool = True,
        **members: Any,
    ) -> None:
        """A log of these batches, all confirmed."""
        end = SIZE * len(batches)
        found: dict[str, Any] = {
            "node": f"b{replica}",
            "group": "g",
            "replica": replica if is_known else None,
            "start": 0,
            "confirm": end,
            "end": end,
            "batches": tuple(batches),
        }
        self.add(ReplicaDump, **found | members)

    def controller(self, node: str, index: int, digest: str, replayed: str | None = None) -> None:
        self.add(ControllerDump, node=node, index=index, digest=digest, replayed_digest=replayed)


def acknowledged(number: int, at_us: int, group: str = "g1") -> Send:
    """A message that was acknowledged at `at_us`, a millisecond after it was asked for."""
    return Send(
        number=number,
        client="client-1",
        asked_us=at_us - 1000,
        answered_us=at_us,
        outcome=Outcome.OK,
        topic="orders",
        key=None,
        value=str(number),
        crc=0,
        queue=Queue("orders", group, 0),
        offset=number,
    )
