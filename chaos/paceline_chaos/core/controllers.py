"""The controllers: the real state machine behind a leader that may be wrong about who lives.

Commands, answers and views travel late, in any order, twice or not at all. Nothing of Raft is here:
what is applied is committed.
"""

from typing import Any, NamedTuple

from paceline.types import ControllerId, GroupName, Incarnation, MasterEpoch, ReplicaId
from paceline.wire.cluster import ClusterView, GroupSettings, GroupView
from paceline_chaos.core.dice import Dice
from paceline_controller.election import Belief, NoElection, Standing, choose, choose_first
from paceline_controller.state import Machine
from paceline_controller.state.commands import ElectMaster, Lead
from paceline_controller.state.model import Group

GROUP = GroupName("g1")
LEADER_SESSION = "leader"
TERM = 1


class Request(NamedTuple):
    """A command under way to the controllers."""

    command: dict[str, Any]
    node: str | None
    generation: int


class Answer(NamedTuple):
    """A result under way to the process that asked."""

    node: str
    generation: int
    sequence: int
    result: dict[str, Any]


class Controllers:
    """One never-failing controller with bad connections and worse judgement."""

    def __init__(self, dice: Dice, settings: GroupSettings) -> None:
        self._dice = dice
        self._settings = settings
        self.machine = Machine()
        self.now_ms = 1_000_000
        self.requests: list[Request] = []
        self.answers: list[Answer] = []
        self._late: list[tuple[int, Request]] = []
        self._index = 0
        self._sequence = 0
        self._view = ClusterView(cluster_id="", version=0)
        self._beliefs: dict[ReplicaId, tuple[Incarnation, int, bool]] = {}
        self.open_session(LEADER_SESSION)
        lead = Lead(controller_id=ControllerId("c1"), term=TERM, cluster_id="c", cluster_name="bed")
        self._apply(self._envelope(lead.to_json()))

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
        """Send a command off: some arrive twice, some after a very long time."""
        if self._dice.happens(0.1):
            self.requests.append(request)
        if self._dice.happens(0.15):
            self.ask_late(request)
        else:
            self.requests.append(request)

    def ask_late(self, request: Request) -> None:
        self._late.append((self.now_ms + 100 + self._dice.below(4000), request))

    def forget_registrations(self, node: str) -> None:
        """Of a process that died: most reach nobody, as a leader drops what nobody waits for."""

        def is_kept(request: Request) -> bool:
            is_registration = request.command["kind"] == "register_replica"
            return request.node != node or not is_registration or self._dice.happens(0.1)

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
        self, replica: ReplicaId, incarnation: Incarnation, end: int, *, is_healthy: bool
    ) -> None:
        """A heartbeat."""
        self._beliefs[replica] = (incarnation, end, is_healthy)

    def elect(self, alive: set[tuple[ReplicaId, Incarnation]], *, error_rate: float) -> bool:
        """Look at the group and perhaps send an election off; `alive` is the plain truth."""
        group = self.group
        if group is None:
            return False
        beliefs = {
            replica: self._belief(group, replica, alive, error_rate) for replica in group.replicas
        }
        if group.master_epoch == MasterEpoch(0):
            has_waited = self._dice.happens(0.2)
            decision = choose_first(group, beliefs, term=TERM, has_waited=has_waited)
        else:
            master = group.master
            if master is not None and beliefs[master].standing is Standing.HEALTHY:
                return False
            # Any member is safe, so not only the longest is taken.
            preferred = self._dice.one_of([None, *sorted(group.sync_state_set)])
            decision = choose(group, beliefs, term=TERM, reason="silent", preferred=preferred)
        if isinstance(decision, NoElection):
            return False
        self._propose(decision)
        return True

    def _belief(
        self,
        group: Group,
        replica: ReplicaId,
        alive: set[tuple[ReplicaId, Incarnation]],
        error_rate: float,
    ) -> Belief:
        incarnation = group.replicas[replica].incarnation
        heard, end, is_healthy = self._beliefs.get(replica, (Incarnation(0), 0, False))
        if (replica, incarnation) not in alive or heard != incarnation:
            return Belief(standing=Standing.GONE)
        if self._dice.happens(error_rate):
            return Belief(standing=self._dice.one_of([Standing.SILENT, Standing.GONE]), end=end)
        return Belief(standing=Standing.HEALTHY if is_healthy else Standing.UNHEALTHY, end=end)

    def _propose(self, election: ElectMaster) -> None:
        self.ask(Request(self._envelope(election.to_json()), None, 0))

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
        self._index += 1
        result, _ = self.machine.apply(command, index=self._index)
        assert result.get("reason") != "BAD_COMMAND", (command, result)
        return result
