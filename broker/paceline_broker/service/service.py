"""All use-cases of one broker, wired to its role: what the endpoints (HTTP, streams) call."""

from collections.abc import Callable, Hashable

from paceline.platform.ports import Clock
from paceline.security.access import Access
from paceline.security.tokens import Tokens
from paceline.security.visible import VisibleViews
from paceline.server.byte_budget import ByteBudget
from paceline.types import GroupName
from paceline.wire.cluster import ClusterView
from paceline_broker.acting.offsets_file import OffsetsFile
from paceline_broker.controllers.clock_skew import ClockTrust
from paceline_broker.ports import Role
from paceline_broker.service.audit import AuditCalls
from paceline_broker.service.counters import Counters
from paceline_broker.service.delays.calls import DelayCalls
from paceline_broker.service.delays.delivery import Delivery
from paceline_broker.service.delays.fire_clock import FireClock
from paceline_broker.service.escape.intake import Intake
from paceline_broker.service.escape.wait import EscapeWait
from paceline_broker.service.fetch.fetch import Fetcher
from paceline_broker.service.groups.acting import ActingUse
from paceline_broker.service.groups.lock_calls import LockCalls
from paceline_broker.service.groups.member_calls import ClientCalls, MemberCalls
from paceline_broker.service.groups.members import Coordinator
from paceline_broker.service.groups.offset_calls import OffsetCalls
from paceline_broker.service.groups.pins import PinCalls
from paceline_broker.service.groups.unread import UnreadCalls
from paceline_broker.service.hooks import Hooks
from paceline_broker.service.ledger import Ledger
from paceline_broker.service.long_work import LongWork
from paceline_broker.service.messages import Messages
from paceline_broker.service.pop.calls import ReceiptCalls
from paceline_broker.service.pop.cursors import Cursors
from paceline_broker.service.pop.dead_letters import DeadLetterMaker
from paceline_broker.service.pop.pop import Receipts
from paceline_broker.service.produce.auto_create import Ask, AutoCreator
from paceline_broker.service.produce.send import Sender
from paceline_broker.service.produce.storage_quotas import StorageQuotas
from paceline_broker.service.queries.calls import QueryCalls
from paceline_broker.service.retry.calls import SendBackCalls
from paceline_broker.service.retry.resend import Resend
from paceline_broker.service.retry.send_back import SendBack
from paceline_broker.service.retry.source_messages import SourceReader
from paceline_broker.service.routes import Routes
from paceline_broker.service.rpc import Calls
from paceline_broker.service.settings import ServiceSettings
from paceline_broker.service.transactions.calls import Transactions


class Service:
    """Made once per process, on the event loop; outlives every role."""

    def __init__(
        self,
        *,
        role: Role,
        group: GroupName,
        clock: Clock,
        settings: ServiceSettings,
        kept: OffsetsFile,
        trust: Callable[[], ClockTrust],
        told_unix_ms: Callable[[], int | None] = lambda: None,
        ask: Ask | None = None,
        hooks: Hooks | None = None,
        tokens: Tokens | None = None,
    ) -> None:
        """`kept`: provisional offsets of this data folder (R36); `trust`: of the clock, and what it
        is by the controllers (R29); `ask`: the controllers; `hooks`: the operator's code."""
        self.hooks = hooks or Hooks()
        self.role, self.clock, self.settings = role, clock, settings
        self.counters, self.budget = Counters(), ByteBudget(settings.request_bytes_max)
        self.routes = Routes(group)
        known, is_closed = self.routes.known_name, settings.is_closed
        self.access = Access(clock, topic_name=known, tokens=tokens, is_closed=is_closed)
        self.creator = AutoCreator(self.routes, settings, ask, clock)
        work = self.work = LongWork(self.budget)
        fire = FireClock(clock, trust, told_unix_ms)
        wait = EscapeWait(lambda: role.reader.epochs(), is_on=settings.enable_remote_escape)
        self.delivery = Delivery(role, self.routes, clock, fire, wait)
        poke = self.delivery.poke
        self.sender = Sender(
            role,
            self.routes,
            clock,
            self.counters,
            settings,
            work,
            self.hooks,
            StorageQuotas(self.routes, self.access, clock.monotonic_ms),
            delays_from_ms=fire.delays_from_ms,
            on_pending=poke,
        )
        self.fetcher = Fetcher(
            role,
            self.routes,
            self.counters,
            settings,
            work,
            on_messages=lambda keys: self.receipts.messages_came(keys),
        )
        self.ledger = Ledger(role, clock, settings)
        self.intake = Intake(role, self.routes, self.ledger, wait, on_told=poke)
        self.coordinator = Coordinator(role, self.routes, clock, settings)
        self.pins = PinCalls(self.ledger, self.routes)
        self._make_receipts(trust, fire)
        self.transactions = Transactions(role, self.routes, self.ledger, settings, trust)
        self.messages = Messages(
            role, self.sender, self.fetcher, self.routes, clock, self.creator, work
        )
        self.calls = Calls(role)
        self._add_message_calls()
        self._add_group_calls(ActingUse(role, self.routes, clock, kept), trust)

    def _make_receipts(self, trust: Callable[[], ClockTrust], fire: FireClock) -> None:
        """Simple consumers, and what becomes of messages without an attempt left."""
        role, routes, ledger, settings = self.role, self.routes, self.ledger, self.settings
        self.receipts = Receipts(
            role,
            routes,
            self.clock,
            settings,
            trust,
            on_exhausted=lambda group, found: self.dead_letters.bury(group, found),
            watch=self.fetcher.watch,
        )
        routes.on_change(self.receipts.view_changed)
        self.cursors = Cursors(role, routes, self.receipts)
        self.sources = SourceReader(role)
        self.send_back = SendBack(
            role,
            routes,
            ledger,
            self.sources,
            self.creator,
            self.counters,
            settings,
            delays_from_ms=fire.delays_from_ms,
            on_pending=self.delivery.poke,
        )
        self.dead_letters = DeadLetterMaker(
            role,
            ledger,
            self.sources,
            self.send_back,
            trust,
            on_buried=self.receipts.look_again,
        )

    def _add_message_calls(self) -> None:
        role, routes, ledger = self.role, self.routes, self.ledger
        resend = Resend(role, routes, ledger, self.sources, self.counters)
        filters = self.fetcher.filters
        queries = QueryCalls(role, routes, ledger, self.work)
        self.receipt_calls = ReceiptCalls(
            self.receipts, self.cursors, routes, self.creator, filters
        )
        send_backs = SendBackCalls(self.send_back, resend, routes)
        for part in (
            self.receipt_calls,
            send_backs,
            queries,
            DelayCalls(role, routes, ledger, self.settings),
            self.transactions,
        ):
            self.calls.add(part.handlers())
        for those in (self.receipt_calls, filters):
            self.calls.add_of_callers(those.handlers_of_callers())
        audit = AuditCalls(role, routes, ledger)
        for these in (queries, send_backs, self.transactions, audit):
            self.calls.add_of_askers(these.handlers_of_askers())

    def _add_group_calls(self, acting: ActingUse, trust: Callable[[], ClockTrust]) -> None:
        role, routes, ledger, creator = self.role, self.routes, self.ledger, self.creator
        freed = self.receipts.look_again
        self.views = VisibleViews()
        members = MemberCalls(self.coordinator, routes, creator, self.settings, self.views)
        self.client_calls = ClientCalls(
            role, self.clock, self.settings, heard=self.cursors.is_there
        )
        self.offsets = OffsetCalls(role, routes, ledger, acting, creator, trust=trust, freed=freed)
        locks = LockCalls(role, routes, ledger, acting, creator, self.settings, freed=freed)
        unread = UnreadCalls(routes, ledger, self.settings)
        for part in (self.offsets, locks, unread, members, self.client_calls):
            self.calls.add(part.handlers())
        for those in (members, self.client_calls):
            self.calls.add_of_callers(those.handlers_of_callers())
        self.calls.add_of_askers(members.handlers_of_askers())

    def view_changed(self, view: ClusterView) -> None:
        """The role took a newer cluster view."""
        self.routes.apply(view)

    def role_changed(self) -> None:
        """The role, its epoch, its reader or its projections changed: wake whoever waits."""
        self.fetcher.role_changed()
        self.delivery.poke()
        self.coordinator.role_changed()
        self.transactions.checks.role_changed()
        self.receipts.role_changed()
        self.dead_letters.role_changed()
        self.cursors.role_changed()

    def connection_lost(self, connection: Hashable) -> None:
        """A stream has closed."""
        self.coordinator.connection_lost(connection)
        self.client_calls.clients.lost(connection)

    def stop_waiting(self) -> None:
        """The process ends: long polls answer with what there is."""
        self.role_changed()
        self.transactions.checks.stop_waiting()
        self.receipts.stop_waiting()
        self.routes.stop_waiting()

    async def close(self) -> None:
        """Forget what waits. Doors are closed before."""
        self.coordinator.close()
        await self.cursors.close()
        await self.receipts.close()
        await self.dead_letters.close()
        await self.creator.close()
        await self.fetcher.close()
