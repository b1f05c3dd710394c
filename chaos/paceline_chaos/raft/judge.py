"""What must hold of the Raft bed: at each message, at each application, and in the end.

- RAFT-leader: one leader a term. Whoever sends entries or a snapshot in a term leads it.
- RAFT-vote: one vote a term, whatever happens to the voter in between.
- RAFT-term: no message is of an older term than one that the same node has sent before.
- RAFT-commit: what a leader commits beyond what it knew to be committed when it was elected ends in
  an entry of its own term: older ones may still be replaced, however many nodes have them.
- RAFT-same: equal lists at equal indices, over all nodes and lives; each list goes on from before.
- RAFT-lost, RAFT-twice: an acknowledged value is in the list, none is there twice.
- RAFT-order: answers agree with one order of all operations that keeps real time: the position of
  an append, and how many a read saw (linearizability; values are unique, so it needs no search).
- RAFT-live: with all faults over, the quorum works within `LIVE_S`.
- RAFT-refused: a session that was opened is known (R38).
"""

from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from paceline_chaos.verdict import Violation
from paceline_controller.raft.members import Members
from paceline_controller.raft.peers.frames import Message

NEVER = 1 << 62


@dataclass(slots=True)
class Done:
    """One operation of a client."""

    kind: str
    """ "append" or "read"."""
    value: str
    asked_ns: int
    answered_ns: int = NEVER
    count: int | None = None
    """Position of an append (from 1), or how many values a read saw; None: outcome unknown."""
    is_refused: bool = False
    """Certainly not done."""


class Judge:
    """One run's. What it has found is in `violations`, at most one of each property."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self.counts: Counter[str] = Counter()
        self.operations: list[Done] = []
        self._leaders: dict[int, str] = {}
        self._votes: dict[tuple[str, int], str] = {}
        self._terms: dict[str, int] = {}
        self._commits: dict[int, int] = {}
        self._marks: dict[int, tuple[int, int, str]] = {}
        self._indices: list[int] = []
        self._generations: dict[int, tuple[Members, str]] = {}

    def found(self, name: str, sentence: str) -> None:
        if all(violation.property != name for violation in self.violations):
            self.violations.append(Violation(property=name, sentence=sentence))

    @property
    def newest_term(self) -> int:
        """Of all that had a leader."""
        return max(self._leaders, default=0)

    # -- while it runs -----------------------------------------------------------------------------

    def sent(self, node: str, peer: str, message: Message) -> None:
        """A message leaves a node: what it promises must hold for ever."""
        kind = message["type"]
        if kind in ("pre_vote", "pre_vote_granted", "digest"):
            return  # of a term that is not begun, or of none
        term = int(message["term"])
        if term < self._terms.get(node, 0):
            self.found("RAFT-term", f"{node} sends {kind} of term {term} after {self._terms[node]}")
        self._terms[node] = max(term, self._terms.get(node, 0))
        if kind == "append_entries":
            self._led(node, term)
        elif kind == "request_vote":
            self._voted(node, term, node)
        elif kind == "response_vote":
            self._voted(node, term, peer)

    def _led(self, node: str, term: int) -> None:
        leader = self._leaders.setdefault(term, node)
        if leader != node:
            self.found("RAFT-leader", f"{leader} and {node} lead term {term}")

    def committed(self, node: str, term: int, index: int, *, entry_term: int) -> None:
        """A leader tells how far it has committed, and of which term the last of that is."""
        if index > self._commits.setdefault(term, index) and entry_term != term:
            self.found(
                "RAFT-commit",
                f"{node} commits up to {index}, an entry of term {entry_term}, in term {term}",
            )

    def _voted(self, node: str, term: int, candidate: str) -> None:
        if (node, term) not in self._votes:
            self.counts["votes"] += candidate != node
        before = self._votes.setdefault((node, term), candidate)
        if before != candidate:
            self.found("RAFT-vote", f"{node} votes for {before} and {candidate} in term {term}")

    def started(self, node: str, term: int) -> None:
        """A node has read its disk."""
        if term < self._terms.get(node, 0):
            self.found("RAFT-term", f"{node} starts in term {term} after {self._terms[node]}")

    def lost_disk(self, node: str) -> None:
        """It remembers nothing any more, and must not take part (R18)."""
        self._terms.pop(node, None)

    def applied(self, node: str, index: int, *, mark: int, count: int) -> None:
        """A node's list after the entry at an index."""
        known = self._marks.get(index)
        if known is None:
            self._marks[index] = (mark, count, node)
            insort(self._indices, index)
        elif known[:2] != (mark, count):
            self.found(
                "RAFT-same",
                f"after entry {index} the list of {known[2]} has {known[1]} values, that of {node}"
                f" {count}" + (", others" if known[1] == count else ""),
            )

    def generation(self, node: str, members: Members, index: int) -> None:
        """A member list is committed, as a node sees it."""
        known, by = self._generations.setdefault(members.generation, (members, node))
        if known.to_json() != members.to_json():
            self.found("RAFT-same", f"{by} and {node} differ on generation {members.generation}")

    @property
    def generations(self) -> int:
        return sum(number > 0 for number in self._generations)

    def restored(self, node: str, index: int, *, mark: int, count: int) -> None:
        """A node's list as a snapshot has it."""
        at = bisect_right(self._indices, index)
        if at and self._marks[self._indices[at - 1]][:2] != (mark, count):
            _, others, other = self._marks[self._indices[at - 1]]
            self.found(
                "RAFT-same",
                f"the snapshot of {node} at {index} has {count} values, {other} had {others}",
            )

    # -- in the end --------------------------------------------------------------------------------

    def end(self, values: Sequence[str]) -> None:
        """Judge all operations by the list that everybody has in the end."""
        places = {value: place for place, value in enumerate(values, start=1)}
        if len(places) < len(values):
            twice = next(value for value, count in Counter(values).items() if count > 1)
            self.found("RAFT-twice", f"{twice} is applied more than once")
        for done in self.operations:
            if done.kind != "append" or done.count is None:
                if done.is_refused and done.value in places:
                    self.found("RAFT-order", f"{done.value} was refused, and is in the list")
            elif done.value not in places:
                self.found("RAFT-lost", f"{done.value} was acknowledged and is gone")
            elif places[done.value] != done.count:
                self.found(
                    "RAFT-order",
                    f"{done.value} was told place {done.count}, is at {places[done.value]}",
                )
        self._judge_time(places)

    def _judge_time(self, places: dict[str, int]) -> None:
        """Whoever was answered before another asked stands before it."""
        points = [
            (done.asked_ns, done.answered_ns, place, done)
            for done in self.operations
            if (place := _place(done, places)) is not None
        ]
        by_answer = sorted(points, key=lambda point: point[1])
        at, reached, by = 0, 0, ""
        for asked_ns, _, place, done in sorted(points, key=lambda point: point[0]):
            while at < len(by_answer) and by_answer[at][1] < asked_ns:
                if by_answer[at][2] > reached:
                    reached, by = by_answer[at][2], _name(by_answer[at][3])
                at += 1
            is_behind = place < reached or (place == reached and done.kind == "append")
            if is_behind:
                self.found(
                    "RAFT-order",
                    f"{_name(done)} is at {place}, and asked after {by} was answered at {reached}",
                )
        self._judge_reads(points, places)

    def _judge_reads(
        self, points: Iterable[tuple[int, int, int, Done]], places: dict[str, int]
    ) -> None:
        """No read saw what was asked for after it was answered, nor what is not in the list."""
        asked = sorted(
            (done.asked_ns, places[done.value])
            for done in self.operations
            if done.kind == "append" and done.value in places
        )
        for _, answered_ns, place, done in points:
            at = bisect_right(asked, (answered_ns, 0))
            if done.kind == "read" and place > len(places):
                self.found("RAFT-order", f"a read saw {place} of {len(places)} values")
            if any(other <= place for _, other in asked[at:]) and done.kind == "read":
                self.found("RAFT-order", f"a read saw {place} values before one was asked for")

    @property
    def leaders(self) -> int:
        return len(self._leaders)


def _place(done: Done, places: dict[str, int]) -> int | None:
    """Where an operation stands in the order; of unknown appends, where they turned out to be."""
    if done.kind == "read":
        return done.count
    return places.get(done.value)


def _name(done: Done) -> str:
    return done.value if done.kind == "append" else f"a read by {done.value}"
