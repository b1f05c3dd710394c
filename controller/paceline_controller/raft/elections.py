"""Rules of elections: pre-vote, stickiness, and the amnesia gate.

The library has no pre-vote: a node that was cut off comes back with a high term and deposes a
healthy leader. Here a node asks first (`pre_vote`), and raises its term only when a majority would
vote for it. That makes two more things safe: voters ignore candidates while they hear a leader
(stickiness), and a closed link to the leader lets a follower ask at once. A node that is asked with
an old term answers `newer_term`, so that nobody stays behind in a term of its own.

A busy machine is no dead one: time in which this node's own loop stood is nobody's silence
(`excuse`), timeouts follow how late signs of life come (`Pace`), and while a vote is on its way to
the disk, and its answers on theirs, neither is another campaign begun here nor one helped
(`mind_vote`): it would overtake its own votes.

None of this weakens Raft: pre-votes change no durable state, and a refused or lost vote is always
allowed. Part of `SafeNode`.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from pysyncobj.node import Node

from paceline.types import ControllerId
from paceline_controller.raft.log.journal import Journal
from paceline_controller.raft.members import MemberLog
from paceline_controller.raft.peers.frames import Message
from paceline_controller.raft.settings import RaftSettings

_FOLLOWER, _CANDIDATE = 0, 1  # the library's _RAFT_STATE


_GAPS = 3
"""Signs of life that must be missing; of a gap of `append_ms` it makes less than the quiet
timeout, so a quiet machine waits no longer than that."""


class Pace:
    """Election timeouts of one node, adapted to how long signs of life took lately. Times are
    seconds of its running time.

    On a busy machine heartbeats come late without anybody being dead. The longest gap between two
    signs of life within `pace_window_ms` says how late: nobody is missed before three such gaps
    have passed. Gaps are bounded: beyond `election_stretch_max` times the quiet timeouts one was an
    absence, and says nothing about pace.
    """

    def __init__(self, settings: RaftSettings) -> None:
        self._settings = settings
        self._gaps: deque[tuple[float, float]] = deque()
        """(when, gap) of those that none later exceeds: gaps fall."""

    def note(self, gap_s: float, now_s: float) -> None:
        """A sign of life came, so long after the one before from the same node."""
        settings = self._settings
        if gap_s * 1000 > settings.election_min_ms * settings.election_stretch_max:
            return
        while self._gaps and self._gaps[-1][1] <= gap_s:
            self._gaps.pop()
        self._gaps.append((now_s, gap_s))

    def gap_s(self, now_s: float) -> float:
        """The longest gap lately."""
        while self._gaps and self._gaps[0][0] < now_s - self._settings.pace_window_ms / 1000:
            self._gaps.popleft()
        return self._gaps[0][1] if self._gaps else 0.0

    def stretch(self, now_s: float) -> float:
        """By what the quiet timeouts are multiplied now: 1 to `election_stretch_max`."""
        wanted = _GAPS * self.gap_s(now_s) * 1000 / self._settings.election_min_ms
        return min(max(1.0, wanted), float(self._settings.election_stretch_max))


class VoteGate(Protocol):
    """Whether this node may vote at all (`identity.py`)."""

    @property
    def may_vote(self) -> bool: ...

    def caught_up(self) -> None: ...

    def admitted(self, store: str) -> None:
        """The log names this controller as a member, with that store ("" = any)."""
        ...

    def is_own_store(self, store: str) -> bool:
        """Whether a member list that names this store means this data folder."""
        ...

    def remembered_store(self, peer: ControllerId) -> str:
        """The store met under that id, "" if none."""
        ...


@dataclass(slots=True)
class _PreVoteRound:
    term: int
    number: int
    expires: float
    granted: set[str] = field(default_factory=set)


class ElectionRules:
    """The election part of the overrides. Times are the library's: seconds of its clock."""

    _SyncObj__raftState: int
    _SyncObj__raftCurrentTerm: int
    _SyncObj__raftLeader: Node | None
    _SyncObj__votedForNodeId: str | None
    _SyncObj__raftElectionDeadline: float
    _SyncObj__transferInProgress: bool
    _SyncObj__otherNodes: set[Node]
    _SyncObj__connectedNodes: set[Node]
    _SyncObj__lastResponseTime: dict[Node, float]
    _SyncObj__setCurrentTerm: Callable[[int, str | None], None]
    _SyncObj__setState: Callable[[int], None]
    _SyncObj__getCurrentLogIndex: Callable[[], int]
    _SyncObj__getCurrentLogTerm: Callable[[], int]
    _isLeader: Callable[[], bool]
    _SyncObj__raftLog: Journal
    _SyncObj__conf: Any  # the library is untyped

    _settings: RaftSettings
    _own: ControllerId
    member_log: MemberLog

    @property
    def is_voter(self) -> bool:
        """Whether the generation in force counts this very store."""
        member = self.member_log.latest.voters.get(self._own)
        return member is not None and self.gate.is_own_store(member.store)

    def is_counted(self, node: Node) -> bool:
        """Whether that node's votes and answers count."""
        return node in self._SyncObj__otherNodes

    def prepare_elections(
        self,
        *,
        gate: VoteGate,
        now: Callable[[], float],
        uniform: Callable[[float, float], float],
        send: Callable[[str, Message], None],
    ) -> None:
        """Set before the library's constructor runs."""
        self.gate = gate
        self._now = now
        self._uniform = uniform
        self._send = send
        self._round: _PreVoteRound | None = None
        self._rounds = 0
        self._leader_heard_at: float | None = None
        self._leader_heard: Node | None = None
        self.pace = Pace(self._settings)
        self._vote_began: float | None = None
        self._vote_until = 0.0
        self._transfer_term = 0
        self._voters: tuple[int, set[str]] = (0, set())

    # -- called by the library ---------------------------------------------------------------------

    def _SyncObj__connectedToAnyone(self) -> bool:  # noqa: N802
        """The library asks this when its election deadline has passed: may it campaign now?"""
        if not self.gate.may_vote or not self.is_voter:
            return False
        if not self._SyncObj__otherNodes or self._SyncObj__transferInProgress:
            return True
        return self._has_won_pre_vote()

    def _SyncObj__generateRaftTimeout(self) -> float:  # noqa: N802
        settings = self._settings
        wait_ms = self._uniform(settings.election_min_ms, settings.election_max_ms)
        return wait_ms / 1000 * self.pace.stretch(self._now())

    # -- before each tick --------------------------------------------------------------------------

    def excuse(self, late_s: float) -> None:
        """The loop stood for so long: what was not heard then may wait to be read."""
        now, settings = self._now(), self._settings
        if self._isLeader():
            if late_s < self._fallback_s:  # else the others have not waited
                for node, at in self._SyncObj__lastResponseTime.items():
                    self._SyncObj__lastResponseTime[node] = min(now, at + late_s)
            return
        if self._leader_heard_at is not None:
            self._leader_heard_at = min(now, self._leader_heard_at + late_s)
        latest = now + settings.election_max_ms / 1000
        excused = min(self._SyncObj__raftElectionDeadline + late_s, latest)
        self._SyncObj__raftElectionDeadline = max(self._SyncObj__raftElectionDeadline, excused)

    def mind_vote(self) -> None:
        """While our vote is not durable, and then for as long as that of others may take, the
        clock for the next campaign does not run."""
        now, is_durable = self._now(), self._SyncObj__raftLog.is_term_durable
        self._SyncObj__conf.leaderFallbackTimeout = self._fallback_s
        if self._SyncObj__votedForNodeId is None or (is_durable and self._vote_began is None):
            self._vote_began = None
            return
        if self._vote_began is None:
            self._vote_began = now
        wait_ms = self._uniform(self._settings.suspicion_min_ms, self._settings.suspicion_max_ms)
        earliest = now + wait_ms / 1000
        if is_durable:
            patience = 2 * (now - self._vote_began)
            self._vote_until = now + min(patience, self._settings.vote_patience_ms_max / 1000)
            self._vote_began = None
            earliest = self._vote_until
        if not self._SyncObj__transferInProgress:
            deadline = max(self._SyncObj__raftElectionDeadline, earliest)
            self._SyncObj__raftElectionDeadline = deadline

    @property
    def _fallback_s(self) -> float:
        return self._settings.leader_fallback_ms / 1000 * self.pace.stretch(self._now())

    # -- messages ----------------------------------------------------------------------------------

    def handle_election_message(self, node: Node, message: Message) -> bool:
        """Take the kinds that the library does not know; False for all others."""
        match message["type"]:
            case "pre_vote":
                self._answer_pre_vote(node, message)
            case "pre_vote_granted":
                self._count_pre_vote(node, message)
            case "newer_term":
                self._adopt_term(message["term"])
            case "timeout_now":
                self._accept_transfer(node, message)
            case _:
                return False
        return True

    def ignores_vote_request(self, node: Node, message: Message) -> bool:
        """Whether a request for a vote is dropped: we may not vote, or hear a healthy leader."""
        if not self.gate.may_vote:
            return True
        if message["term"] < self._SyncObj__raftCurrentTerm:
            self.tell_newer_term(node)
            return True
        return self._hears_leader() and not message["transfer"]

    def is_repeated_vote(self, node: Node, message: Message) -> bool:
        """The library counts votes, not voters; nor does it ask whose they are."""
        if not self.is_counted(node):
            return True
        term, voters = self._voters
        if term != message["term"]:
            term, voters = self._voters = (message["term"], set())
        if node.id in voters:
            return True
        voters.add(node.id)
        return False

    def is_transfer(self, term: int) -> bool:
        """Whether our campaign for that term was asked for by the old leader."""
        return term == self._transfer_term

    def leader_heard(self) -> None:
        now, leader = self._now(), self._SyncObj__raftLeader
        if self._leader_heard_at is not None and leader == self._leader_heard:
            self.pace.note(now - self._leader_heard_at, now)
        self._leader_heard_at, self._leader_heard = now, leader
        self._round = None

    def answer_heard(self, *, before: float | None) -> None:
        """A follower answered; it had before at that time."""
        if before is not None:
            self.pace.note(self._now() - before, self._now())

    def leader_lost(self, node: Node) -> None:
        """The link to a peer closed; if it led, do not wait out the whole election timeout."""
        if node == self._SyncObj__raftLeader and not self._isLeader():
            self._suspect()

    def peer_found(self) -> None:
        """A link stands; if nobody has led since this process began, do not wait for long."""
        if self._SyncObj__raftLeader is None and self._leader_heard_at is None:
            self._suspect()

    def _suspect(self) -> None:
        settings = self._settings
        wait_ms = self._uniform(settings.suspicion_min_ms, settings.suspicion_max_ms)
        suspicion = self._now() + wait_ms / 1000
        self._SyncObj__raftElectionDeadline = min(self._SyncObj__raftElectionDeadline, suspicion)

    def tell_newer_term(self, node: Node) -> None:
        self._send(node.id, {"type": "newer_term", "term": self._SyncObj__raftCurrentTerm})

    # -- inside ------------------------------------------------------------------------------------

    def _hears_leader(self) -> bool:
        """Whether a leader is healthy as far as this node can tell."""
        quiet_s = self._settings.election_min_ms / 1000
        fresh_since = self._now() - quiet_s * self.pace.stretch(self._now())
        if self._isLeader():
            answers = sum(
                self._SyncObj__lastResponseTime[node] > fresh_since
                for node in self._SyncObj__otherNodes
            )
            return self._is_majority(answers + 1)
        return (
            self._leader_heard_at is not None
            and self._leader_heard_at > fresh_since
            and self._SyncObj__raftLeader in self._SyncObj__connectedNodes
        )

    def _awaits_votes(self) -> bool:
        """Whether a campaign that this node has voted in may still be won."""
        is_durable = self._SyncObj__raftLog.is_term_durable
        is_fresh = not is_durable or self._now() < self._vote_until
        return self._SyncObj__votedForNodeId is not None and is_fresh

    def _is_majority(self, count: int) -> bool:
        return count > (len(self._SyncObj__otherNodes) + 1) / 2

    def _has_won_pre_vote(self) -> bool:
        term = self._SyncObj__raftCurrentTerm + 1
        current = self._round
        if current is not None and current.term == term and self._now() < current.expires:
            return self._is_majority(len(current.granted) + 1)
        self._rounds += 1
        wait = self._uniform(self._settings.suspicion_min_ms, self._settings.suspicion_max_ms)
        self._round = _PreVoteRound(
            term=term,
            number=self._rounds,
            expires=self._now() + (self._settings.append_ms + wait) / 1000,
        )
        for node in self._SyncObj__otherNodes:
            self._send(
                node.id,
                {
                    "type": "pre_vote",
                    "term": term,
                    "last_log_index": self._SyncObj__getCurrentLogIndex(),
                    "last_log_term": self._SyncObj__getCurrentLogTerm(),
                    "round": self._rounds,
                },
            )
        return False

    def _answer_pre_vote(self, node: Node, message: Message) -> None:
        if message["term"] <= self._SyncObj__raftCurrentTerm:
            self.tell_newer_term(node)
            return
        own: tuple[Any, ...] = (
            self._SyncObj__getCurrentLogTerm(),
            self._SyncObj__getCurrentLogIndex(),
        )
        is_current = (message["last_log_term"], message["last_log_index"]) >= own
        is_free = not self._hears_leader() and not self._awaits_votes()
        if self.gate.may_vote and is_current and is_free:
            answer = {
                "type": "pre_vote_granted",
                "term": message["term"],
                "round": message["round"],
            }
            self._send(node.id, answer)

    def _count_pre_vote(self, node: Node, message: Message) -> None:
        current = self._round
        if current is not None and current.number == message["round"] and self.is_counted(node):
            current.granted.add(node.id)

    def _adopt_term(self, term: int) -> None:
        if term > self._SyncObj__raftCurrentTerm:
            self._SyncObj__setCurrentTerm(term, None)
            self._SyncObj__setState(_FOLLOWER)
            self._SyncObj__raftLeader = None

    def _accept_transfer(self, node: Node, message: Message) -> None:
        """The leader hands over: campaign at once, without a pre-vote."""
        is_from_leader = node == self._SyncObj__raftLeader
        if (
            self.gate.may_vote
            and self.is_voter
            and is_from_leader
            and (message["term"] == self._SyncObj__raftCurrentTerm)
        ):
            self._transfer_term = self._SyncObj__raftCurrentTerm + 1
            self._SyncObj__raftElectionDeadline = 0
            self._SyncObj__transferInProgress = True
