"""Elections that a master or an operator asks for."""

from tests.support.controller.liveness_bed import a_running_group

from paceline.types import ReplicaId
from paceline_controller.election.election import NoElection
from paceline_controller.state.commands import ElectMaster


def test_a_transfer_leaves_the_leaving_master_out() -> None:
    bed = a_running_group()

    decision = bed.liveness.decide_transfer(
        bed.driver.group, bed.now, reason="transfer", leaving=ReplicaId(1)
    )

    assert isinstance(decision, ElectMaster)
    assert decision.winner != 1
    assert decision.without == (1,)


def test_a_transfer_to_a_dead_replica_is_refused() -> None:
    bed = a_running_group()
    bed.close(2)
    bed.probe(2, is_refused=True)

    decision = bed.liveness.decide_transfer(
        bed.driver.group, bed.now, reason="operator", preferred=ReplicaId(2)
    )

    assert isinstance(decision, NoElection)
