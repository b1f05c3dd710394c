"""Calls by name, the same for streams and HTTP: request in, handler, answer out.

`paceline.wire.calls` has their types; each folder of the service has the handlers of its calls.
"""

import logging
from collections.abc import Awaitable, Callable, Hashable, Mapping
from functools import partial
from typing import Any, Protocol, TypeAlias

from paceline.errors import BY_CODE, BadRequestError, OutOfMemoryError, PacelineError
from paceline.security.access import ASKING, Asker
from paceline.security.audit_telling import carrying_out
from paceline.security.quotas import UserQuota
from paceline.security.request_quotas import namespace_quotas
from paceline.wire.calls.request import CALLED, Request, read_request, to_json
from paceline_broker.ports import Role

log = logging.getLogger("paceline.service")

MAYBE_STALE = {"acting": True, "maybe_stale": True}
"""What every answer of an acting master says (R36)."""

Handler: TypeAlias = Callable[[Any], Awaitable[Any]]
Share: TypeAlias = Callable[[UserQuota], None]
Handlers: TypeAlias = Mapping[type[Request[Any]], Handler]
"""Type of a request -> what carries it out and gives its answer. Raises PacelineError."""


class CallerHandler(Protocol):
    """Of a call for which it matters over which connection it came; None: over none that stays."""

    def __call__(self, asked: Any, /, caller: Hashable) -> Awaitable[Any]: ...


class AskerHandler(Protocol):
    """Of a call whose rights hang on what the handler finds."""

    def __call__(self, asked: Any, /, asker: Asker) -> Awaitable[Any]: ...


AskerHandlers: TypeAlias = Mapping[type[Request[Any]], AskerHandler]
CallerHandlers: TypeAlias = Mapping[type[Request[Any]], CallerHandler]


class Calls:
    """All calls of one broker."""

    def __init__(self, role: Role) -> None:
        self._role = role
        self._handlers: dict[str, tuple[type[Request[Any]], Handler]] = {}
        self._of_callers: dict[str, CallerHandler] = {}
        self._of_askers: dict[str, AskerHandler] = {}

    def add(self, handlers: Handlers) -> None:
        for type_, handler in handlers.items():
            self._add(type_, handler)

    def add_of_callers(self, handlers: CallerHandlers) -> None:
        for type_, handler in handlers.items():
            self._add(type_, partial(handler, caller=None))
            self._of_callers[type_.call_name()] = handler

    def add_of_askers(self, handlers: AskerHandlers) -> None:
        for type_, handler in handlers.items():
            self._add(type_, _never)
            self._of_askers[type_.call_name()] = handler

    def _add(self, type_: type[Request[Any]], handler: Handler) -> None:
        name = type_.call_name()
        assert name not in self._handlers, name
        self._handlers[name] = (type_, handler)

    async def call(
        self,
        document: Mapping[str, Any],
        *,
        asker: Asker,
        caller: Hashable = None,
        share: Share | None = None,
    ) -> dict[str, Any]:
        """Carry out `{"call": name, ...}` for whoever asks. Raises PacelineError.

        `caller` is the stream it came over, whose end is told to `Service.connection_lost`. `share`
        is told each quota of a namespace that the call counts for, once it is known that the asker
        may make it; what it raises ends the call.
        """
        name = document.get(CALLED)
        if not isinstance(name, str) or name not in self._handlers:
            known = ", ".join(self._handlers)
            raise BadRequestError(f"unknown call; known are {known}", field=CALLED)
        return await self.named(name, document, asker=asker, caller=caller, share=share)

    async def named(
        self,
        name: str,
        document: Mapping[str, Any],
        *,
        asker: Asker,
        caller: Hashable = None,
        share: Share | None = None,
    ) -> dict[str, Any]:
        """As `call`, of a call whose name the endpoint knows."""
        type_, handler = self._handlers[name]
        request = read_request(type_, document)
        ASKING.set(asker.bounded_user)
        version = asker.access.version
        with carrying_out(asker, request):
            if share is not None:
                for quota in namespace_quotas(asker, request):
                    share(quota)
            try:
                if name in self._of_callers:
                    answer = await self._of_callers[name](request, caller)
                elif name in self._of_askers:
                    answer = await self._of_askers[name](request, asker)
                else:
                    answer = await handler(request)
            except MemoryError as error:
                log.exception("call_failed")
                raise OutOfMemoryError from error
            if hasattr(request, "wait_ms"):
                asker.check_again(request, version=version)
        return {**to_json(answer), **self.envelope()}

    def envelope(self) -> dict[str, Any]:
        """What every answer carries (DESIGN 5)."""
        identity = self._role.identity
        return {
            "epoch": self._role.epoch,
            "broker": {"group": identity.group, "replica_id": identity.replica_id},
            "confirm": self._role.reader.confirm,
            **({} if self._role.acting is None else MAYBE_STALE),
        }


async def _never(asked: Any) -> Any:
    """Stands where a handler of another kind is asked."""
    raise AssertionError(f"{type(asked).__name__} is for whoever asks")


def raise_if_all_refused(codes: list[str | None], **details: Any) -> None:
    """A request of which every row was refused is an error as a whole: the first row's."""
    first = codes[0]
    if first is None or not all(codes):
        return
    error_class: type[PacelineError] = BY_CODE[first]
    raise error_class(f"refused: {', '.join(sorted({str(code) for code in codes}))}", **details)
