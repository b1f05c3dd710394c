"""The core bed's controllers: what is sent to them, and when it arrives."""

from paceline.wire.cluster import GroupSettings
from paceline_chaos.history.recorder import Recorder
from paceline_chaos.protocol_sim.clock import BedClock
from paceline_chaos.protocol_sim.controllers import Controllers, Request
from paceline_chaos.protocol_sim.coverage import Coverage
from paceline_chaos.protocol_sim.dice import Dice

COMMANDS = 200


def some_controllers() -> Controllers:
    clock = BedClock()
    recorder = Recorder(lambda: clock.now_us, {})
    return Controllers(Dice("seed"), GroupSettings(), clock, Coverage(), recorder)


def send(controllers: Controllers, numbers: range) -> None:
    for number in numbers:
        controllers.ask(Request({"kind": "tick", "number": number}, None, 0))


def arrived(controllers: Controllers) -> list[int]:
    return [request.command["number"] for request in controllers.requests]


def test_in_trouble_some_commands_come_late_and_some_twice() -> None:
    controllers = some_controllers()

    send(controllers, range(COMMANDS))

    assert len(set(arrived(controllers))) < COMMANDS
    assert len(arrived(controllers)) > len(set(arrived(controllers)))


def test_once_all_is_well_each_command_arrives_once_and_soon() -> None:
    """A late registration is a fault: after the last fault it would be no wonder that L1 fails."""
    controllers = some_controllers()
    send(controllers, range(COMMANDS))

    controllers.heal()
    assert set(arrived(controllers)) == set(range(COMMANDS))  # what was late has come

    controllers.requests.clear()
    send(controllers, range(COMMANDS))
    assert arrived(controllers) == list(range(COMMANDS))
