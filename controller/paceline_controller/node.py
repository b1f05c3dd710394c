"""Shell: one controller, its parts put together around a `Quorum`.

Owned by the event loop. `start`, then it serves until `stop`; `ended` is set when it must end.
"""

import asyncio
import logging
from functools import partial
from typing import Any

from aiohttp import web

from paceline.http_api.rights import register_access
from paceline.platform.ports import Clock, Disk, Random
from paceline.platform.runtime import cancel_and_wait, spawn
from paceline.platform.secret import ClusterSecrets, register_secrets
from paceline.platform.telemetry import Metrics, register_budget, register_places
from paceline.security.access import Access
from paceline.security.audit_files import AuditFiles
from paceline.security.audit_sending import AuditNode, AuditSending
from paceline.security.listening import Listening
from paceline.security.listening import listen as listening
from paceline.security.node_proof import NodeProofs
from paceline.security.node_tls import Dial, NodeTls, register_tls
from paceline.security.oidc import open_identity_provider, register_oidc
from paceline.security.tokens import Secrets, Tokens
from paceline.server.byte_budget import ByteBudget
from paceline.server.connections import Places
from paceline.server.http_listener import Guard
from paceline.types import ControllerId
from paceline.wire.cluster import ClusterView
from paceline.wire.session import Leadership, SecurityView, encode
from paceline_controller.config import ControllerConfig
from paceline_controller.election.liveness_events import (
    LivenessSettings,
)
from paceline_controller.election.outages import Beats
from paceline_controller.leader.announcer import ControllersAnnouncer
from paceline_controller.leader.inquirer import Inquirer
from paceline_controller.leader.prober import Prober
from paceline_controller.leader.proposer import Proposer
from paceline_controller.leader.supervisor import Supervisor
from paceline_controller.probe import ControllerMetrics
from paceline_controller.quorum import Quorum
from paceline_controller.server.broker_sessions import SessionServer
from paceline_controller.server.http import ALWAYS_ANSWERED, ControllerHttp
from paceline_controller.server.relay import MARGIN_MS, Relay
from paceline_controller.sessions.hub import Hub
from paceline_controller.sessions.view_messages import ViewMessages
from paceline_controller.state import Machine
from paceline_controller.state.commands import Lead

log = logging.getLogger("paceline.controller")

CLUSTER_ID_BYTES = 8


class ControllerNode:
    """See the module. The quorum applies to `machine`; both are made by the caller."""

    def __init__(
        self,
        config: ControllerConfig,
        *,
        machine: Machine,
        quorum: Quorum,
        clock: Clock,
        random: Random,
        secrets: ClusterSecrets,
        disk: Disk,
        expected_cluster_id: str | None = None,
        tls: NodeTls | None = None,
    ) -> None:
        """`expected_cluster_id`: of the data folder, None: not known yet."""
        self.machine, self.quorum = machine, quorum
        self.views = ViewMessages(machine, config.controllers)
        self.hub, self.budget = Hub(self.views.message), ByteBudget()
        self.places = Places(config.connections_max)
        self.ended = asyncio.Event()
        self.cluster_known = asyncio.Event()
        """Set once the machine has a cluster id and this data folder had none yet."""
        self.refusal: str | None = None
        """Why the process has to end, as a sentence for the operator."""
        self._config, self.random = config, random
        self._secrets = secrets
        self.secrets: Secrets = lambda: secrets.all
        self._expected_cluster_id = expected_cluster_id
        self._has_caught_up = False
        self.access = self._make_access(clock)
        self.proofs = self._make_proofs(clock)
        self._tls = tls
        self.dial = Dial(self._tls)
        self._audit = self._make_audit(disk)
        self._addresses = config.client_addresses()
        self._metrics = self._make_metrics()
        self.proposer = Proposer(
            quorum, machine, clock=clock, random=random, timeout_ms=config.command_timeout_ms
        )
        self._prober = Prober(source_host=config.source_host, dial=self.dial)
        self._inquirer = self._make_inquirer()
        self.supervisor = self._make_supervisor(clock)
        self.sessions = self._make_sessions(clock, random)
        self.relay = self._make_relay()
        self.http = ControllerHttp(self, clock=clock)
        self._runner = web.AppRunner(self.http.app, access_log=None, shutdown_timeout=1.0)
        self._listening: Listening | None = None
        self._watching: list[asyncio.Task[None]] = []
        self._guard: Guard | None = None
        self._told_version = 0
        self._has_recovered = False
        """What is applied from now on has not been applied by an earlier start."""
        quorum.on_applied(self._applied)
        quorum.on_restored(self._restored)
        quorum.on_leadership(self._leadership_changed)
        self._announcer = self._make_announcer()
        quorum.on_members(self._members_changed)
        self._attach_metrics(clock)

    def _make_access(self, clock: Clock) -> Access:
        config = self._config
        self._provider = open_identity_provider(config, clock)
        return Access(
            clock,
            tokens=Tokens(self.secrets, self._provider),
            is_current=self._is_current,
            is_closed=config.is_closed,
        )

    def _attach_metrics(self, clock: Clock) -> None:
        """What is read at each scrape."""
        machine = self.machine
        self._metrics.read_from(
            status=self.quorum.status,
            version=lambda: machine.version,
            sessions=lambda: len(self.hub.sessions),
            stalls=lambda: self.supervisor.liveness.clock_restarts,
        )
        self._metrics.read_groups(lambda: machine.groups)
        register_budget(self._metrics.metrics, self.budget)
        register_places(self._metrics.metrics, self.places)
        register_access(self._metrics.metrics, self.access)
        register_secrets(self._metrics.metrics, self._secrets)
        self._audit.register(self._metrics.metrics)
        if self._tls is not None:
            register_tls(self._metrics.metrics, self._tls, clock)
        if self._provider is not None:
            register_oidc(self._metrics.metrics, self._provider)
        self._metrics.read_watched(self.supervisor.outages, self._beats, clock)

    def _make_proofs(self, clock: Clock) -> NodeProofs:
        return NodeProofs(
            self._secrets,
            node_id=self._config.controller_id,
            addresses=self._own_addresses,
            clock=clock,
            random=self.random,
        )

    def _make_audit(self, disk: Disk) -> AuditSending:
        config = self._config
        node = AuditNode(config.controller_id, config.audit_sample_one_in, config.source_host)
        audit = AuditSending(
            node,
            self.access,
            open_kept=partial(AuditFiles, disk, f"{config.data_dir}/audit"),
            random=self.random,
            view=lambda: self.view() if self.machine.cluster_id else None,
            proofs=self.proofs,
            dial=self.dial,
        )
        self.quorum.on_refused(partial(audit.peers.refused, "raft"))
        return audit

    def _make_announcer(self) -> ControllersAnnouncer:
        return ControllersAnnouncer(
            self.quorum, self.machine, self.proposer, is_leading=lambda: self.supervisor.is_leading
        )

    def _make_supervisor(self, clock: Clock) -> Supervisor:
        return Supervisor(
            self.machine,
            proposer=self.proposer,
            prober=self._prober,
            inquirer=self._inquirer,
            hub=self.hub,
            clock=clock,
            settings=LivenessSettings(
                heartbeat_timeout_ms=self._config.heartbeat_timeout_ms,
                election_open_timeout_ms=self._config.election_open_timeout_ms,
                progress_timeout_ms=self._config.progress_timeout_ms,
                preferred_settle_ms=self._config.preferred_settle_ms,
                acting_settle_ms=self._config.acting_settle_ms,
            ),
            metrics=self._metrics,
            make_lead=self._make_lead,
            on_lead=self._tell_leadership,
            key_uses=self.access.key_uses,
        )

    def _make_sessions(self, clock: Clock, random: Random) -> SessionServer:
        config = self._config
        return SessionServer(
            self.machine,
            quorum=self.quorum,
            proposer=self.proposer,
            supervisor=self.supervisor,
            hub=self.hub,
            random=random,
            secrets=self._secrets,
            controller_id=ControllerId(config.controller_id),
            defaults=config.group_settings(),
            heartbeat_timeout_ms=config.heartbeat_timeout_ms,
            leader_address=self.leader_address,
            security_text=self.security_text,
            clock=clock,
            on_refused=self._audit.peers.refused,
        )

    def _make_metrics(self) -> ControllerMetrics:
        name, node_id = self._config.cluster_name, self._config.controller_id
        return ControllerMetrics(Metrics(cluster=name, node_type="controller", node_id=node_id))

    def _make_inquirer(self) -> Inquirer:
        return Inquirer(
            self._others,
            source_host=self._config.source_host,
            dial=self.dial,
            proofs=self.proofs,
        )

    def _make_relay(self) -> Relay:
        return Relay(
            self._other_leader,
            is_leading=lambda: self.supervisor.is_leading,
            controller_id=self._config.controller_id,
            timeout_ms=self._config.command_timeout_ms + MARGIN_MS,
            source_host=self._config.source_host,
            proofs=self.proofs,
            dial=self.dial,
        )

    @property
    def config(self) -> ControllerConfig:
        return self._config

    @property
    def metrics(self) -> ControllerMetrics:
        return self._metrics

    async def start(self) -> int:
        """Serve and take part in the quorum; the port listened on.

        Raises StorageError (journal), OSError (port in use).
        """
        await self._prober.start()
        await self._inquirer.start()
        await self.relay.start()
        await self._runner.setup()
        assert self._runner.server is not None
        listen = self._config.listen
        self._guard = Guard(self._runner.server, self.budget, self.places, always=ALWAYS_ANSWERED)
        self._listening = await listening(self._guard, listen.host, listen.port, tls=self._tls)
        self._watching.append(spawn(self._secrets.watch(), name="secrets"))
        if self._tls is not None:
            self._watching.append(spawn(self._tls.watch(), name="certificates"))
        if self._provider is not None:
            self._watching.append(spawn(self._provider.watch(), name="identity-provider"))
        self._audit.start()
        await self.quorum.start()
        self._has_recovered = True
        self._restored(0)  # what the quorum recovered
        return self._listening.port

    async def stop(self) -> None:
        """Hand leadership over, close sessions, stop listening. Idempotent."""
        self.sessions.is_closing = True
        self.http.watches.wake()
        await self._announcer.stop()
        await self.supervisor.stop()
        await self.quorum.stop()
        self.hub.abort_all()
        await cancel_and_wait(*self._watching)
        if self._listening is not None:
            self._listening.close()
        if self._guard is not None:
            self._guard.close()
        await self._runner.cleanup()
        await self._audit.stop()
        await self._prober.stop()
        await self._inquirer.stop()
        await self.relay.stop()

    def reload_files(self) -> None:
        """Look at secrets and certificates now (SIGHUP)."""
        self._secrets.reload()
        if self._tls is not None:
            self._tls.reload()

    def refuse(self, sentence: str) -> None:
        """The process has to end; the first reason is the one that is told."""
        if self.refusal is None:
            self.refusal = sentence
            log.error("refused", extra={"why": sentence})
        self.ended.set()

    # -- what others read -----------------------------------------------------------------------

    def leader_address(self) -> str | None:
        """Client address of the leader, as far as this node knows."""
        leader = self.quorum.status().leader
        return None if leader is None else self._client_addresses().get(leader)

    def _other_leader(self) -> str | None:
        """Where writes go on to; None: nobody leads, or this node is about to."""
        is_own = self.quorum.status().leader == ControllerId(self._config.controller_id)
        return None if is_own else self.leader_address() or None

    def _client_addresses(self) -> dict[ControllerId, str]:
        """Of all controllers, as the member list says, or else the configuration."""
        members = self.quorum.status().members
        if members is None or members.generation == 0:
            return self._addresses
        told = {member.controller_id: member.client for member in members.members}
        return {name: at or self._addresses.get(name, "") for name, at in told.items()}

    def _own_addresses(self) -> set[str]:
        """By which other nodes know this one: also while a new member list is on its way."""
        own = ControllerId(self._config.controller_id)
        found = (each.get(own) for each in (self._client_addresses(), self._addresses))
        return {address for address in found if address}

    def _others(self) -> tuple[str, ...]:
        """Client addresses of the other controllers."""
        own = ControllerId(self._config.controller_id)
        return tuple(address for name, address in self._client_addresses().items() if name != own)

    def view(self) -> ClusterView:
        """The published view of the applied state."""
        return self.views.view()

    def _beats(self) -> Beats:
        self.supervisor.forget_cleaned()
        return self.supervisor.beats

    # -- callbacks of the quorum ----------------------------------------------------------------

    def _applied(
        self, command: dict[str, Any], result: dict[str, Any], events: list[Any], index: int
    ) -> None:
        kind = command.get("kind")
        self._metrics.commands.labels(kind=str(kind), ok=str(result["ok"]).lower()).inc()
        if not self._has_recovered:
            return  # an earlier start told of it; where it has led is told once, after all
        for event in events:
            log.info(event["kind"], extra={**event, "index": index})
            self._metrics.changed_set(event)
        if not result["ok"]:
            log.info("command_refused", extra={"kind": kind, "result": result})
        self._tell_security()
        self._publish()
        self.supervisor.state_changed()

    def _restored(self, index: int) -> None:
        self._tell_security()
        self._publish()
        self.supervisor.state_changed()

    def _leadership_changed(self, is_leader: bool, term: int) -> None:
        self.supervisor.leadership_changed(is_leader, term)
        self._tell_leadership()

    def _members_changed(self) -> None:
        self._tell_leadership()

    def _tell_leadership(self) -> None:
        """To brokers: who leads now. The leader says so only once it really decides."""
        self.hub.push_leadership(
            Leadership(is_leader=self.supervisor.is_leading, leader_address=self.leader_address())
        )
        self._announcer.look()

    def _is_current(self) -> bool:
        """Whether what is applied is not older than what this node once knew: its disk may lack the
        newest, its journal may be lost. Once it is, it stays so."""
        self._has_caught_up = self._has_caught_up or self.quorum.status().has_caught_up
        return self._has_caught_up

    def security_text(self) -> str:
        """Users and rights as a message of a session; empty: nobody has ever set anything."""
        security = self.machine.security
        if not security.version:
            return ""
        return encode(SecurityView(security=security.without_passwords()))

    def _tell_security(self) -> None:
        """Users and rights may have changed: they count here from now on, and brokers are told."""
        if self.access.apply(self.machine.security):
            self.hub.push_security(self.security_text())

    def _publish(self) -> None:
        """Push the view if its version moved, before anything else happens in this turn."""
        if self.machine.version == self._told_version or not self.machine.cluster_id:
            return
        self._told_version = self.machine.version
        expected = self._expected_cluster_id
        if expected is None:
            self._expected_cluster_id = self.machine.cluster_id
            self.cluster_known.set()
        elif expected != self.machine.cluster_id:
            self.refuse(
                f"the data folder {self._config.data_dir} belongs to cluster {expected}, "
                f"the quorum is {self.machine.cluster_id}"
            )
            return
        self.hub.push_view()
        self.http.watches.published()

    def _make_lead(self, term: int) -> Lead:
        return Lead(
            controller_id=ControllerId(self._config.controller_id),
            term=term,
            cluster_id=self.random.token(CLUSTER_ID_BYTES).hex(),
            cluster_name=self._config.cluster_name,
        )
