"""The program `paceline-gateway`: one gateway process, from configuration to a clean stop."""

import asyncio
import importlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import click

from paceline.errors import ConfigError
from paceline.net.cluster import Cluster
from paceline.net.connect import ClientTls, ConnectSettings
from paceline.platform import config as configuration
from paceline.platform.node_process import (
    give_memory_back,
    listening,
    run_command,
    run_node,
    serve,
    settle_heap,
    tune_malloc,
)
from paceline.platform.ports import Clock, Random
from paceline.platform.runtime import SystemClock, SystemRandom, cancel_and_wait, pause, spawn
from paceline.platform.secret import ClusterSecrets, register_secrets
from paceline.platform.telemetry import Metrics, Node, register_budget, start_logging
from paceline.security.access import Access
from paceline.security.audit_files import AuditMemory
from paceline.security.audit_sending import AuditNode, AuditSending
from paceline.security.identity import Principal
from paceline.security.node_proof import NodeProofs
from paceline.security.node_tls import LOOK_INTERVAL_MS, Dial, open_node_tls, register_tls
from paceline.security.tokens import Tokens
from paceline.server.byte_budget import ByteBudget
from paceline_gateway.clusters import UserClusters
from paceline_gateway.config import GatewayConfig
from paceline_gateway.connected_clients import ConnectedClients
from paceline_gateway.doors import Door, DoorContext
from paceline_gateway.http import GatewayHttp
from paceline_gateway.identity import NOT_TOLD, Authenticator, ToldSecurity
from paceline_gateway.on_behalf import OnBehalf

log = logging.getLogger("paceline.gateway")

_DRAIN_MS = 2_000

OpenDoors = Callable[[DoorContext], Sequence[Door]]


def open_doors(context: DoorContext) -> list[Door]:
    """Those that the settings name. ConfigError: one cannot be had here."""
    doors: list[Door] = []
    if context.config.grpc_listen is not None:
        doors.append(_grpc_door(context))
    if context.config.remoting_listen is not None:
        doors.append(_remoting_door(context))
    return doors


def _grpc_door(context: DoorContext) -> Door:
    try:
        importlib.import_module("grpc")
        importlib.import_module("google.protobuf")
    except ImportError as error:
        raise ConfigError(
            f"the door for gRPC clients needs more than is installed ({error}): pip install"
            " 'paceline[grpc]'"
        ) from error
    from paceline_gateway.grpc.door import open_door

    return open_door(context)


def _remoting_door(context: DoorContext) -> Door:
    door: Door = importlib.import_module("paceline_gateway.remoting.door").open_door(context)
    return door


class Gateway:
    """All parts of one gateway process, wired. `start`, wait for `ended`, `stop`."""

    def __init__(
        self,
        config: GatewayConfig,
        *,
        clock: Clock,
        random: Random,
        secrets: ClusterSecrets,
        doors: OpenDoors = open_doors,
    ) -> None:
        """Must be made on the running event loop. ConfigError."""
        self._config, self._clock, self._random, self._secrets = config, clock, random, secrets
        self._tls = open_node_tls(config)
        self._dials = None
        if self._tls is not None and self._tls.dials:
            self._dials = ClientTls(ca_file=config.tls_ca)
        self.budget = ByteBudget(config.request_bytes_max)
        self.ended = asyncio.Event()
        """Set when the process must stop."""
        self.refusal: str | None = None
        """Why it must; None: it was asked to."""
        self.access = Access(
            clock,
            tokens=Tokens(lambda: secrets.all),
            is_current=lambda: self.told.known.is_set(),
            not_current=NOT_TOLD,
            is_closed=config.is_closed,
        )
        self._proofs = NodeProofs(
            secrets,
            node_id=config.node_id(),
            addresses=config.own_addresses,
            clock=clock,
            random=random,
        )
        self.told = self._make_told()
        self.cluster = self._own_cluster()
        self.clusters = UserClusters(
            self.connect,
            clock=clock,
            clusters_max=config.user_clusters_max,
            idle_ms=config.user_idle_ms,
        )
        self.clients = ConnectedClients(clock)
        self._audit = self._make_audit()
        self.authenticator = Authenticator(
            self.access,
            clock=clock,
            allow_plaintext=config.allow_plaintext,
            on_refused=self._audit.peers.refused,
        )
        self.metrics = self._make_metrics()
        self._http = self._make_http()
        self._doors = doors(self._door_context())
        self._are_open = False
        self._tasks: list[asyncio.Task[None]] = []

    def _make_told(self) -> ToldSecurity:
        config = self._config
        return ToldSecurity(
            self.access,
            controllers=config.controllers,
            proofs=self._proofs,
            dial=Dial(self._tls, source_host=config.source_host),
            random=self._random,
            source_host=config.source_host,
        )

    def _make_audit(self) -> AuditSending:
        """Of what never reaches a node: whom the gateway itself refuses."""
        return AuditSending(
            AuditNode(self._config.node_id(), 0, self._config.source_host),
            self.access,
            open_kept=AuditMemory,
            random=self._random,
            view=lambda: self.cluster.view,
            proofs=self._proofs,
            dial=Dial(self._tls, source_host=self._config.source_host),
        )

    def _make_http(self) -> GatewayHttp:
        return GatewayHttp(
            self._config,
            self.access,
            proofs=self._proofs,
            metrics=self.metrics,
            budget=self.budget,
            on_refused=partial(self._audit.peers.refused, "http"),
            why_not_ready=self._why_not_ready,
        )

    def _own_cluster(self) -> Cluster:
        """As a node sees it."""
        return Cluster(
            ConnectSettings(self._config.controllers, tls=self._dials, namespace=""),
            clock=self._clock,
            random=self._random,
            source_host=self._config.source_host,
            proofs=self._proofs,
        )

    def connect(self, principal: Principal) -> Cluster:
        """The connections of a user, for a `UserCluster`."""
        shown = OnBehalf(
            principal,
            self._secrets,
            cluster_id=lambda: self.access.security.cluster_id,
            clock=self._clock,
            allow_plaintext=self._config.insecure,
        )
        settings = ConnectSettings(
            self._config.controllers, shown, tls=self._dials, namespace=principal.namespace
        )
        return Cluster(
            settings,
            clock=self._clock,
            random=self._random,
            source_host=self._config.source_host,
        )

    def _door_context(self) -> DoorContext:
        return DoorContext(
            config=self._config,
            clusters=self.clusters,
            cluster=self.cluster,
            clients=self.clients,
            authenticator=self.authenticator,
            on_refused=self._audit.peers.refused,
            tls=self._tls,
            budget=self.budget,
            metrics=self.metrics,
            clock=self._clock,
            random=self._random,
        )

    def _make_metrics(self) -> Metrics:
        metrics = Metrics(cluster="paceline", node_type="gateway", node_id=self._config.node_id())
        register_budget(metrics, self.budget)
        register_secrets(metrics, self._secrets)
        self._audit.register(metrics)
        if self._tls is not None:
            register_tls(metrics, self._tls, self._clock)
        metrics.sampled(
            "paceline_gateway_user_clusters_count",
            "Users, each from each address, that have connections to the cluster; alert near the"
            " setting user_clusters_max.",
            lambda: self.clusters.count,
        )
        return metrics

    def _why_not_ready(self) -> str:
        if not self.told.known.is_set():
            why = self.told.why_not or "none has been asked"
            return f"no controller has told users and rights yet: {why}"
        if self.cluster.view is None:
            return "no controller has told the routes yet"
        return "" if self._are_open else "the doors are not open"

    async def start(self) -> None:
        """Listen; returns before a controller was heard. ConfigError: a port is in use."""
        config = self._config
        port = await listening(self._http.start(self._tls), config.listen)
        self.cluster.start()
        self._audit.start()
        self._tasks = [
            spawn(self.told.run(), name="told-security"),
            spawn(self.clusters.run(), name="idle-user-clusters"),
            spawn(self.clients.run(), name="connected-clients"),
            spawn(self._watch_files(), name="secrets-and-certificates"),
        ]
        for door, address in zip(self._doors, config.doors().values(), strict=True):
            await listening(door.start(), address)
        self._are_open = True
        doors = {name: str(address) for name, address in config.doors().items()}
        log.info("listening", extra={"http_port": port, **doors})

    async def stop(self) -> None:
        """Close the doors, let calls under way end, then disconnect."""
        self._are_open = False
        await asyncio.gather(*(self._close(door) for door in self._doors))
        await cancel_and_wait(*self._tasks)
        await self._audit.drain(timeout_ms=_DRAIN_MS)
        await self._audit.stop()
        await self.clusters.close()
        await self.cluster.close()
        await self._http.close()

    async def _close(self, door: Door) -> None:
        try:
            async with asyncio.timeout(self._config.stop_timeout_ms / 1000):
                await door.close()
        except TimeoutError:
            log.warning("calls_cut_off", extra={"door": type(door).__name__})

    async def _watch_files(self) -> None:
        while True:
            await pause(LOOK_INTERVAL_MS)
            self.reload_files()

    def reload_files(self) -> None:
        """Look at secrets and certificates now (SIGHUP)."""
        self._secrets.reload()
        if self._tls is not None and self._tls.reload():
            self.clusters.renew()

    def fault(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What no task and no callback caught: logged; a broken invariant ends the process."""
        loop.default_exception_handler(context)
        error = context.get("exception")
        if isinstance(error, AssertionError):
            self.refusal = f"an invariant is broken, nothing is guessed: {error!r}; see the log"
            self.ended.set()


async def run_gateway(config: GatewayConfig, *, doors: OpenDoors = open_doors) -> None:
    """One gateway until SIGTERM or SIGINT. Raises PacelineError with a sentence."""
    start_logging(Node(name=config.node_id()), level=config.log_level)
    log.info("starting", extra={"config": configuration.effective(config)})
    gateway = Gateway(
        config,
        clock=SystemClock(),
        random=SystemRandom(),
        secrets=ClusterSecrets.read(config.secret_file),
        doors=doors,
    )
    settle_heap()
    giving = spawn(give_memory_back(gateway.budget), name="give-memory-back")
    try:
        await serve(gateway)
    finally:
        await cancel_and_wait(giving)
    log.info("stopped")


@click.command("paceline-gateway")
@click.option("--config", "toml_path", type=click.Path(), default=None, help="TOML file.")
@configuration.options(GatewayConfig)
def command(toml_path: str | None, **flags: object) -> None:
    """Doors for RocketMQ's clients. Settings: flags, PACELINE_GATEWAY_<KEY>, TOML, defaults."""
    config = configuration.load(
        GatewayConfig,
        process="gateway",
        toml_path=toml_path,
        environment=os.environ,
        flags=flags,
    )
    tune_malloc()
    run_node(run_gateway(config))


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit code: 0 stopped, 2 refused with one sentence on stderr."""
    return run_command(command, sys.argv[1:] if arguments is None else arguments)
