"""A machine driven the short way: every command in a session of its own sequence."""

from typing import Any

from paceline.types import GroupName, Incarnation, MasterEpoch, ReplicaId, SetEpoch
from paceline.wire.cluster import GroupSettings
from paceline.wire.session import AlterSyncStateSet, OpenEpoch, RaiseConfirmFloor, RegisterReplica
from paceline_controller.state import Machine
from paceline_controller.state.commands import ElectMaster, Lead, Registration
from paceline_controller.state.model import Group

START_MS = 1_700_000_000_000
G1 = GroupName("g1")
SETTINGS = GroupSettings(total_replicas=3, min_in_sync_replicas=2)


def users_topics(machine: Machine) -> list[str]:
    """Names of the topics that are not the system's own."""
    return [topic.topic for topic in machine.topics.values() if not topic.is_system]


class Driver:
    """A machine, and a clock that the test moves."""

    def __init__(self) -> None:
        self.machine = Machine()
        self.now = START_MS
        self.sequence = 0
        self.events: list[dict[str, Any]] = []
        self.raw({"kind": "open_session"}, session="s", sequence=0)

    def raw(
        self,
        document: dict[str, Any],
        *,
        session: str = "s",
        sequence: int | None = None,
        timeout_ms: int = 3000,
    ) -> dict[str, Any]:
        """Apply a command; without `sequence` it gets the next one."""
        if sequence is None:
            self.sequence += 1
            sequence = self.sequence
        envelope = {
            "session": session,
            "sequence": sequence,
            "at": self.now,
            "deadline": self.now + timeout_ms,
        }
        result, self.events = self.machine.apply({**document, **envelope}, index=self.sequence + 1)
        return result

    def do(self, command: Any) -> dict[str, Any]:
        return self.raw(command.to_json())

    @property
    def group(self) -> Group:
        return self.machine.groups[G1]

    def found(self, term: int = 1) -> dict[str, Any]:
        return self.do(
            Lead(controller_id="c1", term=term, cluster_id="abc", cluster_name="paceline")  # type: ignore[arg-type]
        )

    def register(self, number: int, **changes: Any) -> dict[str, Any]:
        """Replica `number` (its store is "store<number>")."""
        return self.do(registration(number, **changes))

    def elect(self, winner: int, /, **changes: Any) -> dict[str, Any]:
        return self.do(election(self.group, winner, **changes))

    def alter(self, *members: int, **changes: Any) -> dict[str, Any]:
        return self.do(alteration(self.group, members, **changes))

    def report_open(self, **changes: Any) -> dict[str, Any]:
        return self.do(OpenEpoch(**{**of_master(self.group), **changes}))

    def raise_floor(self, confirm: int, **changes: Any) -> dict[str, Any]:
        arguments = {**of_master(self.group), "confirm": confirm, **changes}
        return self.do(RaiseConfirmFloor(**arguments))


def a_group(*, replicas: int = 3, **changes: Any) -> Driver:
    """A group with replica 1 elected in epoch 1 by its first election, set of all."""
    driver = Driver()
    driver.found()
    for number in range(1, replicas + 1):
        driver.register(number)
    members = {ReplicaId(number): Incarnation(1) for number in range(1, replicas + 1)}
    result = driver.elect(1, is_first=True, members=members, **changes)
    assert result["ok"], result
    return driver


def registration(number: int, **changes: Any) -> Registration:
    defaults = changes.pop("defaults", SETTINGS)
    arguments = {
        "group": G1,
        "store_id": f"store{number}",
        "replica_id": None,
        "incarnation": Incarnation(1),
        "client_address": f"127.0.0.1:{8000 + number}",
        "replication_address": f"127.0.0.1:{9000 + number}",
        "end": 0,
        "confirm": 0,
        "last_epoch": MasterEpoch(0),
        "is_empty": True,
        "is_learner": False,
        "is_unclean": False,
        "is_suspect": False,
        **changes,
    }
    return Registration.of(RegisterReplica(**arguments), defaults=defaults)


def election(group: Group, winner: int, /, **changes: Any) -> ElectMaster:
    arguments = {
        "spreads_system_topics": True,
        "group": group.group,
        "term": 1,
        "master_epoch": group.master_epoch,
        "set_epoch": group.set_epoch,
        "members": group.members(),
        "winner": ReplicaId(winner),
        "position": group.confirm_floor,
        "floor": group.confirm_floor,
        "without": (),
        "reason": "dead",
        "is_first": False,
        "is_unclean": False,
        "have_all_reported": False,
        **changes,
    }
    return ElectMaster(**arguments)


def alteration(group: Group, members: tuple[int, ...], /, **changes: Any) -> AlterSyncStateSet:
    incarnations = {
        ReplicaId(member): group.replicas[ReplicaId(member)].incarnation
        if member in group.replicas
        else Incarnation(1)
        for member in members
    }
    arguments = {
        **of_master(group),
        "set_epoch": group.set_epoch,
        "members": incarnations,
        **changes,
    }
    return AlterSyncStateSet(**arguments)


def of_master(group: Group) -> dict[str, Any]:
    return {
        "group": group.group,
        "master": group.master or ReplicaId(1),
        "master_incarnation": group.master_incarnation or Incarnation(1),
        "master_epoch": group.master_epoch,
        "confirm": 0,
    }


def reason(result: dict[str, Any]) -> str:
    """Why a command was refused; "" if it was not."""
    return str(result.get("reason", ""))


__all__ = ["G1", "SETTINGS", "Driver", "MasterEpoch", "SetEpoch", "a_group", "reason"]
