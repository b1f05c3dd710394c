"""What a node tells in the audit, and how much of it.

Changes are always told, if they came about. Refusals, what failed, and samples of other calls are
told as long as they do not come too fast: a stranger must not fill the disk. What was left out is
counted, and the next record says how much it was. Nothing is told before `keep` has said where.
"""

import itertools
import logging
import re
from collections.abc import Callable
from enum import Enum
from functools import cache
from typing import Any, NamedTuple

from paceline.errors import (
    NotAuthorizedError,
    PacelineError,
    StorageError,
    UnauthenticatedError,
)
from paceline.platform.ports import Clock
from paceline.security.audit_files import AuditKept
from paceline.security.quotas import Bucket
from paceline.wire.calls.audit import TEXT_LENGTH_MAX, AuditRecord
from paceline.wire.calls.request import Request
from paceline.wire.rights import CREATE, DELETE, UPDATE, Decision, Needs
from paceline.wire.users import ANONYMOUS

log = logging.getLogger("paceline.audit")

REQUEST_ID_HEADER = "X-Request-Id"
RECORDS_PER_S = 20
"""Of each of the kinds that are bounded; so many may come at once."""
REFUSALS = (NotAuthorizedError, UnauthenticatedError)
REFUSAL_CODES = frozenset(error.code for error in REFUSALS)
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/-]{1,64}")
_NAMES = (
    "topic",
    "group",
    "user",
    "subject",
    "access_key",
    "controller",
    "controller_id",
    "store",
    "mode",
)
_CHANGES = {CREATE, UPDATE, DELETE}


class Caller(NamedTuple):
    """Who has called, and how he came."""

    user: str
    access_key: str
    source: str
    door: str
    request_id: str


class Decided(NamedTuple):
    """What rights said."""

    decision: Decision
    rule: str
    action: str = ""
    resource: str = ""


class Kind(Enum):
    """Of a record, as far as it is bounded."""

    CHANGE = "change"
    STRANGERS = "strangers"
    """Refusals of whom nobody knows: they do not push out those of users."""
    REFUSAL = "refusal"
    SAMPLE = "sample"


class Audit:
    """The audit of one node."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._node = ""
        self._sample_one_in = 0
        self._files: AuditKept | None = None
        self._is_awaited = False
        """Records count that nobody can write yet."""
        self._on_record: Callable[[], None] = lambda: None
        self._bounds: dict[Kind, Bucket] = {
            kind: _bucket(clock) for kind in Kind if kind is not Kind.CHANGE
        }
        self._seen_count = 0
        self._request_ids = itertools.count(1)
        self._started = f"{clock.unix_ms():x}"
        self._untold = 0
        """Dropped, and no record has said so."""
        self.written_count = 0
        self.dropped_count = 0

    def keep(
        self,
        files: AuditKept,
        *,
        node: str,
        sample_one_in: int,
        on_record: Callable[[], None],
    ) -> None:
        """Write records to these files from now on. `sample_one_in`: which of the calls that change
        nothing; 0: none."""
        self._files, self._node, self._sample_one_in = files, node, sample_one_in
        self._on_record = on_record

    def await_files(self) -> None:
        """The disk does not take files now: until `keep`, what is told counts as dropped."""
        self._is_awaited = True

    def request_id(self, given: str | None = None) -> str:
        """What the caller has called a request, if that is harmless; else a new name."""
        if given is not None and _REQUEST_ID.fullmatch(given):
            return given
        return f"{self._started}-{next(self._request_ids)}"

    def is_sampled(self) -> bool:
        """Whether the present call, which changes nothing, is told."""
        if not self._sample_one_in:
            return False
        self._seen_count += 1
        return self._seen_count % self._sample_one_in == 0

    def tell(
        self,
        kind: Kind,
        caller: Caller,
        call: str,
        decided: Decided,
        outcome: str,
        *,
        about: str = "",
        times: int = 1,
    ) -> None:
        """Write a record; never raises, and never waits for the disk or another node."""
        files = self._files
        if files is None:
            if self._is_awaited:
                self._drop()
            return
        bound = self._bounds.get(kind)
        if bound is not None:
            now_ms = self._clock.monotonic_ms()
            if bound.spend(0, now_ms=now_ms):
                self._drop()
                return
            bound.spend(1, now_ms=now_ms)
        record = AuditRecord(
            unix_ms=self._clock.unix_ms(),
            node=self._node,
            sequence=files.next_sequence,
            user=caller.user,
            access_key=caller.access_key,
            source=_cut(caller.source),
            door=caller.door,
            call=_cut(call),
            about=_cut(about),
            action=decided.action,
            resource=_cut(decided.resource),
            decision=decided.decision,
            rule=_cut(decided.rule),
            outcome=outcome,
            request_id=caller.request_id,
            times=times,
            dropped=self._untold,
        )
        try:
            files.append(record)
        except StorageError as error:
            if not self._untold:
                log.error("audit_not_written", extra={"fault": error.message})
            self._drop()
            return
        self.written_count += 1
        self._untold = 0
        self._on_record()

    def refused(self, caller: Caller, error: PacelineError, call: str) -> None:
        """Tell a refusal; the error says from now on under which name it is told. `call`: where the
        error does not say what was called."""
        details: Any = error.details
        details["request_id"] = caller.request_id
        decided = Decided(
            Decision.DENY,
            details.get("rule", error.message),
            " or ".join(details.get("actions", ())),
            details.get("resource", ""),
        )
        is_strange = isinstance(error, UnauthenticatedError) or caller.user == ANONYMOUS
        self.tell(
            Kind.STRANGERS if is_strange else Kind.REFUSAL,
            caller,
            details.get("call", call),
            decided,
            error.code,
            about=details.get("about", ""),
        )

    def _drop(self) -> None:
        self._untold += 1
        self.dropped_count += 1


def about(call: Request[Any]) -> str:
    """What a request names: names only, nothing that is secret."""
    named = ((name, getattr(call, name, None)) for name in _NAMES)
    return " ".join(f"{name}={value}" for name, value in named if value is not None)


@cache
def is_change(needs: Needs) -> bool:
    """Whether who may do that manages something."""
    return any(_CHANGES.issuperset(need.actions) for need in needs if need.actions)


@cache
def may_change(needs: Needs) -> bool:
    """Whether it may change something, though who only sends or reads may do it as well: a pin, a
    topic that its first use makes."""
    return any(action in _CHANGES for need in needs for action in need.actions)


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_LENGTH_MAX else text[:TEXT_LENGTH_MAX]


def _bucket(clock: Clock) -> Bucket:
    return Bucket(RECORDS_PER_S, now_ms=clock.monotonic_ms())
