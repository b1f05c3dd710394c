"""New controllers, and stores of a cluster that lost its own (R18)."""

from typing import Any

from msgspec import structs
from tests.support.controller.builders import G1, SETTINGS, Driver, reason, registration

from paceline.types import Incarnation, MasterEpoch, ReplicaId
from paceline.wire.session_commands import PresentedTopic, PresentStore
from paceline_controller.election.election import ReplicaHealth, ReplicaStatus, choose
from paceline_controller.state.commands import ElectMaster
from paceline_controller.state.operator_commands import RecoverGroup

ORDERS = PresentedTopic(topic="orders", topic_id=5, queues=8)


class Recovery(Driver):
    """New controllers, and the stores of a cluster that lost its own."""

    def __init__(self) -> None:
        super().__init__()
        self.found()

    def present(self, number: int, **changes: Any) -> dict[str, Any]:
        return self.do(presentation(number, **changes))

    def present_all(self) -> None:
        for number in (1, 2, 3):
            assert reason(self.present(number)) == "RECOVERY_NEEDED"

    def recover(self, number: int = 1, /, **changes: Any) -> dict[str, Any]:
        arguments = {
            "group": G1,
            "store_id": f"store{number}",
            "gives_up_missing": False,
            "defaults": SETTINGS,
            **changes,
        }
        return self.do(RecoverGroup(**arguments))

    def come_back(self, number: int, **changes: Any) -> dict[str, Any]:
        """The start that presented itself registers."""
        return self.do(old_registration(number, **changes))

    def elect_chosen(self) -> dict[str, Any]:
        election = choose(self.group, beliefs(self), term=1, reason="no_master")
        assert isinstance(election, ElectMaster), election
        return self.do(election)


def presentation(number: int, **changes: Any) -> PresentStore:
    arguments = {
        "group": G1,
        "cluster_id": "old",
        "store_id": f"store{number}",
        "replica_id": ReplicaId(number),
        "incarnation": Incarnation(4),
        "client_address": f"127.0.0.1:{8000 + number}",
        "replication_address": f"127.0.0.1:{9000 + number}",
        "epoch": MasterEpoch(7),
        "last_epoch": MasterEpoch(7),
        "start": 0,
        "end": 500,
        "confirm": 400,
        "topics": (ORDERS,),
        "topic_id_max": 5,
        "is_learner": False,
        "is_unclean": False,
        "is_suspect": False,
        "is_damaged": False,
        "leases_ms": 69_000,
        **changes,
    }
    return PresentStore(**arguments)


def old_registration(number: int, **changes: Any) -> Any:
    cluster_id = changes.pop("cluster_id", "old")
    arguments = {
        "replica_id": ReplicaId(number),
        "incarnation": Incarnation(4),
        "end": 500,
        "confirm": 400,
        "last_epoch": MasterEpoch(7),
        "is_empty": False,
        **changes,
    }
    return structs.replace(registration(number, **arguments), cluster_id=cluster_id)


def beliefs(driver: Driver) -> dict[ReplicaId, ReplicaHealth]:
    """All are well, and have told their newest news."""
    return {
        replica.replica_id: ReplicaHealth(
            standing=ReplicaStatus.HEALTHY, end=replica.end, view_version=2**60
        )
        for replica in driver.group.replicas.values()
    }
