"""Members of consumer groups: locks with fencing tokens, processing in order, commits, resets.

A member does one thing after another for one queue: take the lock, ask where the group stands,
read, process, commit, and give the queue back some time. It processes only while its own clock,
from the moment it asked for the lock, is inside the lease; whatever comes later the token has to
fence.
"""

from typing import TYPE_CHECKING, Any

from paceline.errors import PacelineError
from paceline_chaos.history.model import (
    Commit,
    Deliver,
    Lock,
    QueryOffset,
    QueryRange,
    Seen,
    Unlock,
    token_number,
)
from paceline_chaos.history.recorder import Asking
from paceline_chaos.protocol_sim.clients import QUEUES, Client, Reader, named
from paceline_chaos.protocol_sim.doors import Answer, Call
from paceline_chaos.protocol_sim.node import Node

if TYPE_CHECKING:
    from paceline_chaos.protocol_sim.scene import Scene


class Member(Reader):
    """One member of a group; `is_ordered`: it takes the queue's lock first."""

    def __init__(
        self, world: "Scene", name: str, topic_id: int, *, group: str, is_ordered: bool
    ) -> None:
        self.group = group
        self.is_ordered = is_ordered
        super().__init__(world, name, topic_id)

    def choose_node(self) -> Node | None:
        return Client.choose_node(self)

    def _begin(self) -> None:
        super()._begin()
        self.token: list[int] | None = None
        self.held_until_us = 0
        self.has_position = False
        self.generation = 0
        self.processed: int | None = None

    def act(self) -> None:
        if self.waiting or not self.connect():
            return
        now_us = self.world.clock.now_us
        if self.world.dice.happens(0.02):
            self._begin()  # as if it had been started anew: nothing is given back
        if self.is_ordered and (self.token is None or now_us > self.held_until_us - self._half_us):
            self._lock()
        elif not self.has_position:
            self._ask_position()
        elif self.processed is not None and self.world.dice.happens(0.4):
            self._commit(self.processed)
        else:
            self._act_freely()

    @property
    def _half_us(self) -> int:
        return self.world.lease_ms * 500

    def _act_freely(self) -> None:
        dice = self.world.dice
        if self.token is not None and dice.happens(0.03):
            self._unlock(self.token)
        elif not self.is_ordered and dice.happens(0.02):
            self._commit(dice.below(self.offset + 1), is_reset=True)
        elif dice.happens(0.05):
            self.ask_range()
        else:
            self.pull(self._process)

    def _process(self, messages: tuple[Seen, ...]) -> None:
        for seen in messages:
            if self.token is not None and self.world.clock.now_us > self.held_until_us:
                self._begin()
                return
            self.world.recorder.asking(
                Deliver,
                client=self.name,
                consumer_group=self.group,
                member=self.name,
                queue=named(self.queue),
                message=seen,
                token=None if self.token is None else token_number(self.token),
            ).ok()
            self.processed = seen.offset + 1

    # -- calls

    def _call(self, name: str, asked: Asking[Any], done: Any, **fields: Any) -> None:
        """`done(answer, node)` on success; refusals and losses are entered here."""

        def heard(answer: Answer | None, node: str) -> None:
            if answer is None:
                asked.unknown("LOST")
            elif isinstance(answer, PacelineError):
                asked.raised(answer, node=node)
                self._refused(name, answer)
            else:
                done(answer, node)

        self.ask(Call(name, fields), heard)

    def _refused(self, name: str, error: PacelineError) -> None:
        saw = self.world.coverage.saw
        if error.code in ("LOCK_HELD", "LOCK_FENCED"):
            saw("locks_refused" if name != "commit" else "commits_refused")
            self._begin()
        elif error.code in ("OFFSET_MOVED_BACK", "OFFSET_OUT_OF_RANGE"):
            saw("commits_refused")
            self._begin()
        self.back_off()

    def _row(self, **fields: Any) -> dict[str, Any]:
        return {"topic_id": self.topic_id, "queue": self.queue, **fields}

    def _lock(self) -> None:
        asked_us = self.world.clock.now_us
        lease_ms = self.world.lease_ms
        asked = self.world.recorder.asking(
            Lock,
            client=self.name,
            consumer_group=self.group,
            member=self.name,
            queue=named(self.queue),
            lease_ms=lease_ms,
            is_renewal=self.token is not None,
        )

        def done(answer: Any, node: str) -> None:
            self.world.coverage.saw("locks_granted")
            token = answer["queues"][0]["token"]
            if token != self.token:
                self.has_position, self.processed = False, None
            self.token = token
            self.held_until_us = asked_us + lease_ms * 1000
            asked.ok(token=token_number(token), node=node)

        token = {} if self.token is None else {"token": self.token}
        self._call(
            "lock", asked, done, group=self.group, client_id=self.name, queues=[self._row(**token)]
        )

    def _unlock(self, token: list[int]) -> None:
        asked = self.world.recorder.asking(
            Unlock,
            client=self.name,
            consumer_group=self.group,
            member=self.name,
            queue=named(self.queue),
            token=token_number(token),
        )
        row = self._row(token=token)
        self._begin()

        def done(answer: Any, node: str) -> None:
            asked.ok(node=node)

        self._call("unlock", asked, done, group=self.group, client_id=self.name, queues=[row])

    def ask_committed(self, group: str) -> None:
        """Where a group stands, for who only wants to know."""
        asked = self.world.recorder.asking(
            QueryOffset, client=self.name, consumer_group=group, queue=named(self.queue)
        )

        def done(answer: Any, node: str) -> None:
            self.world.coverage.saw("queries")
            asked.ok(offset=answer["offsets"][0]["offset"], node=node)

        self._call("offsets", asked, done, group=group, queues=[self._row()])

    def _ask_position(self) -> None:
        asked = self.world.recorder.asking(
            QueryOffset, client=self.name, consumer_group=self.group, queue=named(self.queue)
        )

        def done(answer: Any, node: str) -> None:
            self.world.coverage.saw("queries")
            row = answer["offsets"][0]
            asked.ok(offset=row["offset"], node=node)
            self.offset = row["offset"] or 0
            self.generation = row["generation"]
            self.processed = None
            self.has_position = True
            self.assignment = f"{self.name}-{self.world.clock.now_us}"

        self._call("offsets", asked, done, group=self.group, queues=[self._row()])

    def ask_range(self) -> None:
        """First and next offset of the queue."""
        asked = self.world.recorder.asking(QueryRange, client=self.name, queue=named(self.queue))

        def done(answer: Any, node: str) -> None:
            self.world.coverage.saw("queries")
            row = answer["queues"][0]
            asked.ok(start=row["start"], end=row["end"], node=node)

        self._call("ends", asked, done, queues=[self._row()])

    def _commit(self, offset: int, *, is_reset: bool = False) -> None:
        asked = self.world.recorder.asking(
            Commit,
            client=self.name,
            consumer_group=self.group,
            member=self.name,
            queue=named(self.queue),
            offset=offset,
            is_reset=is_reset,
        )

        def done(answer: Any, node: str) -> None:
            self.world.coverage.saw("resets" if is_reset else "commits")
            asked.ok(node=node)
            self.processed = None
            if is_reset:
                self.has_position = False

        row = self._row(offset=offset)
        if not is_reset:
            row["generation"] = self.generation
            if self.token is not None:
                row["token"] = self.token
        self._call("commit", asked, done, group=self.group, offsets=[row], reset=is_reset)


class Watcher(Member):
    """Asks where groups and queues stand, and nothing else."""

    def act(self) -> None:
        if self.waiting or not self.connect():
            return
        dice = self.world.dice
        self.queue = dice.below(QUEUES)
        if dice.happens(0.5):
            self.ask_range()
        else:
            self.ask_committed(dice.one_of(["ordered", "free"]))
