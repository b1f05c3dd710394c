"""All use-cases of one broker, wired to its role: what the doors (HTTP, streams) are given."""

from paceline.errors import PacelineError
from paceline.ports import Clock
from paceline.records.header import Kind
from paceline.types import GroupName
from paceline.wire.cluster import ClusterView
from paceline_broker.probe import Counters
from paceline_broker.projections.projections import retention_document
from paceline_broker.service.calls import Calls
from paceline_broker.service.fetch import Fetcher
from paceline_broker.service.ledger import Ledger, append_internal
from paceline_broker.service.members import Coordinator
from paceline_broker.service.messages import Messages
from paceline_broker.service.ports import Role
from paceline_broker.service.routes import Routes
from paceline_broker.service.send import Sender
from paceline_broker.service.settings import ServiceSettings


class Service:
    """Made once per process, on the event loop; outlives every role."""

    def __init__(
        self,
        *,
        role: Role,
        group: GroupName,
        clock: Clock,
        settings: ServiceSettings,
    ) -> None:
        self.role = role
        self.clock = clock
        self.settings = settings
        self.counters = Counters()
        self.routes = Routes(group)
        self.sender = Sender(role, self.routes, clock, self.counters, settings)
        self.fetcher = Fetcher(role, self.routes, self.counters, settings)
        self.ledger = Ledger(role, clock, settings)
        self.coordinator = Coordinator(role, self.routes, clock, settings)
        self.calls = Calls(role, self.routes, self.ledger, self.coordinator, settings)
        self.messages = Messages(role, self.sender, self.fetcher, self.routes, clock)

    def view_changed(self, view: ClusterView) -> None:
        """The role took a newer cluster view."""
        self.routes.apply(view)

    def role_changed(self) -> None:
        """The role, its epoch, its reader or its projections changed: wake whoever waits."""
        self.fetcher.role_changed()
        self.coordinator.role_changed()

    def forget_silent_producers(self) -> bool:
        """Log a retention record if a producer has been silent for `producer_expiry_ms` (R29, R31).

        Called from time to time, in any role; only an open master that may append does anything.
        True if a record was appended. Never raises.
        """
        try:
            writer = self.role.writer()
            writer.ensure_can_append()
        except PacelineError:
            return False
        now_ms = self.ledger.log_time_ms()
        before_ms = now_ms - self.settings.producer_expiry_ms
        projections = self.role.projections
        oldest_ms = projections.producers.oldest_unix_ms()
        if not writer.is_open or oldest_ms is None or oldest_ms >= before_ms:
            return False
        document = retention_document(producers_before_unix_ms=before_ms)
        append_internal(writer, projections, Kind.RETENTION, document, store_unix_ms=now_ms)
        return True

    def stop_waiting(self) -> None:
        """The process ends: long polls answer with what there is."""
        self.role_changed()
        self.routes.stop_waiting()

    async def close(self) -> None:
        """Forget what waits. Doors are closed before."""
        self.coordinator.close()
        await self.fetcher.close()
