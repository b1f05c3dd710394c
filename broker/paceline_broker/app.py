"""The program `paceline-broker`: one broker process, from configuration to a clean stop."""

import asyncio
import logging
import os
import sys
from functools import partial
from typing import Any

import aiohttp
import click
from msgspec import structs

from paceline.errors import PacelineError
from paceline.platform import config as configuration
from paceline.platform.address import Address
from paceline.platform.disk_real import RealDisk
from paceline.platform.node_process import (
    boot_id,
    give_memory_back,
    listening,
    run_command,
    run_node,
    serve,
    settle_heap,
    tune_malloc,
)
from paceline.platform.ports import Clock, Disk, Random
from paceline.platform.runtime import SystemClock, SystemRandom, cancel_and_wait, spawn
from paceline.platform.secret import ClusterSecrets, register_secrets
from paceline.platform.telemetry import Metrics, Node, start_logging
from paceline.security.audit_files import AuditFiles
from paceline.security.audit_sending import AuditNode, AuditSending
from paceline.security.node_proof import NodeProofs
from paceline.security.node_tls import Dial, open_node_tls, register_tls
from paceline.security.oidc import open_identity_provider, register_oidc
from paceline.security.tokens import Tokens
from paceline.server.byte_budget import ByteBudget
from paceline.types import GroupName
from paceline.wire import session as wire
from paceline.wire.cluster import ClusterView
from paceline_broker.acting.offsets import ProvisionalOffsets
from paceline_broker.acting.offsets_file import OffsetsFile
from paceline_broker.config import BrokerConfig
from paceline_broker.controllers.clock_skew import ClockSkew, ClockTrust
from paceline_broker.controllers.session import ControllerLinks
from paceline_broker.controllers.told_security import ToldSecurity
from paceline_broker.escape.escape import Escape
from paceline_broker.escape.session import EscapeSession
from paceline_broker.metrics.disk import register_disk
from paceline_broker.metrics.integrity import register_repairs
from paceline_broker.replication.master.server import ReplicationServer
from paceline_broker.retention.cleaner import Cleaner
from paceline_broker.retention.queue_sealing import Sealing
from paceline_broker.role.acting_handover import ActingHandover
from paceline_broker.role.context import RoleContext
from paceline_broker.role.duties import Duties, register
from paceline_broker.role.member_probe import is_replica_gone
from paceline_broker.role.role import BrokerRole
from paceline_broker.server.http import BrokerHttp
from paceline_broker.service.escape.wire import EscapeHello
from paceline_broker.service.hooks import load_hooks
from paceline_broker.service.service import Service
from paceline_broker.service.settings import ServiceSettings, service_settings
from paceline_broker.storage.identity import StoreIdentity
from paceline_broker.storage.security_file import SecurityFile
from paceline_broker.storage.store import Store, lock_data_folder, open_store

log = logging.getLogger("paceline.broker")


class Broker:
    """All parts of one broker process, wired. `start`, wait for `ended`, `stop`."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        disk: Disk,
        clock: Clock,
        random: Random,
        secrets: ClusterSecrets,
        boot: str,
        node: Node,
    ) -> None:
        """Opens the store: blocking. Raises PacelineError with a sentence for the operator."""
        self._config, self._clock, self._random = config, clock, random
        self._boot, self._node, self._secrets = boot, node, secrets
        self._tls, self._provider = open_node_tls(config), open_identity_provider(config, clock)
        self._dial = Dial(self._tls, source_host=config.source_host)
        self._client_address = ""  # as the controllers tell it to all; empty until it listens
        self._proofs = self._make_proofs()
        self._group = GroupName(config.group)
        self._store = _open_store(config, disk, random, boot, node)
        self._is_registered = False
        self.ended = asyncio.Event()  # set when the process must stop
        self.refusal: str | None = None  # why it must; None: it was asked to
        self._clocks = ClockSkew(
            controllers_count=len(config.controllers), skew_ms_max=config.clock_skew_ms_max
        )
        self._links = self._make_links()
        self._probes = aiohttp.ClientSession(connector=_connector(config, force_close=True))
        self._server = ReplicationServer(group=self._group, secrets=secrets, random=random)
        self.role = BrokerRole(self._role_context())
        settings = service_settings(config, slow_read_bytes=slow_read_bytes(config))
        self._acting_file = OffsetsFile(disk, config.data_dir)
        self._service = Service(
            role=self.role,
            group=self._group,
            clock=clock,
            settings=settings,
            kept=self._acting_file,
            trust=self._trust,
            told_unix_ms=self._told_unix_ms,
            ask=self._links.request,
            hooks=load_hooks(config.hooks),
            tokens=Tokens(lambda: secrets.all, self._provider),
        )
        self._security = self._make_security(disk)
        self._audit = self._make_audit(disk)
        self._hand_over = self._make_hand_over()
        self._escape = self._make_escape(disk)
        self._cleaner = self._make_cleaner(settings)
        self._http = self._make_http()
        self._tasks: list[asyncio.Task[None]] = []

    def _make_cleaner(self, settings: ServiceSettings) -> Cleaner:
        return Cleaner(
            role=self.role,
            store=self._store,
            flusher=self.role.flusher,
            clock=self._clock,
            clocks=self._clocks,
            config=self._config,
            service=settings,
            routes=self._service.routes,
            needs=(self._service.transactions.needs, self._service.delivery.needs),
        )

    def _make_security(self, disk: Disk) -> ToldSecurity:
        file = SecurityFile(disk, self._config.data_dir)
        identity = self._store.identity
        return ToldSecurity(
            self._service.access, file, cluster_id=lambda: identity.identity.cluster_id
        )

    def _make_proofs(self) -> NodeProofs:
        return NodeProofs(
            self._secrets,
            node_id=self._config.node_id(),
            addresses=lambda: (self._client_address,),
            clock=self._clock,
            random=self._random,
        )

    def _make_audit(self, disk: Disk) -> AuditSending:
        config = self._config
        node = AuditNode(config.node_id(), config.audit_sample_one_in, config.source_host)
        audit = AuditSending(
            node,
            self._service.access,
            open_kept=partial(AuditFiles, disk, f"{config.data_dir}/audit"),
            random=self._random,
            view=lambda: self._service.routes.view,
            proofs=self._proofs,
            dial=self._dial,
        )
        self._server.on_refused = self._dial.on_refused = audit.peers.refused
        return audit

    def _make_hand_over(self) -> ActingHandover:
        kept, http = self._acting_file, self._probes
        return ActingHandover(
            self.role, kept, http, self._clock, proofs=self._proofs, dial=self._dial
        )

    def _make_http(self) -> BrokerHttp:
        hosts = self._config.own_hosts()
        return BrokerHttp(self._service, metrics=self._metrics(), proofs=self._proofs, hosts=hosts)

    def _make_escape(self, disk: Disk) -> Escape:
        self._server.serve(EscapeHello, partial(EscapeSession, self._service.intake))
        return Escape(
            role=self.role,
            routes=self._service.routes,
            intake=self._service.intake,
            config=self._config,
            secrets=self._secrets,
            dial=self._dial,
            disk=disk,
            clock=self._clock,
            random=self._random,
            trust=self._trust,
        )

    # -- RoleListener

    def role_changed(self) -> None:
        self._service.role_changed()
        self._escape.role_changed()

    def view_changed(self, view: ClusterView) -> None:
        self._security.look()
        self._service.view_changed(view)

    def _metrics(self) -> Metrics:
        node_id = self._config.node_id()
        metrics = Metrics(cluster="paceline", node_type="broker", node_id=node_id)
        register_disk(metrics, self._cleaner, self._store)
        register_repairs(metrics, self.role.repairer)
        self._escape.register(metrics)
        register_secrets(metrics, self._secrets)
        self._audit.register(metrics)
        if self._tls is not None:
            register_tls(metrics, self._tls, self._clock)
        if self._provider is not None:
            register_oidc(metrics, self._provider)
        for add in self._service.hooks.metrics:
            add(metrics)
        return metrics

    def _role_context(self) -> RoleContext:
        return RoleContext(
            listener=self,
            config=self._config,
            secrets=self._secrets,
            dial=self._dial,
            store=self._store,
            server=self._server,
            links=self._links,
            probe=lambda replica: is_replica_gone(self._probes, replica, self._dial),
            clock=self._clock,
            random=self._random,
            node=self._node,
        )

    def _make_links(self) -> ControllerLinks:
        config = self._config
        return ControllerLinks(
            controllers=config.controllers,
            secrets=self._secrets,
            identity=lambda: self._store.identity.identity,
            heartbeat=self._heartbeat,
            on_view=lambda view: self.role.view_arrived(view),
            on_security=lambda security: self._security.arrived(security),
            on_refused=self._session_refused,
            on_time=self._told_time,
            on_hand_over=lambda order, refuse: self.role.handover.ordered(order, refuse),
            random=self._random,
            heartbeat_interval_ms=config.heartbeat_interval_ms,
            request_timeout_ms=config.controller_timeout_ms,
            source_host=config.source_host,
            dial=self._dial,
        )

    def _heartbeat(self) -> wire.Heartbeat | None:
        message, uses = self.role.heartbeat(), self._service.access.key_uses
        told = uses.due()
        if message is None or not told:
            return message
        uses.told(told)  # what is lost on the way is told again in an hour
        return structs.replace(message, key_uses=told)

    def _told_time(self, controller: str, unix_ms: int) -> None:
        self._clocks.told(controller, unix_ms=unix_ms, now_ms=self._clock.monotonic_ms())

    def _told_unix_ms(self) -> int | None:
        """What it is by the controllers, now (R29)."""
        return self._clocks.told_unix_ms(now_ms=self._clock.monotonic_ms())

    def _trust(self) -> ClockTrust:
        """What the controllers say of the own wall clock, now (R29)."""
        return self._clocks.trust(
            own_unix_ms=self._clock.unix_ms(), now_ms=self._clock.monotonic_ms()
        )

    @property
    def acting_offsets(self) -> ProvisionalOffsets:
        """What no master has decided yet (R36); for reading."""
        return self._acting_file.offsets

    @property
    def http(self) -> BrokerHttp:
        """For reading."""
        return self._http

    @property
    def replication(self) -> ReplicationServer:
        """For reading."""
        return self._server

    @property
    def budget(self) -> ByteBudget:
        """What is held for requests and answers."""
        return self._service.budget

    @property
    def escape(self) -> Escape:
        """For reading."""
        return self._escape

    def reload_files(self) -> None:
        """Look at secrets and certificates now (SIGHUP)."""
        self._secrets.reload()
        if self._tls is not None:
            self._tls.reload()

    def refuse(self, sentence: str) -> None:
        """The process has to stop; the first reason is the one that is told."""
        if self.refusal is None:
            self.refusal = sentence
        self.ended.set()

    def fault(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What no task and no callback caught: logged; a broken invariant ends the process."""
        loop.default_exception_handler(context)
        error = context.get("exception")
        if isinstance(error, AssertionError):
            self.refuse(f"an invariant is broken, nothing is guessed: {error!r}; see the log")

    def _session_refused(self, message: wire.Refused) -> None:
        # A running broker outlives one misconfigured controller; a starting one says why.
        if not self._is_registered:
            self.refuse(f"a controller refused this broker: {message.detail} ({message.code})")

    async def start(self) -> None:
        """Listen, begin to talk to the controllers; returns before the broker is registered."""
        config = self._config
        self._audit.start()
        port = await listening(self._http.start(*config.listen, tls=self._tls), config.listen)
        self._tasks.append(spawn(self._secrets.watch(), name="secrets"))
        if self._tls is not None:
            self._tasks.append(spawn(self._tls.watch(), name="certificates"))
        if self._provider is not None:
            self._tasks.append(spawn(self._provider.watch(), name="identity-provider"))
        replication_port = await listening(
            self._server.start(*config.replication_listen, tls=self._tls),
            config.replication_listen,
        )
        self.role.start()
        await self._links.start()
        client = config.advertised or Address(config.listen.host, port)
        replication = config.replication_advertised or Address(
            config.replication_listen.host, replication_port
        )
        self._client_address = str(client)
        log.info("listening", extra={"client": str(client), "replication": str(replication)})
        self._tasks.append(spawn(self._join(str(client), str(replication)), name="join"))

    async def _join(self, client_address: str, replication_address: str) -> None:
        """Register, then do the periodic work until cancelled."""
        try:
            await register(
                links=self._links,
                store=self._store,
                config=self._config,
                boot_id=self._boot,
                random=self._random,
                client_address=client_address,
                replication_address=replication_address,
            )
        except PacelineError as error:
            self.refuse(error.message)
            return
        self._is_registered = True
        self.role.registered()
        self._tasks.append(spawn(self._hand_over.run(), name="hand-over"))
        self._tasks.append(spawn(self._escape.run(), name="escape"))
        self._tasks.append(spawn(self._service.transactions.checks.run(), name="checks"))
        self._tasks.append(spawn(self._service.transactions.needs.run(), name="half-needs"))
        known = self._store.identity.identity
        self._node.name = f"broker:{known.group}/{known.replica_id}"
        self._links.beat()
        sealing = Sealing(
            role=self.role,
            routes=self._service.routes,
            clock=self._clock,
            group=self._group,
            request=self._links.request,
        )
        duties = Duties(
            role=self.role,
            store=self._store,
            config=self._config,
            clock=self._clock,
            clean=self._cleaner.run,
            deliver=self._service.delivery.run,
            seal=sealing.run,
        )
        await duties.run()

    async def stop(self) -> None:
        """Hand mastership over if possible, then end everything and close the store."""
        await cancel_and_wait(*self._tasks)
        self.role.is_stopping = True
        if self.refusal is None:
            await self.role.hand_over()
        # A master that nobody replaces yet must not linger: the closed port and session tell the
        # controllers, whoever waits for an acknowledgement or for news is answered now.
        self._http.take_no_more()
        await self.role.stop()
        await self._server.stop()
        await self._links.stop()
        self._service.stop_waiting()
        await self._http.close()
        await self._probes.close()
        await self._service.close()
        await self._audit.stop()
        await self._acting_file.close()
        await self._security.close()
        self._store.close(clean=self.refusal is None)


def slow_read_bytes(config: BrokerConfig) -> int | None:
    """How far below confirm reading begins to push out of memory what the others read."""
    if not config.slave_read_enable:
        return None
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return memory_bytes * config.access_message_in_memory_max_ratio // 100


def _open_store(config: BrokerConfig, disk: Disk, random: Random, boot: str, node: Node) -> Store:
    lock = lock_data_folder(disk, config.data_dir)
    identity = StoreIdentity(disk, config.data_dir)
    identity.begin_incarnation(group=GroupName(config.group), boot_id=boot, random=random)
    node.epoch = identity.epoch
    store = open_store(
        disk,
        config.data_dir,
        lock=lock,
        identity=identity,
        segment_size_bytes=config.segment_size_bytes,
    )
    report = store.report
    if report.cut_bytes:
        log.warning("log_tail_cut", extra={"end": report.end, "cut_bytes": report.cut_bytes})
    if report.damage is not None:  # it registers as suspect and has itself mended (R24)
        log.error(
            "log_damaged",
            extra={"position": int(report.damage.position), "fault": report.damage.reason},
        )
    return store


def _connector(config: BrokerConfig, *, force_close: bool) -> aiohttp.TCPConnector:
    local = (config.source_host, 0) if config.source_host else None
    return aiohttp.TCPConnector(local_addr=local, force_close=force_close)


async def run_broker(
    config: BrokerConfig,
    *,
    disk: Disk | None = None,
    clock: Clock | None = None,
    boot: str | None = None,
) -> None:
    """One broker until SIGTERM or SIGINT. Raises PacelineError with a sentence.

    Default: this machine's disk, clock and boot id.
    """
    node = Node(name=f"broker:{config.group}")
    start_logging(node, level=config.log_level)
    log.info("starting", extra={"config": configuration.effective(config)})
    broker = Broker(
        config,
        disk=disk or RealDisk(),
        clock=clock or SystemClock(),
        random=SystemRandom(),
        secrets=ClusterSecrets.read(config.secret_file),
        boot=boot or boot_id(),
        node=node,
    )
    settle_heap()  # of this process: not in `serve`, many of which one simulated world runs
    giving = spawn(give_memory_back(broker.budget), name="give-memory-back")
    try:
        await serve(broker)
    finally:
        await cancel_and_wait(giving)
    log.info("stopped")


@click.command("paceline-broker")
@click.option("--config", "toml_path", type=click.Path(), default=None, help="TOML file.")
@configuration.options(BrokerConfig)
def command(toml_path: str | None, **flags: object) -> None:
    """One broker of a paceline cluster. Settings: flags, PACELINE_BROKER_<KEY>, TOML, defaults."""
    config = configuration.load(
        BrokerConfig,
        process="broker",
        toml_path=toml_path,
        environment=os.environ,
        flags=flags,
    )
    tune_malloc()
    run_node(run_broker(config))


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit code: 0 stopped, 2 refused with one sentence on stderr."""
    return run_command(command, sys.argv[1:] if arguments is None else arguments)
