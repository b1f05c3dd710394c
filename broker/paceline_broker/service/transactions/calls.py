"""Calls about transactions, and all that belongs to them in one place."""

from collections.abc import Callable, Mapping
from typing import Any

from paceline.errors import BadRequestError
from paceline.wire.fields import Fields
from paceline.wire.names import CLIENT_ID_PATTERN, check_name
from paceline_broker.controllers.clock_skew import Trust
from paceline_broker.ports import Role
from paceline_broker.service.calls import Call
from paceline_broker.service.ledger import Ledger
from paceline_broker.service.routes import Routes
from paceline_broker.service.settings import ServiceSettings
from paceline_broker.service.transactions.check_back import TransactionChecks
from paceline_broker.service.transactions.half_messages import HalfReader
from paceline_broker.service.transactions.rewrite import HalfNeeds
from paceline_broker.service.transactions.transactions import (
    LISTED_MAX,
    TransactionCounters,
    TransactionEnds,
)

ENDS_MAX = 4096
"""Transactions ended by one call."""
ID_LENGTH_MAX = 255
WAIT_MS = 15_000
WAIT_MS_MAX = 300_000


class Transactions:
    """The parts of one broker that know of transactions."""

    def __init__(
        self,
        role: Role,
        routes: Routes,
        ledger: Ledger,
        settings: ServiceSettings,
        trust: Callable[[], Trust],
    ) -> None:
        self._routes = routes
        self.counters = TransactionCounters()
        halves = HalfReader(role)
        self.ends = TransactionEnds(role, routes, ledger, halves, self.counters, settings)
        self.checks = TransactionChecks(
            role, routes, ledger, halves, self.counters, settings, trust
        )
        self.needs = HalfNeeds(role, routes, ledger, halves)

    def calls(self) -> Mapping[str, Call]:
        """By name."""
        return {
            "end_transactions": self._end,
            "transaction_checks": self._checks,
            "transactions": self._list,
            "transaction": self._show,
        }

    async def _end(self, fields: Fields) -> dict[str, Any]:
        commit, rollback = _ids(fields, "commit"), _ids(fields, "rollback")
        fields.done()
        if not 1 <= len(commit) + len(rollback) <= ENDS_MAX:
            raise BadRequestError(
                f"1 to {ENDS_MAX} transactions are ended by a call", field="commit"
            )
        return {"ends": await self.ends.end_many(commit, rollback)}

    async def _checks(self, fields: Fields) -> dict[str, Any]:
        group = check_name(fields.text("group"), "group")
        fields.text("client_id", pattern=CLIENT_ID_PATTERN)
        wait_ms = WAIT_MS
        if fields.has("wait_ms"):
            wait_ms = fields.integer("wait_ms", high=WAIT_MS_MAX)
        fields.done()
        return {"checks": await self.checks.poll(group, wait_ms=wait_ms)}

    async def _list(self, fields: Fields) -> dict[str, Any]:
        topic_id = None
        if fields.has("topic"):
            topic_id = int(self._routes.topic_named(fields.text("topic")).topic_id)
        limit = 100
        if fields.has("limit"):
            limit = fields.integer("limit", low=1, high=LISTED_MAX)
        fields.done()
        return await self.ends.list_open(topic_id=topic_id, limit=limit)

    async def _show(self, fields: Fields) -> dict[str, Any]:
        text = fields.text("id", length_max=ID_LENGTH_MAX)
        fields.done()
        return await self.ends.show(text)


def _ids(fields: Fields, name: str) -> list[str]:
    if not fields.has(name):
        return []
    found = fields.any(name)
    if not isinstance(found, list) or not all(
        isinstance(text, str) and len(text) <= ID_LENGTH_MAX for text in found
    ):
        raise BadRequestError(f"{name} must be a list of transaction ids", field=name)
    return found
