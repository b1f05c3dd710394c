"""The program `paceline-controller`: one controller process, from configuration to a clean stop."""

import logging
import os
import sys
from collections.abc import Callable

import click

from paceline.errors import ConfigError, PacelineError, StorageError
from paceline.platform import config as configuration
from paceline.platform.disk_real import RealDisk
from paceline.platform.node_process import obey_signals, run_command, run_node, settle_heap
from paceline.platform.ports import Clock, Disk, Random
from paceline.platform.runtime import SystemClock, SystemRandom, cancel_and_wait, spawn
from paceline.platform.secret import ClusterSecrets
from paceline.platform.telemetry import Node, start_logging
from paceline.security.certificates import CONTROLLER_URI
from paceline.security.node_tls import NodeTls, open_node_tls
from paceline.types import ControllerId
from paceline_controller.config import ControllerConfig
from paceline_controller.data_folder import FolderIdentity, claim, join_cluster, lock_data_folder
from paceline_controller.node import ControllerNode
from paceline_controller.raft.host import RaftQuorum
from paceline_controller.state import Machine
from paceline_controller.watchdog import Watchdog

log = logging.getLogger("paceline.controller")


def build_node(
    config: ControllerConfig,
    *,
    disk: Disk,
    clock: Clock,
    random: Random,
    secrets: ClusterSecrets,
    identity: FolderIdentity,
    tls: NodeTls | None = None,
) -> ControllerNode:
    """A controller on the real replicated log. Must be called on the running event loop."""
    machine = Machine()
    nodes: list[ControllerNode] = []

    def fatal(error: Exception) -> None:
        for node in nodes:
            node.refuse(f"the replicated log stopped: {error}")

    quorum = RaftQuorum(
        machine,
        controller_id=ControllerId(config.controller_id),
        listen=config.raft_address(),
        peers=config.peer_addresses(),
        client_addresses=config.client_addresses(),
        data_folder=config.data_dir,
        disk=disk,
        clock=clock,
        random=random,
        secrets=secrets,
        source_host=config.source_host or None,
        cluster_name=config.cluster_name,
        tls=tls,
        on_fatal=fatal,
    )
    node = ControllerNode(
        config,
        machine=machine,
        quorum=quorum,
        clock=clock,
        random=random,
        secrets=secrets,
        disk=disk,
        expected_cluster_id=identity.cluster_id,
        tls=tls,
    )
    nodes.append(node)
    return node


def read_tls(config: ControllerConfig) -> NodeTls | None:
    """What the settings `tls_*` name, None where they are disabled. ConfigError."""
    return open_node_tls(config, own_uri=f"{CONTROLLER_URI}{config.controller_id}")


async def run_controller(
    config: ControllerConfig, *, disk: Disk | None = None, clock: Clock | None = None
) -> None:
    """One controller until SIGTERM or SIGINT. Raises PacelineError with a sentence.

    Default: this machine's disk and clock.
    """
    start_logging(Node(name=f"controller:{config.controller_id}"), level=config.log_level)
    log.info("starting", extra={"config": configuration.effective(config)})
    # The machine's own clock: one that is stepped for a test says nothing about the loop.
    watchdog = Watchdog(SystemClock(), limit_ms=config.watchdog_ms) if config.watchdog_ms else None
    if watchdog is not None:
        watchdog.start()
    settle_heap()
    try:
        await serve(
            config,
            disk=disk or RealDisk(),
            clock=clock or SystemClock(),
            random=SystemRandom(),
            secrets=ClusterSecrets.read(config.secret_file),
            tls=read_tls(config),
        )
    finally:
        if watchdog is not None:
            watchdog.stop()
    log.info("stopped")


async def serve(
    config: ControllerConfig,
    *,
    disk: Disk,
    clock: Clock,
    random: Random,
    secrets: ClusterSecrets,
    tls: NodeTls | None = None,
    on_built: Callable[[ControllerNode], None] = lambda node: None,
) -> None:
    """Open the data folder and run a controller on it until SIGTERM or SIGINT.

    `on_built` sees the node before it starts. Raises PacelineError: why it had to stop.
    """
    lock = lock_data_folder(disk, config.data_dir)
    try:
        identity = claim(
            disk,
            config.data_dir,
            controller_id=config.controller_id,
            cluster_name=config.cluster_name,
        )
        node = build_node(
            config,
            disk=disk,
            clock=clock,
            random=random,
            secrets=secrets,
            identity=identity,
            tls=tls,
        )
        on_built(node)
        obey_signals(node.ended, node.reload_files)
        await _serve(node, disk, identity)
    finally:
        lock.close()
    if node.refusal is not None:
        raise ConfigError(node.refusal)


async def _serve(node: ControllerNode, disk: Disk, identity: FolderIdentity) -> None:
    joining = spawn(_join(node, disk, identity), name="join_cluster")
    try:
        port = await _start(node)
        log.info("listening", extra={"port": port})
        await node.ended.wait()
    finally:
        await cancel_and_wait(joining)
        await node.stop()


async def _start(node: ControllerNode) -> int:
    config = node.config
    try:
        return await node.start()
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {config.listen} or {config.raft_address()}: "
            f"{error.strerror or error}; is another process there?"
        ) from error
    except StorageError as error:
        raise ConfigError(f"cannot start on {config.data_dir}: {error.message}") from error


async def _join(node: ControllerNode, disk: Disk, identity: FolderIdentity) -> None:
    """Write down the cluster id when it becomes known."""
    await node.cluster_known.wait()
    try:
        join_cluster(disk, node.config.data_dir, identity, node.machine.cluster_id)
    except PacelineError as error:
        node.refuse(f"cannot write to {node.config.data_dir}: {error.message}")


@click.command("paceline-controller")
@click.option("--config", "toml_path", type=click.Path(), default=None, help="TOML file.")
@configuration.options(ControllerConfig)
def command(toml_path: str | None, **flags: object) -> None:
    """One controller of a paceline cluster. Flags > PACELINE_CONTROLLER_<KEY> > TOML > defaults."""
    config = configuration.load(
        ControllerConfig,
        process="controller",
        toml_path=toml_path,
        environment=os.environ,
        flags=flags,
    )
    run_node(run_controller(config))


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code: 0 stopped, 2 refused with one sentence on stderr."""
    return run_command(command, sys.argv[1:] if argv is None else argv)
