"""The core bed sees a command that is carried out twice (R38)."""

import pytest

from paceline_chaos.mutants import MUTANTS
from paceline_chaos.protocol_sim.judge import ViolationError
from paceline_chaos.protocol_sim.scene import Scene


def test_repeated_command_has_one_result() -> None:
    scene = Scene(1)
    command = scene.controllers.envelope({"kind": "open_session"}, "s", 0)

    first = scene.controllers._apply(command)

    assert scene.controllers._apply(command) == first
    assert scene.coverage.counts["commands_repeated"] == 1


def test_command_applied_again_is_a_violation() -> None:
    scene = Scene(1)
    node = scene.nodes[0]
    with scene.loop.running():
        scene.guarded(node, node.boot)
    scene.controllers.release(all_of_it=True)
    registration = scene.controllers.requests[0].command
    scene.controllers._apply(registration)

    again = pytest.raises(ViolationError, match="^R38: register_replica")
    with MUTANTS["R38-again"].applied(), again:
        scene.controllers._apply(registration)
