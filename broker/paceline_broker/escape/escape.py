"""The escape bridge of one broker process, wired: what the program starts, and its metrics."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from paceline.errors import PeerError
from paceline.platform.ports import Clock, Disk, Random
from paceline.platform.secret import ClusterSecrets
from paceline.platform.telemetry import Metrics
from paceline.security.node_tls import Dial
from paceline.wire.cluster import GroupView
from paceline.wire.messages import Nonce
from paceline_broker.config import BrokerConfig
from paceline_broker.controllers.clock_skew import ClockTrust
from paceline_broker.escape.bridge import Bridge
from paceline_broker.escape.connection import EscapeConnection, Sender
from paceline_broker.escape.notes_file import NotesFile
from paceline_broker.escape.telling import SentReporter
from paceline_broker.metrics.features import late_samples
from paceline_broker.ports import Role
from paceline_broker.service.escape.intake import Intake
from paceline_broker.service.escape.wire import EscapeHello
from paceline_broker.service.routes import Routes


class EscapeRole(Role, Protocol):
    """The role, with what this group is to the controllers."""

    @property
    def group_view(self) -> GroupView | None: ...


class Escape:
    """One per process. Also with the switch off it tells what was sent while it was on."""

    def __init__(
        self,
        *,
        role: EscapeRole,
        routes: Routes,
        intake: Intake,
        config: BrokerConfig,
        secrets: ClusterSecrets,
        dial: Dial,
        disk: Disk,
        clock: Clock,
        random: Random,
        trust: Callable[[], ClockTrust],
    ) -> None:
        """Reads its file. Raises StorageError."""
        self._role = role
        self.intake = intake
        self._secrets = secrets
        self._random = random
        self._dial = dial
        self._is_on = config.enable_remote_escape
        self.kept = NotesFile(disk, config.data_dir)
        self.bridge = Bridge(
            role=role,
            routes=routes,
            clock=clock,
            trust=trust,
            notes=self.kept,
            connect=self._connect,
        )
        self._telling = SentReporter(role, self.bridge, self.kept, intake, self._connect)

    def role_changed(self) -> None:
        self.bridge.poke()
        self._telling.poke()

    async def run(self) -> None:
        """Ends only by cancellation."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._telling.run(), name="escape-telling")
            if self._is_on:
                group.create_task(self.bridge.run(), name="escape-bridge")

    async def _connect(self, group: GroupView) -> EscapeConnection:
        known = self._role.identity
        if known.cluster_id is None or known.replica_id is None:
            raise PeerError("this broker is not registered yet")
        hello = EscapeHello(
            cluster_id=known.cluster_id,
            group=known.group,
            replica_id=known.replica_id,
            incarnation=known.incarnation,
            nonce=Nonce.fresh(self._random),
        )
        sender = Sender(hello=hello, secrets=self._secrets, dial=self._dial)
        return await EscapeConnection.open(sender, group)

    def register(self, metrics: Metrics) -> None:
        """Name what went out, what came in, and what was not delivered because of it."""
        bridge, lateness = self.bridge, self.bridge.lateness
        for name, meaning, value in (
            (
                "sent",
                "Messages that this broker, acting as master, gave to another group; alert: a "
                "group has no master.",
                lambda: lateness.delivered,
            ),
            (
                "refused",
                "The same that another group refused; they are tried again.",
                lambda: bridge.refused,
            ),
            (
                "unknown",
                "The same of which no answer came; they are sent again, and may come twice.",
                lambda: bridge.unknown,
            ),
            (
                "taken",
                "Messages of other groups' acting masters, stored here.",
                lambda: self.intake.taken,
            ),
            (
                "skipped",
                "Messages not delivered here, as another group has them.",
                lambda: self.intake.skipped,
            ),
        ):
            metrics.sampled(f"paceline_escape_{name}_total", meaning, value)
        metrics.sampled(
            "paceline_escape_late_total",
            "Messages given to another group by how many ms late, counted from the appointment for "
            "those due before it: from the bound before up to this one.",
            lambda: late_samples(lateness),
            labels=("le_ms",),
        )
        metrics.sampled(
            "paceline_escape_untold_messages",
            "Messages given to another group that no master of the own one has heard of; alert if "
            "it stays above 0 while the group has a master.",
            lambda: len(self.kept.notes),
        )
