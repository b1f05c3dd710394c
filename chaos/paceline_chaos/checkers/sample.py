"""Histories of a broker that makes no mistake: to measure the checkers and to corrupt in tests.

A toy: one group of three replicas, one log, each operation takes effect in one moment somewhere
between asking and answer. Masters change, replicas learn of confirm late, some sends have unknown
outcomes, consumers commit, locks go round. It shares no code with the product or the beds.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from paceline.platform.runtime import SeededRandom
from paceline_chaos.history.model import (
    Commit,
    ControllerDump,
    CreateTopic,
    Decision,
    Deliver,
    DescribeTopic,
    Event,
    FaultEvent,
    History,
    Lock,
    Outcome,
    Phase,
    Probe,
    Pull,
    QueryOffset,
    QueryRange,
    Queue,
    ReplicaDump,
    Seen,
    Send,
    StoredBatch,
    Unlock,
)

T = TypeVar("T")
GROUP = "g1"
REPLICAS = {1: "g1-b1", 2: "g1-b2", 3: "g1-b3"}
STEP_US = 1_000
HEADER_BYTES = 96
CLIENTS = 4
LEASE_MS = 2_000


class Sample:
    """Makes one history, step by step."""

    def __init__(self, seed: int, *, queues: int = 2, burst_max: int = 4) -> None:
        self._random = SeededRandom(f"sample-{seed}")
        self._burst_max = burst_max
        self._queues = [Queue("orders", GROUP, queue) for queue in range(queues)]
        self._made: list[tuple[int, type[Event], dict[str, Any]]] = []
        self._now_us = 10_000
        self._batches: list[StoredBatch] = []
        self._rows: dict[Queue, list[tuple[Seen, int]]] = {queue: [] for queue in self._queues}
        """Messages of each queue, each with the end of its batch."""
        self._position = 0
        self._epoch = 0
        self._set_epoch = 0
        self._index = 0
        self._master = 0
        self._confirms = dict.fromkeys(REPLICAS, 0)
        self._numbers: defaultdict[str, int] = defaultdict(int)
        self._asked: defaultdict[str, int] = defaultdict(int)
        self._positions: defaultdict[tuple[str, Queue], int] = defaultdict(int)
        self._committed: dict[Queue, int] = {}
        self._delivered: defaultdict[Queue, int] = defaultdict(int)
        self._topics: dict[str, int] = {}

    def run(self, steps: int) -> History:
        """The history after so many steps of load, healing and drain."""
        self._make(Phase, at_us=0, name="load")
        for replica in REPLICAS:
            self._decide("replica_registered", replica=replica, incarnation=1)
        self._elect(1, "first")
        self._probe()
        for step in range(steps):
            self._now_us += STEP_US
            self._step(step, steps)
        self._drain()
        entries = [
            kind(number=number, **members)
            for number, (_, kind, members) in enumerate(sorted(self._made, key=lambda one: one[0]))
        ]
        world = {"bed": "sample", "durability": "fsync", "min_in_sync_replicas": 2}
        return History(world=world, entries=entries)  # type: ignore[arg-type]  # kinds are Entry

    def _whole(self, low: int, high: int) -> int:
        return min(high, low + int(self._random.uniform(0, high - low + 1)))

    def _choice(self, things: Sequence[T]) -> T:
        return things[self._whole(0, len(things) - 1)]

    def _step(self, step: int, steps: int) -> None:
        if step == steps * 4 // 5:
            self._make(Phase, at_us=self._now_us, name="heal")
        if step % 100 == 50:
            self._probe()
        if step % max(400, steps // 5) == 399 and step < steps // 2:
            self._fail_over()
        what = self._random.uniform(0, 1)
        if what < 0.45:
            self._send()
        elif what < 0.70:
            self._pull()
        elif what < 0.80:
            self._consume()
        elif what < 0.85:
            self._query()
        elif what < 0.90:
            self._locked()
        elif what < 0.93:
            self._topic()
        else:
            replica = self._choice(list(REPLICAS))
            self._confirms[replica] = self._position

    # -- entries ----------------------------------------------------------------------------------

    def _make(self, kind: type[Event], /, **members: Any) -> None:
        at_us = members.get("at_us", members.get("answered_us"))
        assert at_us is not None
        self._made.append((at_us, kind, members))

    def _times(self, client: str, *, is_unknown: bool = False) -> dict[str, Any]:
        """Asked before now and answered after; a client's questions are asked one by one."""
        asked_us = max(self._now_us - self._whole(1, 5_000), self._asked[client] + 1)
        self._asked[client] = asked_us
        answered_us = self._now_us + self._whole(1, 5_000)
        outcome = Outcome.UNKNOWN if is_unknown else Outcome.OK
        return {
            "client": client,
            "asked_us": asked_us,
            "answered_us": answered_us,
            "outcome": outcome,
            "error": "OUTCOME_UNKNOWN" if is_unknown else None,
        }

    def _alone(self, client: str) -> dict[str, Any]:
        """As `_times`, and overlapping with nothing: answered before the next step."""
        asked_us = max(self._now_us - 300, self._asked[client] + 1)
        self._asked[client] = asked_us
        return {
            "client": client,
            "asked_us": asked_us,
            "answered_us": self._now_us + 300,
            "outcome": Outcome.OK,
        }

    # -- the log ----------------------------------------------------------------------------------

    def _append(self, kind: str, queue: Queue | None, messages: tuple[tuple[str, int], ...]) -> int:
        size = HEADER_BYTES + 40 * len(messages)
        base = len(self._rows[queue]) if queue is not None else 0
        self._batches.append(
            StoredBatch(
                position=self._position,
                size=size,
                epoch=self._epoch,
                kind=kind,
                crc=self._position * 2_654_435_761 % 2**32,
                queue=queue,
                base_offset=base,
                messages=messages,
            )
        )
        self._position += size
        if queue is not None:
            for index, (value, crc) in enumerate(messages):
                self._rows[queue].append((Seen(base + index, value, crc), self._position))
        self._confirms[self._master] = self._position
        return base

    def _send(self) -> None:
        client = f"c{self._whole(1, CLIENTS)}"
        fate = self._random.uniform(0, 1)
        is_stored = fate > 0.03
        count = self._whole(1, self._burst_max)
        queue = self._choice(self._queues)
        values = []
        for _ in range(count):
            self._numbers[client] += 1
            number = self._numbers[client]
            values.append((f"{client}-{number}", (number * 2_246_822_519 + 7) % 2**32))
        base = self._append("NORMAL", queue, tuple(values)) if is_stored else 0
        for index, (value, crc) in enumerate(values):
            members = {
                **self._times(client),
                "topic": queue.topic,
                "key": f"k{queue.queue}",
                "value": value,
                "crc": crc,
                "session": f"{client}/1",
            }
            if fate < 0.015:
                members |= {"outcome": Outcome.FAIL, "error": "NOT_MASTER"}
            elif fate < 0.05:
                members |= {"outcome": Outcome.UNKNOWN, "error": "OUTCOME_UNKNOWN"}
            else:
                is_known = fate > 0.06
                members |= {
                    "queue": queue,
                    "offset": base + index if is_known else -1,
                    "epoch": self._epoch,
                    "is_duplicate": fate < 0.08,
                }
            self._make(Send, **members)

    # -- clients ----------------------------------------------------------------------------------

    def _pull(self, *, client: str = "", queue: Queue | None = None) -> bool:
        client = client or f"r{self._whole(1, CLIENTS)}"
        queue = queue or self._choice(self._queues)
        replica = self._choice(list(REPLICAS))
        offset = self._positions[client, queue]
        rows = []
        end = self._end_at(queue, replica)
        for row, batch_end in self._rows[queue][offset : offset + 50]:
            if batch_end > self._confirms[replica]:
                break
            rows.append(row)
        self._make(
            Pull,
            **self._times(client),
            queue=queue,
            offset=offset,
            assignment=f"{client}/1",
            node=REPLICAS[replica],
            messages=tuple(rows),
            start=0,
            end=end,
        )
        if rows:
            self._positions[client, queue] = rows[-1].offset + 1
        return bool(rows)

    def _end_at(self, queue: Queue, replica: int) -> int:
        """Messages of the queue below the replica's confirm."""
        rows = self._rows[queue]
        low, high = 0, len(rows)
        while low < high:
            middle = (low + high) // 2
            if rows[middle][1] <= self._confirms[replica]:
                low = middle + 1
            else:
                high = middle
        return low

    def _consume(self) -> None:
        queue = self._choice(self._queues)
        offset = self._delivered[queue]
        if offset < len(self._rows[queue]) and self._random.uniform(0, 1) < 0.8:
            self._make(
                Deliver,
                **self._alone("p1"),
                consumer_group="push",
                member="p1",
                queue=queue,
                message=self._rows[queue][offset][0],
            )
            self._delivered[queue] = offset + 1
        elif offset:
            self._committed[queue] = offset
            self._make(
                Commit,
                **self._alone("p1"),
                consumer_group="push",
                member="p1",
                queue=queue,
                offset=offset,
            )

    def _query(self) -> None:
        queue = self._choice(self._queues)
        self._make(
            QueryOffset,
            **self._alone("q1"),
            consumer_group="push",
            queue=queue,
            offset=self._committed.get(queue),
        )
        self._make(
            QueryRange, **self._times("q2"), queue=queue, start=0, end=len(self._rows[queue])
        )

    def _locked(self) -> None:
        """Lock, process one message, unlock: each in a step of its own."""
        member = self._choice(["m1", "m2"])
        queue = self._queues[0]
        self._append("LOCK", None, ())
        token = (self._epoch << 64) + self._position
        common: Mapping[str, Any] = {"consumer_group": "ordered", "member": member, "queue": queue}
        self._make(Lock, **self._alone(member), **common, token=token, lease_ms=LEASE_MS)
        offset = self._positions["ordered", queue]
        if offset < len(self._rows[queue]):
            self._now_us += STEP_US
            message = self._rows[queue][offset][0]
            self._make(Deliver, **self._alone(member), **common, message=message, token=token)
            self._positions["ordered", queue] = offset + 1
            self._now_us += STEP_US
            self._make(Commit, **self._alone(member), **common, offset=offset + 1, token=token)
        self._now_us += STEP_US
        self._make(Unlock, **self._alone(member), **common, token=token)

    def _topic(self) -> None:
        name = f"topic-{self._whole(1, 20)}"
        client = f"a{self._whole(1, 2)}"
        present = self._topics.get(name)
        if self._random.uniform(0, 1) < 0.5:
            self._make(DescribeTopic, **self._times(client), topic=name, topic_id=present)
        elif present is not None:
            failed = {"outcome": Outcome.FAIL, "error": "TOPIC_EXISTS"}
            times = {**self._times(client), **failed}
            self._make(CreateTopic, **times, topic=name, queues={GROUP: 1})
        else:
            is_unknown = self._random.uniform(0, 1) < 0.2
            self._topics[name] = len(self._topics) + 1
            made = None if is_unknown else self._topics[name]
            self._make(
                CreateTopic,
                **self._times(client, is_unknown=is_unknown),
                topic=name,
                queues={GROUP: 1},
                topic_id=made,
            )

    # -- nodes ------------------------------------------------------------------------------------

    def _decide(self, kind: str, /, **members: Any) -> None:
        self._index += 1
        for node in ("ctl-1", "ctl-2"):
            self._make(
                Decision,
                at_us=self._now_us,
                node=node,
                index=self._index,
                kind=kind,
                members={"group": GROUP, **members},
            )

    def _elect(self, replica: int, reason: str) -> None:
        self._epoch += 1
        self._set_epoch += 1
        self._master = replica
        self._decide(
            "master_elected",
            master=replica,
            incarnation=1,
            master_epoch=self._epoch,
            set_epoch=self._set_epoch,
            sync_state_set=[1, 2, 3],
            is_unclean=False,
            reason=reason,
        )
        self._append("EPOCH_START", None, ())

    def _fail_over(self) -> None:
        """The master sleeps, another is elected, the set shrinks and grows again."""
        sleeper = REPLICAS[self._master]
        self._probe()
        self._make(FaultEvent, at_us=self._now_us, kind="pause", target=sleeper, is_begin=True)
        self._now_us += 10 * STEP_US
        self._elect(self._master % 3 + 1, "dead")
        self._make(FaultEvent, at_us=self._now_us, kind="pause", target=sleeper, is_begin=False)
        for members in ([r for r in REPLICAS if REPLICAS[r] != sleeper], [1, 2, 3]):
            self._now_us += STEP_US
            self._set_epoch += 1
            self._decide(
                "set_changed",
                master_epoch=self._epoch,
                set_epoch=self._set_epoch,
                sync_state_set=members,
            )
        self._probe()

    def _probe(self) -> None:
        self._now_us += STEP_US
        for replica, node in REPLICAS.items():
            is_master = replica == self._master
            self._make(
                Probe,
                at_us=self._now_us,
                node=node,
                group=GROUP,
                replica=replica,
                incarnation=1,
                role="master" if is_master else "replica",
                epoch=self._epoch,
                is_open=is_master,
                start=0,
                end=self._position,
                flushed=self._position,
                confirm=self._confirms[replica],
            )

    def _drain(self) -> None:
        self._now_us += 20 * STEP_US
        self._make(Phase, at_us=self._now_us, name="drain")
        self._confirms = dict.fromkeys(REPLICAS, self._position)
        for queue in self._queues:
            is_more = True
            while is_more:
                self._now_us += STEP_US
                is_more = self._pull(client="drain", queue=queue)
        self._now_us += 20 * STEP_US
        self._probe()
        self._make(Phase, at_us=self._now_us, name="end")
        for replica, node in REPLICAS.items():
            log = {
                "node": node,
                "group": GROUP,
                "replica": replica,
                "start": 0,
                "confirm": self._position,
                "end": self._position,
                "batches": tuple(self._batches),
            }
            self._made.append((self._now_us + 1, ReplicaDump, log))
        for node in ("ctl-1", "ctl-2"):
            members = {"node": node, "index": self._index, "digest": "d", "replayed_digest": "d"}
            self._made.append((self._now_us + 2, ControllerDump, members))
