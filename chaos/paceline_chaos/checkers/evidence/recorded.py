"""Pure: what a history says by itself, arranged for questions: nothing in it is excused.

A **ruling** is one event of the controllers' machine, once, however many controllers applied it.

The world may say: `durability` ("fsync"), `min_in_sync_replicas`, `all_ack_in_sync_state_set`
(true), `groups`, `bed`, `consume_from` ("first"), `learners` (none).
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Set
from functools import cached_property
from typing import TypeVar, cast

from paceline_chaos.checkers.evidence.bounds import SECOND_US, Bounds
from paceline_chaos.checkers.evidence.parts import (
    Claim,
    ProbeLine,
    Ruling,
    SetTimeline,
)
from paceline_chaos.history.model import (
    ALL_ACK,
    AUTO_IN_SYNC,
    IN_SYNC,
    Ack,
    AlterTopic,
    BeginTransaction,
    CheckTransaction,
    Commit,
    ControllerDump,
    CreateTopic,
    Decision,
    Deliver,
    DescribeTopic,
    EndTransaction,
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
    Send,
    Unlock,
)

EventT = TypeVar("EventT", bound=Event)

NEVER_US = 1 << 62
RETIRED = "replace"
"""The fault by which another machine takes a node's place, for good."""
CLOCK_KINDS = frozenset({"clock_step", "clock_rate"})


def role_of(node: str) -> str:
    """ "broker", "controller" or "client": "g1-b2", "c1", "client-3"."""
    if node.startswith("client"):
        return "client"
    return "controller" if node[:1] == "c" and node[1:].isdecimal() else "broker"


class Recorded:
    """One history, sorted out by kinds, groups, nodes and queues."""

    def __init__(self, history: History, bounds: Bounds | None = None) -> None:
        self.world = history.world
        self.entries = history.entries
        self.bounds = bounds or Bounds()
        self._timelines: dict[str, SetTimeline] = {}
        self._by_type: dict[type[Event], list[Event]] = defaultdict(list)
        for entry in history.entries:
            self._by_type[type(entry)].append(entry)
        self.sends = self._of(Send)
        self.recalls = self._of(Recall)
        self.pulls = self._of(Pull)
        self.delivers = self._of(Deliver)
        self.commits = self._of(Commit)
        self.offset_queries = self._of(QueryOffset)
        self.range_queries = self._of(QueryRange)
        self.finds = self._of(Find)
        self.locks = self._of(Lock)
        self.unlocks = self._of(Unlock)
        self.pops = self._of(Pop)
        self.done_receipts = self._of(Ack)
        self.resends = self._of(Resend)
        self.begins = self._of(BeginTransaction)
        self.ends = self._of(EndTransaction)
        self.checks = self._of(CheckTransaction)
        self.creates = self._of(CreateTopic)
        self.alters = self._of(AlterTopic)
        self.describes = self._of(DescribeTopic)
        self.probes = self._of(Probe)
        self.decisions = self._of(Decision)
        self.faults = self._of(FaultEvent)
        self.phases = self._of(Phase)
        self.orders = self._of(OrderElection)
        self.all_dumps = self._of(ReplicaDump)
        self.dumps = [dump for dump in self.all_dumps if not dump.is_discarded]
        """Logs that count; disks that were thrown away hold what was written, and no more."""
        self.controller_dumps = self._of(ControllerDump)
        self.logical_queues = self._of(LogicalQueueDump)

    def _of(self, kind: type[EventT]) -> list[EventT]:
        return cast(list[EventT], self._by_type.get(kind, []))

    # -- what the world is ------------------------------------------------------------------------

    @property
    def is_fsync(self) -> bool:
        return str(self.world.get("durability", "fsync")) == "fsync"

    @property
    def slack_us(self) -> int:
        """How late a ruling may have been entered: never in simulations."""
        return SECOND_US if self.world.get("bed") == "processes" else 0

    def minimum(self, group: str) -> int:
        """How many members must hold what is confirmed (R8): `min_in_sync_replicas`, or its
        default; where fewer than all acknowledge (R37), `in_sync_replicas` if that is more."""
        given = self.world.get("min_in_sync_replicas")
        minimum = int(given) if given is not None else (len(self.nodes_of(group)) + 1) // 2
        if self.world.get(ALL_ACK, True) or self.world.get(AUTO_IN_SYNC, False):
            return minimum
        return max(minimum, int(self.world.get(IN_SYNC, 1)))

    @cached_property
    def learners(self) -> frozenset[str]:
        """Nodes that are never members (R18)."""
        return frozenset(cast("list[str]", self.world.get("learners", [])))

    def phase(self, name: str) -> Phase | None:
        return next((phase for phase in self.phases if phase.name == name), None)

    @cached_property
    def broken(self) -> frozenset[str]:
        """Nodes that stay broken for ever."""
        return frozenset(name for phase in self.phases for name in phase.broken)

    @cached_property
    def retired(self) -> frozenset[str]:
        """Nodes whose place another machine has taken."""
        return frozenset(fault.target for fault in self.faults if fault.kind == RETIRED)

    @cached_property
    def is_over(self) -> bool:
        """The run came to its end: whatever was to be dumped is here."""
        return bool(self.dumps) or self.phase("end") is not None

    def faults_after(self, at_us: int) -> bool:
        """Whether a fault began after a moment."""
        return any(fault.is_begin and fault.at_us > at_us for fault in self.faults)

    def clocks_right_until_us(self, *roles: str, kinds: Set[str] = CLOCK_KINDS) -> int:
        """When a fault of these kinds first changed a clock of nodes with these roles; `NEVER_US`:
        none did. Of controllers' clocks a majority must be wrong, as brokers go by that (R29)."""
        first_us: dict[str, int] = {}
        for fault in self.faults:
            if fault.kind in kinds and role_of(fault.target) in roles:
                first_us.setdefault(fault.target, fault.at_us)
        controllers = self.world.get("controllers")
        majority = len(controllers) // 2 + 1 if isinstance(controllers, list | tuple) else 1
        wrong = sorted(at for name, at in first_us.items() if role_of(name) == "controller")
        others = [at for name, at in first_us.items() if role_of(name) != "controller"]
        # With one of three wrong and another one down nobody has a majority: then nothing fires.
        return min([*others, *wrong[majority - 1 :]], default=NEVER_US)

    @cached_property
    def end_us(self) -> int:
        """The last moment of which the history knows."""
        phases = [phase.at_us for phase in self.phases]
        probes = [probe.at_us for probe in self.probes]
        sends = [send.answered_us for send in self.sends]
        return max([*phases[-1:], *probes[-1:], *sends[-1:]], default=0)

    # -- messages ---------------------------------------------------------------------------------

    @cached_property
    def sent(self) -> dict[str, Send]:
        """Value -> its (first) send; messages of transactions were sent, too."""
        sent: dict[str, Send] = {}
        for send in self.sends:
            sent.setdefault(send.value, send)
        for begin in self.begins:
            sent.setdefault(begin.value, _sent(begin))
        return sent

    @cached_property
    def answered(self) -> list[Send]:
        """Acknowledged sends whose offset is known, whatever that promises: progress is made."""
        return [
            send
            for send in self.sends
            if send.outcome is Outcome.OK and send.queue is not None and (send.offset or 0) >= 0
        ]

    @cached_property
    def acks(self) -> list[Send]:
        """Those of them that were said to be confirmed: the others promise nothing (R37)."""
        return [send for send in self.answered if send.is_confirmed]

    @cached_property
    def acks_by_queue(self) -> dict[Queue, list[Send]]:
        """In order of the answers."""
        queues: defaultdict[Queue, list[Send]] = defaultdict(list)
        for send in self.acks:
            assert send.queue is not None
            queues[send.queue].append(send)
        for sends in queues.values():
            sends.sort(key=_answered)
        return queues

    # -- logs -------------------------------------------------------------------------------------

    @cached_property
    def dumps_of(self) -> dict[str, list[ReplicaDump]]:
        groups: defaultdict[str, list[ReplicaDump]] = defaultdict(list)
        for dump in self.dumps:
            groups[dump.group].append(dump)
        return groups

    # -- nodes ------------------------------------------------------------------------------------

    @cached_property
    def replica_nodes(self) -> dict[tuple[str, int], str]:
        """(group, replica id) -> node. Ids are never used again, so this is a function."""
        seen: Iterable[Probe | ReplicaDump] = [*self.probes, *self.dumps]
        return {(one.group, one.replica): one.node for one in seen if one.replica is not None}

    @cached_property
    def lines(self) -> dict[str, ProbeLine]:
        nodes: defaultdict[str, list[Probe]] = defaultdict(list)
        for probe in self.probes:
            nodes[probe.node].append(probe)
        return {node: ProbeLine(probes) for node, probes in nodes.items()}

    @cached_property
    def probes_in_time(self) -> list[Probe]:
        return sorted(self.probes, key=lambda probe: (probe.at_us, probe.number))

    def nodes_of(self, group: str) -> set[str]:
        return {node for (name, _), node in self.replica_nodes.items() if name == group}

    @cached_property
    def groups(self) -> list[str]:
        """All broker groups that were seen."""
        named = {group for group, _ in self.replica_nodes}
        return sorted(named | {ruling.group for ruling in self.rulings if ruling.group})

    def position(self, probe: Probe) -> int:
        """What counts for confirm."""
        return probe.flushed if self.is_fsync else probe.end

    # -- controllers ------------------------------------------------------------------------------

    @cached_property
    def rulings(self) -> list[Ruling]:
        """In order of index."""
        first: dict[tuple[int, str, str], Decision] = {}
        for decision in self.decisions:
            key = (decision.index, decision.kind, repr(sorted(decision.members.items())))
            known = first.get(key)
            if known is None or decision.at_us < known.at_us:
                first[key] = decision
        return sorted(
            (
                Ruling(
                    decision.index,
                    decision.at_us,
                    decision.kind,
                    str(decision.members.get("group", "")),
                    decision.members,
                    decision.number,
                )
                for decision in first.values()
            ),
            key=lambda ruling: (ruling.place, ruling.number),
        )

    @cached_property
    def _rulings_by_group(self) -> dict[str, list[Ruling]]:
        groups: defaultdict[str, list[Ruling]] = defaultdict(list)
        for ruling in self.rulings:
            groups[ruling.group].append(ruling)
        return groups

    def rulings_of(self, group: str, *kinds: str) -> Iterator[Ruling]:
        """Of these kinds, or all."""
        for ruling in self._rulings_by_group.get(group, ()):
            if not kinds or ruling.kind in kinds:
                yield ruling

    @cached_property
    def elections(self) -> list[Ruling]:
        return [ruling for ruling in self.rulings if ruling.kind == "master_elected"]

    def timeline(self, group: str) -> SetTimeline:
        """Sets in force, by the time at which they were committed."""
        if group not in self._timelines:
            self._timelines[group] = self._timeline(group)
        return self._timelines[group]

    def _timeline(self, group: str) -> SetTimeline:
        rulings = [ruling for ruling in self.rulings_of(group) if ruling.sync_state_set is not None]
        ats: list[int] = []
        for ruling in rulings:  # entered late or not: a later index is not in force earlier
            ats.append(max(ruling.at_us, ats[-1] if ats else 0))
        sets = [ruling.sync_state_set or frozenset() for ruling in rulings]
        return SetTimeline(ats, sets, [ruling.number for ruling in rulings])

    @cached_property
    def masters(self) -> dict[tuple[str, int], list[Claim]]:
        """(group, epoch) -> who was, or said to be, its master; each once."""
        claims: defaultdict[tuple[str, int], dict[tuple[str, int], Claim]] = defaultdict(dict)
        for ruling in self.elections:
            node = self.replica_nodes.get((ruling.group, ruling.members["master"]))
            if node is not None:
                claim = Claim(node, ruling.members["incarnation"], ruling.number)
                key = (ruling.group, ruling.members["master_epoch"])
                claims[key].setdefault(claim[:2], claim)
        for probe in self.probes:
            if probe.role == "master":
                claim = Claim(probe.node, probe.incarnation, probe.number)
                claims[probe.group, probe.epoch].setdefault(claim[:2], claim)
        return {key: list(found.values()) for key, found in claims.items()}

    def master_of(self, group: str, epoch: int | None) -> Claim | None:
        """The master of an epoch, if it is known without doubt."""
        claims = self.masters.get((group, epoch or 0), ())
        return claims[0] if len(claims) == 1 else None


def _sent(begin: BeginTransaction) -> Send:
    """The send that a transaction began with: what becomes of it nobody knows by this alone."""
    return Send(
        number=begin.number,
        client=begin.client,
        asked_us=begin.asked_us,
        answered_us=begin.answered_us,
        outcome=Outcome.UNKNOWN,
        topic=begin.topic,
        key=None,
        value=begin.value,
        crc=begin.crc,
    )


def _answered(send: Send) -> int:
    return send.answered_us
