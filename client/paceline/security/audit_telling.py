"""What becomes of a call that a node carries out: told in the audit when it has ended.

Refusals are told where they leave the node (`Audit.refused`): some never come so far.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import TracebackType
from typing import Any

from paceline.errors import OutcomeUnknownError, PacelineError
from paceline.security.access import Asker
from paceline.security.audit import REFUSALS, Decided, Kind, about, is_change, may_change
from paceline.wire.calls.request import Request
from paceline.wire.rights import Needs
from paceline.wire.users import ANONYMOUS

_NOTHING = nullcontext()


def carrying_out(
    asker: Asker, request: Request[Any], *, tells_nodes: bool = False
) -> AbstractContextManager[None]:
    """In which a request is carried out, if its needs are met: entering raises if they are not.

    `tells_nodes`: changes by proof of the cluster secret are told too. Nodes themselves ask for
    none of a controller: it is whoever runs them.
    """
    needs = request.needed()
    if not asker.access.is_on and not may_change(needs):
        return _NOTHING
    field = partial(getattr, request)
    return _Telling(asker, needs, field, request.call_name(), request, tells_nodes=tells_nodes)


def using(
    asker: Asker, needs: Needs, field: Callable[[str], object], call: str
) -> AbstractContextManager[None]:
    """As `carrying_out`, of what is no request of the tables and was let in; `field` gives what its
    needs are on."""
    return _Telling(asker, needs, field, call) if asker.access.is_on else _NOTHING


class _Telling:
    """See the functions."""

    __slots__ = (
        "_asker",
        "_call",
        "_decided",
        "_field",
        "_kind",
        "_needs",
        "_request",
        "_tells_nodes",
        "_was_on",
    )

    def __init__(
        self,
        asker: Asker,
        needs: Needs,
        field: Callable[[str], object],
        call: str,
        request: Request[Any] | None = None,
        *,
        tells_nodes: bool = False,
    ) -> None:
        self._tells_nodes = tells_nodes
        self._asker, self._needs, self._field = asker, needs, field
        self._call, self._request = call, request
        self._was_on = asker.access.is_on
        self._kind: Kind | None = None
        """None: it is not told."""
        self._decided: Decided | None = None

    def __enter__(self) -> None:
        asker, access = self._asker, self._asker.access
        if self._request is not None:
            try:
                asker.check_request(self._request)
            except REFUSALS as error:
                self._name(error)
                raise
        if asker.principal.is_node and not self._tells_nodes:
            return
        if is_change(self._needs) or (self._request is not None and self._request.is_told):
            self._kind = Kind.CHANGE
        elif may_change(self._needs) or (self._needs and access.audit.is_sampled()):
            self._kind = Kind.SAMPLE
        if self._kind is not None:
            self._decided = access.decided(asker.principal, self._needs, self._field)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        access = self._asker.access
        is_on = self._was_on or access.is_on  # it may be the call that switches them
        if isinstance(error, REFUSALS):
            self._name(error)
        elif self._kind is not None and self._decided is not None and is_on:
            outcome = "OK" if error is None else OutcomeUnknownError.code
            if isinstance(error, PacelineError):
                outcome = error.code
            caller, kind_of = self._asker.principal.caller(), self._kind
            if kind_of is Kind.CHANGE and error is not None:  # nothing stops whoever fails often
                is_strange = caller.user == ANONYMOUS
                kind_of = Kind.STRANGERS if is_strange else Kind.REFUSAL
            names = "" if self._request is None else about(self._request)
            access.audit.tell(kind_of, caller, self._call, self._decided, outcome, about=names)

    def _name(self, error: PacelineError) -> None:
        """Whoever tells the refusal knows then what was called."""
        if self._request is not None:
            error.details |= {"call": self._call, "about": about(self._request)}
