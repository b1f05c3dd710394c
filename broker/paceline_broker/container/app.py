"""The program `paceline-broker-container`: the brokers of one machine."""

import logging
import os
import sys
from functools import partial

import click

from paceline.errors import ConfigError
from paceline.platform import config as configuration
from paceline.platform.node_process import cores_here, run_command
from paceline.platform.runtime import SystemClock
from paceline.platform.telemetry import Node, start_logging
from paceline_broker import app as broker
from paceline_broker.config import BrokerConfig
from paceline_broker.container.config import PORT_MAX, ContainerConfig
from paceline_broker.container.placement import Placed, brokers_of
from paceline_broker.container.processes import BrokerProcesses, Program

log = logging.getLogger("paceline.container")


def run_container(config: ContainerConfig) -> None:
    """Until SIGTERM or SIGINT. ConfigError: with these settings a broker does not start."""
    start_logging(Node(name=f"container:{config.machine}"), level=config.log_level)
    placed = brokers_of(
        config.machine,
        groups_per_machine=config.groups_per_machine or cores_here(),
        replicas=config.replicas,
    )
    log.info("starting", extra={"config": configuration.effective(config), "brokers": len(placed)})
    settings = {each.group: broker_settings(config, each) for each in placed}
    for of_one in settings.values():  # all of them, before any broker has begun
        configuration.load(
            BrokerConfig,
            process="broker",
            toml_path=config.broker_config,
            flags=of_one,
        )
    programs: dict[str, Program] = {
        group: partial(broker.main, _arguments(config, of_one))
        for group, of_one in settings.items()
    }
    BrokerProcesses(programs, clock=SystemClock(), stop_timeout_ms=config.stop_timeout_ms).run()
    log.info("stopped")


def broker_settings(config: ContainerConfig, placed: Placed) -> dict[str, str]:
    """What the container decides of one broker's settings, as text."""
    host = config.machines[config.machine - 1]
    port = config.first_port + 2 * placed.number
    if port + 1 > PORT_MAX:
        raise ConfigError(f"first_port {config.first_port} leaves no room for all brokers")
    return {
        "group": placed.group,
        "data_dir": os.path.join(config.data_dir, placed.group),
        "listen": f"{host}:{port}",
        "replication_listen": f"{host}:{port + 1}",
        "election_priority": str(placed.preference),
    }


def _arguments(config: ContainerConfig, settings: dict[str, str]) -> list[str]:
    own = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    return ["--config", config.broker_config, *own]


@click.command("paceline-broker-container")
@click.option("--config", "toml_path", type=click.Path(), default=None, help="TOML file.")
@configuration.options(ContainerConfig)
def command(toml_path: str | None, **flags: object) -> None:
    """Brokers for all cores of a machine. Settings: flags, PACELINE_CONTAINER_<KEY>, TOML."""
    config = configuration.load(
        ContainerConfig,
        process="container",
        toml_path=toml_path,
        environment=os.environ,
        flags=flags,
    )
    run_container(config)


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit code: 0 stopped, 2 refused with one sentence on stderr."""
    return run_command(command, sys.argv[1:] if arguments is None else arguments)
