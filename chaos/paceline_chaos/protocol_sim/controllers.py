"""The controllers: the real state machine behind a leader that may be wrong about who lives.

Commands, answers and views travel late, in any order, twice or not at all. Nothing of Raft is here:
what is applied is committed.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from paceline.types import (
    ConsumerGroupName,
    ControllerId,
    GroupName,
    Incarnation,
    MasterEpoch,
    ReplicaId,
    TopicName,
)
from paceline.wire.cluster import ClusterView, GroupSettings, GroupView
from paceline.wire.consumer_groups import ConsumerGroupSettings
from paceline.wire.topics import MIXED
from paceline_chaos.history.model import CreateTopic as CreateTopicOperation
from paceline_chaos.history.model import Decision, FaultEvent, Outcome
from paceline_chaos.history.recorder import Recorder
from paceline_chaos.protocol_sim.clock import BedClock
from paceline_chaos.protocol_sim.coverage import Coverage
from paceline_chaos.protocol_sim.dice import Dice
from paceline_chaos.protocol_sim.judge import ViolationError
from paceline_controller.election import election
from paceline_controller.election.election import (
    NoElection,
    ReplicaHealth,
    ReplicaStatus,
    choose_first,
)
from paceline_controller.state import Machine
from paceline_controller.state.commands import CreateTopic, ElectMaster, Lead
from paceline_controller.state.model import Group
from paceline_controller.state.topic_commands import PutConsumerGroup

GROUP = GroupName("g1")
LEADER_SESSION = "leader"
TERM = 1
HEARTBEAT_TIMEOUT_MS = 1500
"""As `LivenessSettings`."""
FAVOUR_MS = 3000
RETRY_MS = 100
"""As `liveness.RETRY_MS`: the next look sees what the last election has changed."""

_TOO_OLD = frozenset({"STALE_SEQUENCE", "UNKNOWN_SESSION"})


class Request(NamedTuple):
    """A command under way to the controllers."""

    command: dict[str, Any]
    node: str | None
    generation: int


class Heard(NamedTuple):
    """The newest heartbeat of a replica."""

    incarnation: Incarnation
    end: int
    last_epoch: MasterEpoch
    is_healthy: bool
    view_version: int
    at_ms: int


class Answer(NamedTuple):
    """A result under way to the process that asked."""

    node: str
    generation: int
    sequence: int
    result: dict[str, Any]


class Controllers:
    """One never-failing controller with bad connections and worse judgement."""

    def __init__(
        self,
        dice: Dice,
        settings: GroupSettings,
        clock: BedClock,
        coverage: Coverage,
        recorder: Recorder,
    ) -> None:
        self._dice = dice
        self._settings = settings
        self._clock = clock
        self._saw = coverage.saw
        self._recorder = recorder
        self.machine = Machine()
        self.requests: list[Request] = []
        self.answers: list[Answer] = []
        self._late: list[tuple[int, Request]] = []
        self._is_healed = False
        self.index = 0
        """Of the last command applied."""
        self._results: dict[tuple[str, int], dict[str, Any]] = {}
        """What each command came to when it was applied."""
        self._sequence = 0
        self._view = ClusterView(cluster_id="", version=0)
        self._heard: dict[ReplicaId, Heard] = {}
        self._elected_ms = 0
        self._favourite: ReplicaId | None = None
        self._favoured_ms = 0
        self.open_session(LEADER_SESSION)
        lead = Lead(controller_id=ControllerId("c1"), term=TERM, cluster_id="c", cluster_name="bed")
        self._apply(self._envelope(lead.to_json()))

    @property
    def now_ms(self) -> int:
        """The proposers' clock."""
        return 1_000_000 + self._clock.now_ms

    def create_topic(self, topic: str, queues: int) -> int:
        """Made at once; the id it got."""
        create = CreateTopic(topic=TopicName(topic), queues={GROUP: queues}, message_type=MIXED)
        asked_us = self._clock.now_us
        result = self._apply(self._envelope(create.to_json()))
        assert result["ok"], result
        topic_id = int(self.machine.topics[TopicName(topic)].topic_id)
        self._recorder.add(
            CreateTopicOperation,
            client="admin",
            asked_us=asked_us,
            outcome=Outcome.OK,
            topic=topic,
            queues={GROUP: queues},
            topic_id=topic_id,
        )
        return topic_id

    def create_groups(self, *names: str) -> None:
        """Consumer groups, made at once."""
        for name in names:
            settings = ConsumerGroupSettings()
            put = PutConsumerGroup(group=ConsumerGroupName(name), settings=settings, is_new=True)
            result = self._apply(self._envelope(put.to_json()))
            assert result["ok"], result

    @property
    def view(self) -> ClusterView:
        if self._view.version != self.machine.version:
            self._view = self.machine.view()
        return self._view

    @property
    def group(self) -> Group | None:
        return self.machine.groups.get(GROUP)

    def group_view(self) -> GroupView | None:
        return self.view.groups.get(GROUP)

    def open_session(self, session: str) -> None:
        """Directly: how sessions are opened is not this bed's subject."""
        self._apply(
            {
                "kind": "open_session",
                "session": session,
                "sequence": 0,
                "at": self.now_ms,
                "deadline": self.now_ms + 60_000,
            }
        )

    def ask(self, request: Request) -> None:
        """Send a command off: some arrive twice, some after a very long time, until all is well."""
        if self._is_healed:
            self.requests.append(request)
            return
        if self._dice.happens(0.1):
            self._saw("commands_late")
            self.requests.append(request)
        if self._dice.happens(0.15):
            self.ask_late(request)
        else:
            self.requests.append(request)

    def ask_late(self, request: Request) -> None:
        self._saw("commands_late")
        self._late.append((self.now_ms + 100 + self._dice.below(4000), request))

    def heal(self) -> None:
        """From now on what is sent arrives, once and soon; so does all that is late."""
        self._is_healed = True
        self.release(all_of_it=True)

    def forget_registrations(self, node: str, *, share: float = 0.9) -> None:
        """Of a process that died: most reach nobody, as a leader drops what nobody waits for."""

        def is_kept(request: Request) -> bool:
            is_registration = request.command["kind"] == "register_replica"
            return request.node != node or not is_registration or self._dice.happens(1 - share)

        self.requests = [request for request in self.requests if is_kept(request)]
        self._late = [late for late in self._late if is_kept(late[1])]

    def release(self, *, all_of_it: bool = False) -> None:
        """What was late long enough is on its way again."""
        due = [late for late in self._late if all_of_it or late[0] <= self.now_ms]
        if due:
            self._late = [late for late in self._late if late not in due]
            self.requests.extend(request for _, request in due)

    def deliver_request(self, index: int) -> None:
        request = self.requests.pop(index)
        result = self._apply(request.command)
        if request.node is not None:
            sequence = request.command["sequence"]
            self.answers.append(Answer(request.node, request.generation, sequence, result))

    def deliver_registration(self, node: str, generation: int) -> None:
        """What the node's present process says of itself, now."""
        self.release(all_of_it=True)
        for index in reversed(range(len(self.requests))):
            request = self.requests[index]
            is_present = request.node == node and request.generation == generation
            if is_present and request.command["kind"] == "register_replica":
                self.deliver_request(index)

    def heard(
        self,
        replica: ReplicaId,
        incarnation: Incarnation,
        end: int,
        *,
        last_epoch: MasterEpoch,
        is_healthy: bool,
        view_version: int,
    ) -> None:
        """A heartbeat."""
        now_ms = self._clock.now_ms
        self._heard[replica] = Heard(incarnation, end, last_epoch, is_healthy, view_version, now_ms)

    def elect(self, alive: set[tuple[ReplicaId, Incarnation]], *, error_rate: float) -> bool:
        """The leader looks at the group and perhaps sends an election off.

        `alive`: the starts whose port would answer. A master is also left for no reason, with
        `error_rate`: that must never be unsafe, only inconvenient.
        """
        group = self.group
        if group is None:
            return False
        beliefs = {replica: self._belief(group, replica, alive) for replica in group.replicas}
        if group.master_epoch == MasterEpoch(0):
            has_waited = self._dice.happens(0.2)
            decision = choose_first(group, beliefs, term=TERM, has_waited=has_waited)
        else:
            reason = self._why(group, beliefs, error_rate)
            if reason is None:
                return False
            leaving = group.master if reason == "transfer" else None
            self._misjudge(group, beliefs, error_rate)
            # Any member is safe, so not only the longest is asked for.
            preferred = self._dice.one_of([None, *sorted(group.sync_state_set)])
            if self._favourite in group.sync_state_set and self._clock.now_ms < self._favoured_ms:
                preferred = self._favourite
            decision = election.choose(
                group, beliefs, term=TERM, reason=reason, preferred=preferred, leaving=leaving
            )
        if isinstance(decision, NoElection):
            return False
        self._elected_ms = self._clock.now_ms
        self._propose(decision)
        return True

    def step_down(
        self,
        alive: set[tuple[ReplicaId, Incarnation]],
        *,
        master: ReplicaId | None,
        master_epoch: MasterEpoch,
        preferred: ReplicaId | None,
    ) -> str | None:
        """A master asks for its replacement; None: another is elected, else why not (R20)."""
        group = self.group
        if group is None or (group.master, group.master_epoch) != (master, master_epoch):
            return f"epoch {master_epoch} is over"
        beliefs = {replica: self._belief(group, replica, alive) for replica in group.replicas}
        decision = election.choose(
            group, beliefs, term=TERM, reason="transfer", leaving=master, preferred=preferred
        )
        if isinstance(decision, NoElection):
            return decision.reason
        self._elected_ms = self._clock.now_ms
        result = self._apply(self._envelope(decision.to_json()))
        return None if result["ok"] else str(result["reason"])

    def favour(self, replica: ReplicaId | None) -> None:
        """For a while this one is preferred, if it is a member."""
        self._favourite, self._favoured_ms = replica, self._clock.now_ms + FAVOUR_MS

    def _why(
        self, group: Group, beliefs: dict[ReplicaId, ReplicaHealth], error_rate: float
    ) -> str | None:
        """Why the master is to be replaced; an election under way is given a moment."""
        if self._clock.now_ms - self._elected_ms < RETRY_MS:
            return None
        master = group.master
        if master is None:
            return "no_master"
        standing = beliefs[master].standing
        if standing is ReplicaStatus.GONE:
            return "dead"
        if standing is not ReplicaStatus.HEALTHY:
            return str(standing.value)
        if self._dice.happens(error_rate):
            detail = "the leader is wrong about a master"
            self._recorder.add(
                FaultEvent, kind="slow_link", target=f"{master}>c1", is_begin=True, detail=detail
            )
            if self._dice.happens(0.3):
                return "transfer"
            wrong = self._dice.one_of([ReplicaStatus.SILENT, ReplicaStatus.GONE])
            beliefs[master] = ReplicaHealth(standing=wrong, end=beliefs[master].end)
            return "mistaken"
        return None

    def _misjudge(
        self, group: Group, beliefs: dict[ReplicaId, ReplicaHealth], error_rate: float
    ) -> None:
        """Members taken for dead leave the set with the election: also unnecessarily (R15)."""
        for member in sorted(group.sync_state_set):
            if member == group.master:
                continue
            if error_rate and self._dice.happens(0.2):
                wrong = self._dice.one_of([ReplicaStatus.SILENT, ReplicaStatus.GONE])
                beliefs[member] = ReplicaHealth(standing=wrong, end=beliefs[member].end)

    def _belief(
        self, group: Group, replica: ReplicaId, alive: set[tuple[ReplicaId, Incarnation]]
    ) -> ReplicaHealth:
        incarnation = group.replicas[replica].incarnation
        heard = self._heard.get(replica)
        if (replica, incarnation) not in alive:
            return ReplicaHealth(standing=ReplicaStatus.GONE)
        if heard is None or heard.incarnation != incarnation:
            return ReplicaHealth(standing=ReplicaStatus.SILENT)
        if self._clock.now_ms - heard.at_ms > HEARTBEAT_TIMEOUT_MS:
            return ReplicaHealth(standing=ReplicaStatus.SILENT, end=heard.end)
        standing = ReplicaStatus.HEALTHY if heard.is_healthy else ReplicaStatus.UNHEALTHY
        return ReplicaHealth(
            standing=standing,
            end=heard.end,
            last_epoch=heard.last_epoch,
            view_version=heard.view_version,
        )

    def _propose(self, chosen: ElectMaster) -> None:
        self.ask(Request(self._envelope(chosen.to_json()), None, 0))

    def envelope(self, command: dict[str, Any], session: str, sequence: int) -> dict[str, Any]:
        """A command of a broker as the leader passes it on."""
        envelope = {
            **command,
            "session": session,
            "sequence": sequence,
            "at": self.now_ms,
            "deadline": self.now_ms + 60_000,
        }
        if command["kind"] == "register_replica":
            envelope["defaults"] = self._settings.to_json()
        return envelope

    def _envelope(self, command: dict[str, Any]) -> dict[str, Any]:
        self._sequence += 1
        return self.envelope(command, LEADER_SESSION, self._sequence)

    def _apply(self, command: dict[str, Any]) -> dict[str, Any]:
        self.index += 1
        set_before = self._set()
        result, events = self.machine.apply(command, index=self.index)
        assert result.get("reason") != "BAD_COMMAND", (command, result)
        if command["kind"] == "elect_master" and not result["ok"]:
            self._saw("elections_refused")
        self._is_applied_once(command, result)
        for event in events:
            self._happened(event, set_before)
        return result

    def _is_applied_once(self, command: dict[str, Any], result: dict[str, Any]) -> None:
        """A command that comes again finds what it came to, or is refused as too old (R38)."""
        key = command["session"], command["sequence"]
        first = self._results.setdefault(key, result)
        if first is result or result.get("reason") in _TOO_OLD:
            return
        self._saw("commands_repeated")
        if result != first:
            raise ViolationError(
                f"R38: {command['kind']} {key} came to {first}, and when it came again to {result}"
            )

    def _set(self) -> int:
        group = self.group
        return 0 if group is None else len(group.sync_state_set)

    def _happened(self, event: Mapping[str, Any], set_before: int) -> None:
        """For the history and the counters."""
        members = {key: value for key, value in event.items() if key != "kind"}
        kind = str(event["kind"])
        self._recorder.add(Decision, node="c1", index=self.index, kind=kind, members=members)
        match kind:
            case "master_elected":
                self._saw(f"elections_{event['reason']}")
            case "set_changed":
                is_smaller = len(event["sync_state_set"]) < set_before
                self._saw("shrinks" if is_smaller else "grows")
            case "member_removed" | "last_member_lost":
                self._saw("removals")
