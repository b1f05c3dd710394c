"""Clients of the bed: they append values exactly once by session and sequence, and read.

A client asks whom it believes to lead, waits, and repeats the same sequence at others until the
answer is definite or it gives up; then its session is never used again. It has no network of its
own: an attempt is a task in the process of the node that is asked, and dies with it.
"""

from collections.abc import Callable, Sequence
from typing import Any

from paceline.errors import DeadlineError, NotLeaderError, OutcomeUnknownError, PacelineError
from paceline.platform.runtime import SeededRandom
from paceline_chaos.raft.judge import Done, Judge
from paceline_chaos.raft.machine import append_command, open_command
from paceline_chaos.raft.node import RaftNode
from paceline_chaos.sim.loop import SimLoop

ATTEMPT_MS = 350.0
"""A client's patience with one node."""
ATTEMPTS_MAX = 40
QUORUM_MS = 2_000
"""What a node is told: longer than the client waits, so that late answers happen."""
DEADLINE_MS = (400, 6_000)
READ_SHARE = 0.25
_MS = 1_000_000


class Client:
    """One client, for ever; it has one operation at a time."""

    def __init__(
        self,
        name: str,
        *,
        nodes: Sequence[RaftNode],
        judge: Judge,
        loop: SimLoop,
        chance: SeededRandom,
        think_ms: float,
    ) -> None:
        self.name = name
        self.is_over = False
        self._nodes = nodes
        self._judge = judge
        self._loop = loop
        self._chance = chance
        self._think_ms = think_ms
        self._sessions = 0
        self._session = ""
        self._is_open = False
        self._sequence = 0
        self._done: Done | None = None
        self._asked: RaftNode | None = None
        self._attempt = 0
        self._attempts = 0
        self._values = 0

    # -- operations --------------------------------------------------------------------------------

    def start(self) -> None:
        self._renew()
        self._think()

    def _renew(self) -> None:
        self._sessions += 1
        self._session = f"{self.name}x{self._sessions}"
        self._is_open, self._sequence = False, 0

    def _think(self) -> None:
        if not self.is_over:
            self._later(self._chance.uniform(0, 2 * self._think_ms), self._begin)

    def _begin(self) -> None:
        self._attempts = 0
        if not self._is_open:
            self._done = None
        elif self._chance.uniform(0, 1) < READ_SHARE:
            self._done = Done("read", self.name, self._loop.now_ns)
        else:
            self._values += 1
            value = f"{self.name}.{self._values}"
            self._done = Done("append", value, self._loop.now_ns)
        if self._done is not None:
            self._judge.operations.append(self._done)
        self._try()

    def _try(self) -> None:
        self._attempts += 1
        done = self._done
        if self._attempts > ATTEMPTS_MAX:
            self._give_up()
            return
        node = self._whom()
        self._attempt += 1
        attempt = self._attempt
        self._later(ATTEMPT_MS, lambda: self._impatient(attempt))
        if not node.is_running or node.process is None or node.quorum is None:
            self._asked = None
            return
        if done is not None and done.kind == "append" and self._attempts > 1:
            self._judge.counts["repeated"] += 1
        work = self._ask(node, done, attempt)
        with self._loop.acting_as(node.process):
            self._loop.create_task(work, name=self.name, context=node.process.context.copy())

    def _whom(self) -> RaftNode:
        """The one that answered last, or anybody."""
        node = self._asked
        if node is None or not node.is_running or self._chance.uniform(0, 1) < 0.1:
            node = self._nodes[int(self._chance.uniform(0, len(self._nodes)))]
        self._asked = node
        return node

    async def _ask(self, node: RaftNode, done: Done | None, attempt: int) -> None:
        """One attempt, in the node's process."""
        quorum, values = node.quorum, node.list.values
        assert quorum is not None
        core = quorum._core
        if core is not None and core.is_leading and core.term < self._judge.newest_term:
            self._judge.counts["deposed_proposals"] += 1
        try:
            if done is not None and done.kind == "read":
                await quorum.read_barrier(timeout_ms=QUORUM_MS)
                answer: Any = {"ok": True, "count": len(values)}
            else:
                answer = await quorum.propose(self._command(node, done), timeout_ms=QUORUM_MS)
        except PacelineError as error:
            self._failed(error, attempt)
            return
        if attempt == self._attempt:
            self._answered(answer)

    def _command(self, node: RaftNode, done: Done | None) -> dict[str, Any]:
        at = node.machine.clock.unix_ms()
        envelope = {
            "session": self._session,
            "sequence": self._sequence,
            "at": at,
            "deadline": at + int(self._chance.uniform(*DEADLINE_MS)),
        }
        return open_command(**envelope) if done is None else append_command(done.value, **envelope)

    # -- answers -----------------------------------------------------------------------------------

    def _failed(self, error: PacelineError, attempt: int) -> None:
        if attempt != self._attempt:
            return
        self._attempt += 1
        if isinstance(error, NotLeaderError):
            self._judge.counts["redirects"] += 1
            leader = error.details.get("leader")
            self._asked = next((node for node in self._nodes if node.name == leader), None)
            self._later(self._chance.uniform(5, 60), self._try)
        elif isinstance(error, OutcomeUnknownError | DeadlineError):
            self._asked = None
            self._later(self._chance.uniform(5, 60), self._try)
        else:
            self._asked = None
            self._later(50, self._try)

    def _impatient(self, attempt: int) -> None:
        if attempt == self._attempt:
            self._attempt += 1
            self._asked = None
            self._try()

    def _answered(self, answer: dict[str, Any]) -> None:
        """A definite answer."""
        self._attempt += 1
        done, reason = self._done, answer.get("reason")
        counts = self._judge.counts
        if answer["ok"] and done is None:
            self._is_open = True
        elif answer["ok"]:
            assert done is not None
            done.answered_ns, done.count = self._loop.now_ns, answer["count"]
            counts["commands_acknowledged" if done.kind == "append" else "reads"] += 1
            counts["answered_twice"] += self._attempts > 1
        elif reason == "DEADLINE_PASSED" and done is not None:
            counts["late"] += 1
            done.is_refused = True
        elif done is not None:
            self._judge.found("RAFT-refused", f"{done.value} in an open session: {answer}")
            self._renew()
        else:
            self._renew()
        if done is None or done.kind == "append":
            self._sequence += 1
        self._think()

    def _give_up(self) -> None:
        self._attempt += 1
        self._judge.counts["unknown"] += 1
        self._renew()
        self._think()

    def _later(self, milliseconds: float, act: Callable[[], None]) -> None:
        when_ns = self._loop.now_ns + int(milliseconds * _MS)
        self._loop.kernel_at(when_ns, lambda _: act(), None)
