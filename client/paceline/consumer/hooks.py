"""Hooks of an application around consuming (RocketMQ's client hooks).

They look on: for traces, audit, counting. What they raise is logged and counted, and changes
nothing. They are called once for each call of a listener, and for what a poll or receive hands out
of a queue; on the event loop, so they must not block.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby
from typing import Any, Protocol, TypeAlias, TypeVar

from paceline.consumer.pop.popped_message import PoppedMessage
from paceline.message import ReceivedMessage

log = logging.getLogger("paceline.client")

Handed: TypeAlias = Sequence[ReceivedMessage] | Sequence[PoppedMessage]
"""Messages as their consumer hands them out."""
MessageT = TypeVar("MessageT", ReceivedMessage, PoppedMessage)


class ConsumeContext:
    """One call of a listener, or what one poll or receive hands out of one queue."""

    __slots__ = ("consumer_group", "done_count", "error", "messages", "state")

    def __init__(self, consumer_group: str, messages: Handed) -> None:
        self.consumer_group = consumer_group
        self.messages = messages
        """Of one queue, in order."""
        self.done_count: int | None = None
        """How many the listener has done, from the first on; None before it has ended. Of a poll or
        receive: all of them, they are the application's then."""
        self.error: BaseException | None = None
        """What it raised."""
        self.state: dict[str, Any] = {}
        """The hook's own, from `before_consume` to `after_consume`."""


class ConsumeMessageHook(Protocol):
    """Around each call of a listener; of a consumer without one, around the handing out."""

    def before_consume(self, context: ConsumeContext) -> None: ...

    def after_consume(self, context: ConsumeContext) -> None: ...


Run: TypeAlias = Callable[[Sequence[ReceivedMessage]], Awaitable[int | None]]
"""Calls the application's listener: how many of the messages, from the first on, are done; None =
all. An exception: none."""


class ConsumeHooks:
    """Calls a consumer's hooks around its listener."""

    def __init__(self, hooks: Sequence[ConsumeMessageHook], *, consumer_group: str) -> None:
        self.errors = 0
        """How many calls of hooks have raised."""
        self._hooks = tuple(hooks)
        self._group = consumer_group

    def around(self, run: Run) -> Run:
        """`run` with the hooks before and after; `run` itself if there are none."""
        return self._hooked(run) if self._hooks else run

    def hand_out(self, messages: Sequence[MessageT]) -> None:
        """A poll or receive is about to return these: before and after, for each queue's part."""
        if not self._hooks:
            return
        for _, part in groupby(messages, key=_queue_of):
            context = self._begin(list(part))
            context.done_count = len(context.messages)
            self._end(context)

    def _hooked(self, run: Run) -> Run:
        async def hooked(messages: Sequence[ReceivedMessage]) -> int | None:
            context = self._begin(messages)
            try:
                answer = await run(messages)
                context.done_count = len(messages) if answer is None else answer
                return answer
            except BaseException as error:
                context.error, context.done_count = error, 0
                raise
            finally:
                self._end(context)

        return hooked

    def _begin(self, messages: Handed) -> ConsumeContext:
        context = ConsumeContext(self._group, messages)
        for hook in self._hooks:
            self._call(hook.before_consume, context)
        return context

    def _end(self, context: ConsumeContext) -> None:
        for hook in self._hooks:
            self._call(hook.after_consume, context)

    def _call(self, method: Callable[[ConsumeContext], None], context: ConsumeContext) -> None:
        try:
            method(context)
        except Exception:  # the application's code: it may not lose a message
            self.errors += 1
            log.exception("consume_hook_failed", extra={"consumer_group": self._group})


def _queue_of(message: ReceivedMessage | PoppedMessage) -> tuple[str, str, int]:
    return message.topic, message.group, message.queue_id
