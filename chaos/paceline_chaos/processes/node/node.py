"""A broker or controller as a harness runs it: the product's own main, with two ports of ours.

    broker --config FILE --control FILE [--shadow FOLDER] [--boot ID]

The clock follows the control page. The disk fails as the page says, and with `--shadow` it keeps a
second image of all files that holds only what was synced, for power cuts (faulty_disk.py). Forked
by fork_server.py.
"""

from pathlib import Path

import click

from paceline.platform import config as configuration
from paceline.platform.disk_real import RealDisk
from paceline.platform.node_process import run_node, tune_malloc
from paceline.platform.runtime import SystemClock
from paceline_broker.app import run_broker
from paceline_broker.config import BrokerConfig
from paceline_chaos.processes.node.control import Control
from paceline_chaos.processes.node.faulty_disk import FaultyDisk
from paceline_chaos.processes.node.shadow import Shadow
from paceline_chaos.processes.node.stepped_clock import SteppedClock
from paceline_controller.app import run_controller
from paceline_controller.config import ControllerConfig


@click.command("paceline-chaos-node")
@click.argument("role", type=click.Choice(["broker", "controller"]))
@click.option("--config", "toml_path", required=True)
@click.option("--control", type=click.Path(path_type=Path), required=True)
@click.option("--shadow", type=click.Path(path_type=Path), default=None)
@click.option("--boot", default=None, help="Instead of this kernel's boot id.")
def command(
    role: str, toml_path: str, control: Path, shadow: Path | None, boot: str | None
) -> None:
    """One node of a chaos run."""
    page = Control(control)
    image = None if shadow is None else Shadow(shadow)
    disk = FaultyDisk(RealDisk(), page, image)
    clock = SteppedClock(SystemClock(), page)
    if role == "broker":
        tune_malloc()
        broker = configuration.load(BrokerConfig, process="broker", toml_path=toml_path)
        run_node(run_broker(broker, disk=disk, clock=clock, boot=boot))
    else:
        controller = configuration.load(ControllerConfig, process="controller", toml_path=toml_path)
        run_node(run_controller(controller, disk=disk, clock=clock))
