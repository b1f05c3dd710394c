"""Calls about transactions, and all that belongs to them in one place."""

from collections.abc import Callable
from typing import Any

from paceline.errors import BadRequestError
from paceline.security.access import Asker
from paceline.wire.calls import messages as wire
from paceline.wire.names import check_name
from paceline_broker.controllers.clock_skew import ClockTrust
from paceline_broker.ports import Role
from paceline_broker.service.ledger import Ledger
from paceline_broker.service.routes import Routes
from paceline_broker.service.rpc import AskerHandlers, Handlers
from paceline_broker.service.settings import ServiceSettings
from paceline_broker.service.transactions.check_back import TransactionChecks
from paceline_broker.service.transactions.half_messages import HalfMessageReader
from paceline_broker.service.transactions.rewrite import HalfMessageRewriter
from paceline_broker.service.transactions.transactions import (
    TransactionCounters,
    TransactionEnds,
)


class Transactions:
    """The parts of one broker that know of transactions."""

    def __init__(
        self,
        role: Role,
        routes: Routes,
        ledger: Ledger,
        settings: ServiceSettings,
        trust: Callable[[], ClockTrust],
    ) -> None:
        self._routes = routes
        self.counters = TransactionCounters()
        halves = HalfMessageReader(role)
        self.ends = TransactionEnds(role, routes, ledger, halves, self.counters, settings)
        self.checks = TransactionChecks(
            role, routes, ledger, halves, self.counters, settings, trust
        )
        self.needs = HalfMessageRewriter(role, routes, ledger, halves)

    def handlers(self) -> Handlers:
        return {
            wire.TransactionChecks: self._checks,
            wire.Transactions: self._list,
        }

    def handlers_of_askers(self) -> AskerHandlers:
        return {wire.EndTransactions: self._end, wire.Transaction: self._show}

    async def _end(self, asked: wire.EndTransactions, asker: Asker) -> wire.TransactionEnds:
        if not 1 <= len(asked.commit) + len(asked.rollback) <= wire.ENDS_MAX:
            raise BadRequestError(
                f"1 to {wire.ENDS_MAX} transactions are ended by a call", field="commit"
            )
        return wire.TransactionEnds(
            await self.ends.end_many(asked.commit, asked.rollback, asker=asker)
        )

    async def _checks(self, asked: wire.TransactionChecks) -> wire.Checks:
        group = check_name(asked.group, "group")
        return wire.Checks(await self.checks.poll(group, wait_ms=asked.wait_ms))

    async def _list(self, asked: wire.Transactions) -> dict[str, Any]:
        topic_id = None
        if asked.topic is not None:
            topic_id = int(self._routes.topic_named(asked.topic).topic_id)
        return await self.ends.list_open(topic_id=topic_id, limit=asked.limit)

    async def _show(self, asked: wire.Transaction, asker: Asker) -> dict[str, Any]:
        shown = await self.ends.show(asked.id)
        asker.check_topic(shown["topic"], *asked.finds)
        return shown
