"""Code of the operator inside a broker: checks before a batch is put, and watchers of requests.

A broker's configuration names functions, "module:function"; each is called once at the start with
the `Hooks` and adds what it has. Checks may refuse a batch, and one that fails refuses as well:
what nobody has allowed is not stored. Watchers look on; what they raise is logged and counted. All
run on the broker's event loop, so they must not block. Where there are none, nothing is called.
"""

import logging
from collections.abc import Callable, Hashable, Sequence
from importlib import import_module
from typing import Any, Protocol, TypeAlias

from paceline.errors import ConfigError, ForbiddenError, PacelineError
from paceline.platform.ports import Buffer, Clock
from paceline.platform.telemetry import Metrics
from paceline.records.header import BatchHeader

log = logging.getLogger("paceline.hooks")

PutHook: TypeAlias = Callable[[BatchHeader, Buffer], None]
"""Called with each batch of a client before it is appended; raises to refuse it."""


class RequestContext:
    """One request, as watchers see it."""

    __slots__ = ("began_ms", "code", "endpoint", "operation", "size_bytes", "state", "took_ms")

    def __init__(self, endpoint: str, operation: str, size_bytes: int, began_ms: int) -> None:
        self.endpoint = endpoint
        """ "stream" or "http"."""
        self.operation = operation
        """PRODUCE, FETCH, CALL; over HTTP method and resource, as "GET /v1/status"."""
        self.size_bytes = size_bytes
        self.began_ms = began_ms
        self.took_ms = 0
        """Known after the request."""
        self.code: str | None = None
        """Code of the problem that was answered; None = success. CONNECTION_LOST: nobody was there
        to be answered."""
        self.state: dict[str, Any] = {}
        """The watcher's own, from `before_request` to `after_request`."""


class RequestHook(Protocol):
    """Around each request."""

    def before_request(self, request: RequestContext) -> None: ...

    def after_request(self, request: RequestContext) -> None: ...


class Hooks:
    """What the functions of the configuration add to."""

    def __init__(self) -> None:
        self.put: list[PutHook] = []
        self.requests: list[RequestHook] = []
        self.metrics: list[Callable[[Metrics], None]] = []
        self.errors = 0
        """How many calls have raised what they should not."""

    def before_put(self, hook: PutHook) -> None:
        """Ask it about every batch that a client sends."""
        self.put.append(hook)

    def around_requests(self, hook: RequestHook) -> None:
        """Tell it of every request."""
        self.requests.append(hook)

    def on_metrics(self, register: Callable[[Metrics], None]) -> None:
        """Called with the broker's metrics, to add some."""
        self.metrics.append(register)

    def check_put(self, checks: Sequence[PutHook], header: BatchHeader, batch: Buffer) -> None:
        """Raise if one of `checks` refuses the batch. ForbiddenError: it failed itself."""
        for check in checks:
            try:
                check(header, batch)
            except PacelineError:
                raise
            except Exception as error:
                self.errors += 1
                log.exception("put_hook_failed", extra={"topic_id": header.topic_id})
                raise ForbiddenError(
                    "not stored: a check of this broker failed; its operator's log says why"
                ) from error

    def watch(self, clock: Clock) -> "RequestWatch | None":
        """Who tells the watchers; None if there are none."""
        return RequestWatch(self, clock) if self.requests else None


class RequestWatch:
    """Tells the watchers of a broker; used by its endpoints."""

    def __init__(self, hooks: Hooks, clock: Clock) -> None:
        self._hooks = hooks
        self._clock = clock
        self._open: dict[Hashable, dict[int, RequestContext]] = {}

    def begin(self, endpoint: str, operation: str, size_bytes: int) -> RequestContext:
        """A request came. Give what this returns to `end`."""
        context = RequestContext(endpoint, operation, size_bytes, self._clock.monotonic_ms())
        for hook in self._hooks.requests:
            self._call(hook.before_request, context)
        return context

    def end(self, context: RequestContext, code: str | None) -> None:
        """It was answered."""
        context.took_ms = self._clock.monotonic_ms() - context.began_ms
        context.code = code
        for hook in self._hooks.requests:
            self._call(hook.after_request, context)

    # -- requests of streams, by connection and id -------------------------------------------------

    def took(self, stream: Hashable, request_id: int, operation: str, size_bytes: int) -> None:
        """As `begin`."""
        open_here = self._open.setdefault(stream, {})
        open_here[request_id] = self.begin("stream", operation, size_bytes)

    def failed(self, stream: Hashable, request_id: int, code: str) -> None:
        """It is about to be answered with a problem."""
        context = self._open.get(stream, {}).get(request_id)
        if context is not None:
            context.code = code

    def answered(self, stream: Hashable, request_id: int) -> None:
        """As `end`."""
        context = self._open.get(stream, {}).pop(request_id, None)
        if context is not None:
            self.end(context, context.code)

    def lost(self, stream: Hashable) -> None:
        """The connection has ended: nobody hears the answers to what is open."""
        for context in self._open.pop(stream, {}).values():
            self.end(context, "CONNECTION_LOST")

    def _call(self, method: Callable[[RequestContext], None], context: RequestContext) -> None:
        try:
            method(context)
        except Exception:  # the operator's code: no request may fail by it
            self._hooks.errors += 1
            log.exception("request_hook_failed", extra={"operation": context.operation})


def load_hooks(names: Sequence[str]) -> Hooks:
    """What the named functions add. ConfigError with the sentence for the operator."""
    hooks = Hooks()
    for name in names:
        module_name, _, function_name = name.partition(":")
        if not module_name or not function_name:
            raise ConfigError(f"hooks: {name!r} is not module:function")
        try:
            function = getattr(import_module(module_name), function_name)
            function(hooks)
        except Exception as error:  # whatever a module of the operator does when it is imported
            raise ConfigError(f"hooks: {name!r} cannot be used: {error!r}") from error
    return hooks
